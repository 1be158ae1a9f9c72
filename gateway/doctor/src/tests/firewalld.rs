//! Findings about firewalld, which rejects what containers begin unless a zone or a policy lets it through.

use super::*;

/// The policies in force as Debian's package has them.
const POLICIES: &str =
    "a{sa{sas}} 1 \"allow-host-ipv6\" 2 \"ingress_zones\" 1 \"ANY\" \"egress_zones\" 1 \"HOST\"";
/// Settings of zones, of which the bus tells more.
const FORWARDS: &str = "a{sv} 3 \"short\" s \"Public\" \"forward\" b true \"target\" s \"default\"";
const ACCEPTS: &str = "a{sv} 2 \"short\" s \"Trusted\" \"target\" s \"ACCEPT\"";

/// A node with the driver native and a firewalld, by its answers.
fn firewalld(node: &mut TestNode, zones: &str, policies: &str) {
    node.config("[network.bridge]\ndriver = \"native\"");
    node.programs.insert("/usr/bin/firewall-cmd".into());
    node.programs.insert("/usr/bin/busctl".into());
    let mut answer = |interface: &str, call: &str, text: &str| {
        let bus = "org.fedoraproject.FirewallD1 /org/fedoraproject/FirewallD1";
        let command = format!(
            "busctl --auto-start=no call {bus} org.fedoraproject.FirewallD1{interface} {call}"
        );
        node.command(&command, text);
    };
    answer("", "getDefaultZone", "s \"public\"\n");
    answer(".zone", "getActiveZones", zones);
    answer(".policy", "getActivePolicies", policies);
    answer(".zone", "getZoneSettings2 s public", FORWARDS);
    answer(".zone", "getZoneSettings2 s dmz", FORWARDS);
    answer(".zone", "getZoneSettings2 s trusted", ACCEPTS);
}

#[test]
fn what_firewalld_rejects_of_the_bridge_is_told_until_a_zone_or_a_policy_accepts_it() {
    let rejected = [
        // As it is installed, without NetworkManager.
        ("a{sa{sas}} 0\n", "public"),
        // Others.
        (
            "a{sa{sas}} 1 \"trusted\" 1 \"sources\" 1 \"10.244.0.0/16\"\n",
            "public",
        ),
        (
            "a{sa{sas}} 1 \"trusted\" 1 \"sources\" 1 \"172.26.80.0/21\"\n",
            "public",
        ),
        (
            "a{sa{sas}} 1 \"trusted\" 1 \"interfaces\" 1 \"docker0\"\n",
            "public",
        ),
        // No other interface to go to.
        (
            "a{sa{sas}} 1 \"dmz\" 1 \"interfaces\" 1 \"switchyard0\"\n",
            "dmz",
        ),
        (
            "a{sa{sas}} 1 \"dmz\" 1 \"interfaces\" 1 \"switchyard+\"\n",
            "dmz",
        ),
        // Addresses come before interfaces.
        (
            "a{sa{sas}} 2 \"dmz\" 1 \"sources\" 1 \"172.26.0.0/16\" \"trusted\" 1 \"interfaces\" 1 \"switchyard0\"\n",
            "dmz",
        ),
    ];
    for (zones, zone) in rejected {
        let found = check(|node| firewalld(node, zones, POLICIES), &["SY316 warning"]);
        let expected = format!("firewalld: the zone {zone} rejects what comes from switchyard0");
        assert_eq!(found[0].found, expected, "{zones}");
        let cure = "firewall-cmd --permanent --zone=trusted --add-source=172.26.80.0/20 && firewall-cmd --zone=trusted --add-source=172.26.80.0/20";
        assert_eq!(found[0].command.as_deref(), Some(cure), "{zones}");
    }
    let nothing = "a{sa{sas}} 0\n";
    for (zones, policies) in [
        (
            "a{sa{sas}} 1 \"trusted\" 1 \"sources\" 1 \"172.26.80.0/20\"\n",
            POLICIES,
        ),
        (
            "a{sa{sas}} 1 \"trusted\" 1 \"sources\" 2 \"fd00::/8\" \"172.16.0.0/12\"\n",
            POLICIES,
        ),
        (
            "a{sa{sas}} 1 \"trusted\" 1 \"interfaces\" 1 \"switchyard0\"\n",
            POLICIES,
        ),
        (
            "a{sa{sas}} 1 \"trusted\" 1 \"interfaces\" 1 \"switch+\"\n",
            POLICIES,
        ),
        // As NetworkManager puts uplinks.
        (
            "a{sa{sas}} 1 \"public\" 1 \"interfaces\" 1 \"eth0\"\n",
            POLICIES,
        ),
        (
            nothing,
            "a{sa{sas}} 1 \"out\" 2 \"ingress_zones\" 1 \"public\" \"egress_zones\" 1 \"ANY\"",
        ),
        (
            nothing,
            "a{sa{sas}} 1 \"out\" 2 \"ingress_zones\" 1 \"ANY\" \"egress_zones\" 1 \"ANY\"",
        ),
        (
            nothing,
            "a{sa{sas}} 1 \"out\" 2 \"ingress_zones\" 2 \"dmz\" \"public\" \"egress_zones\" 1 \"external\"",
        ),
        // An answer that this version does not know.
        ("a{ss} 0\n", POLICIES),
    ] {
        check(|node| firewalld(node, zones, policies), &[]);
    }
}

#[test]
fn policies_for_others_let_nothing_of_the_bridge_through() {
    let policy = |name: &str, from: &str, to: &str| {
        format!(
            "a{{sa{{sas}}}} 1 \"{name}\" 2 \"ingress_zones\" 1 \"{from}\" \"egress_zones\" 1 \"{to}\"\n"
        )
    };
    for (name, from, to) in [
        // As libvirt and dockerd make them.
        ("libvirt-routed-out", "libvirt-routed", "ANY"),
        ("docker-forwarding", "ANY", "docker"),
        // What goes to the node itself.
        ("to-node", "public", "HOST"),
        ("others", "dmz", "external"),
    ] {
        let policies = policy(name, from, to);
        let others = |node: &mut TestNode| firewalld(node, "a{sa{sas}} 0\n", &policies);
        let found = check(others, &["SY316 warning"]);
        assert!(found[0].found.contains("the zone public"), "{name}");
    }
}

#[test]
fn firewalld_is_asked_only_where_it_is_and_counts_only_for_the_driver_native() {
    let nothing = "a{sa{sas}} 0\n";
    let stopped = |node: &mut TestNode| {
        firewalld(node, nothing, POLICIES);
        node.commands
            .retain(|command, _| !command.starts_with("busctl"));
    };
    check(stopped, &[]);
    let absent = |node: &mut TestNode| {
        firewalld(node, nothing, POLICIES);
        node.programs.remove(Path::new("/usr/bin/firewall-cmd"));
    };
    check(absent, &[]);
    // The plugin firewall tells it the addresses of its containers.
    let with_plugins = |node: &mut TestNode| {
        firewalld(node, nothing, POLICIES);
        node.config("");
    };
    check(with_plugins, &[]);
}
