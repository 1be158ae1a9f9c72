//! Findings about what a node has for its networks without the keys.

use switchyard_config::NetworkDefaults;

use super::*;

/// A node with these defaults of its networks.
fn with_defaults(
    found: Result<FoundDefaults, io::ErrorKind>,
    keys: &str,
) -> impl FnOnce(&mut TestNode) {
    move |node| {
        node.network_defaults = found;
        node.config(keys);
    }
}

#[test]
fn node_with_former_defaults_is_told_what_new_ones_have() {
    use FoundDefaults::{Recorded, Undecided};
    const NATIVE: &str = "[network.bridge]\ndriver = \"native\"\n";
    const ALL: &str = "[network]\nisolation = \"none\"\ndirect_routing = true\n[network.bridge]\ndriver = \"native\"\n";
    const CNI: &str = "[network.bridge]\ndriver = \"cni\"\n";
    let former = NetworkDefaults::Cni;
    let note = &["SY318 note"][..];
    for (found, keys, expected) in [
        (Recorded(former), "", note),
        // The daemon has not started yet with this version.
        (Undecided(former), "", note),
        // Its bridges are not kept apart.
        (Recorded(former), NATIVE, note),
        // Its operator has decided.
        (Recorded(former), CNI, &[]),
        (Recorded(former), ALL, &[]),
        (Recorded(NetworkDefaults::Native), "", &[]),
        (Undecided(NetworkDefaults::Native), "", &[]),
        (Recorded(NetworkDefaults::Native), CNI, &[]),
    ] {
        check(with_defaults(Ok(found), keys), expected);
    }
    let found = check(with_defaults(Ok(Recorded(former)), ""), note);
    assert_eq!(
        found[0].found,
        "driver cni, isolation none, direct_routing true"
    );
    // Nothing is on a bridge of the gateway.
    let keys = "[nomad]\nenabled = false\n[swarm]\nenabled = false\n";
    check(with_defaults(Ok(Recorded(former)), keys), &["SY506 error"]);
}

#[test]
fn defaults_that_are_not_known_end_the_next_start() {
    let unread = || Err(io::ErrorKind::InvalidData);
    let found = check(with_defaults(unread(), ""), &["SY319 error"]);
    assert!(found[0].found.contains("network.isolation"), "{found:?}");
    // They make no difference.
    let keys = "[network.bridge]\ndriver = \"cni\"\n";
    check(with_defaults(unread(), keys), &[]);
}

#[test]
fn plugins_are_missed_only_where_the_node_needs_them() {
    let without_plugin = |defaults| {
        move |node: &mut TestNode| {
            node.network_defaults = Ok(FoundDefaults::Recorded(defaults));
            node.remove("/usr/lib/cni/firewall");
        }
    };
    let report = look(without_plugin(NetworkDefaults::Native));
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let report = look(without_plugin(NetworkDefaults::Cni));
    let codes: Vec<_> = report
        .findings
        .iter()
        .map(|one| one.code.as_str())
        .collect();
    assert_eq!(codes, ["SY304", "SY318"]);
}

/// The codes about the network on a node without the plugin `firewall`, whose daemon has this in force.
fn without_firewall(found: Result<FoundDefaults, io::ErrorKind>, in_force: Option<&str>) -> String {
    let report = look(|node| {
        node.network_defaults = found;
        node.in_force = in_force.map(str::to_owned);
        node.remove("/usr/lib/cni/firewall");
    });
    let codes = report.findings.iter().map(|one| one.code.as_str());
    let codes: Vec<&str> = codes.filter(|code| code.starts_with("SY3")).collect();
    codes.join(" ")
}

#[test]
fn what_is_not_known_of_the_node_is_as_in_the_daemon_that_runs() {
    let native = "version = 1\n[network]\nisolation = \"bridge\"\ndirect_routing = false\n[network.bridge]\ndriver = \"native\"\n";
    let cni = "version = 1\n[network.bridge]\ndriver = \"cni\"\n";
    let denied = Err(io::ErrorKind::PermissionDenied);
    let unread = Err(io::ErrorKind::InvalidData);
    let former = Ok(FoundDefaults::Recorded(NetworkDefaults::Cni));
    for (found, in_force, expected) in [
        (denied, Some(native), ""),
        (denied, Some(cni), "SY304"),
        (denied, None, "SY304"),
        (unread, Some(native), "SY319"),
        (unread, Some(cni), "SY304 SY319"),
        // A daemon of an earlier version, which has no such keys.
        (unread, Some("version = 1\n"), "SY304 SY319"),
        // What the next start has is known.
        (former, Some(native), "SY304 SY318"),
    ] {
        assert_eq!(without_firewall(found, in_force), expected, "{in_force:?}");
    }
}

#[test]
fn next_start_is_judged_with_the_defaults_of_the_node() {
    let next = |found| {
        move |node: &mut TestNode| {
            node.network_defaults = found;
            let unit = format!(
                "LoadState=loaded\nMainPID={DAEMON}\n\
                 Environment=SWITCHYARD_LOGKEEPER__MODE=external SWITCHYARD_NETWORK__ISOLATION=bridge\n"
            );
            node.command("systemctl show --property=Environment", &unit);
        }
    };
    let recorded = |defaults| Ok(FoundDefaults::Recorded(defaults));
    check(next(recorded(NetworkDefaults::Native)), &[]);
    let expected = ["SY318 note", "SY817 error"];
    let found = check(next(recorded(NetworkDefaults::Cni)), &expected);
    let of_start = found.iter().find(|one| one.code == "SY817").unwrap();
    assert!(of_start.found.contains("network.isolation"), "{found:?}");
    // It is one finding, not two.
    check(next(Err(io::ErrorKind::InvalidData)), &["SY319 error"]);
}
