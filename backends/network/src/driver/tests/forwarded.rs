//! Packets of containers where iptables drops what is forwarded.

use super::*;
use crate::iptables::{FilterChange, IptablesError};

fn accepted(driver: &BridgeDriver) -> Vec<(usize, usize)> {
    let changes = driver.tables.accept_forwarded().into_iter();
    let numbers = |change: Result<FilterChange, IptablesError>| {
        let change = change.unwrap();
        (change.added, change.removed)
    };
    changes.map(numbers).collect()
}

/// Runs a program, which waits for others that work on the same filter.
fn edit(program: &str, words: &[&str]) -> String {
    run(program, "iptables", &[&["-w", "20"][..], words].concat())
}

fn pass_a_policy(family: NftFamily, program: &str) {
    let index = usize::from(family == NftFamily::Ip6);
    let uplink: IpAddr = UPLINK[index].parse().unwrap();
    let node = Node::new(&SUBNETS);
    let served = Container::with_ports("served", &both(8080));
    node.driver.attach(&served.request).unwrap();
    let remote = remote(family);
    let server = served.serving(family);
    let to_port = SocketAddr::new(uplink, 8080);
    let outside = SocketAddr::new(REMOTE[index].parse().unwrap(), SERVED);
    let reached = |limit| {
        (
            remote.tcp(to_port, &server, limit).is_some(),
            server.tcp(outside, &remote, limit).is_some(),
        )
    };
    // The kernel gives a device its addresses of IPv6 when it has seen its carrier.
    let is_up = |_| reached(SHORT) == (true, true);
    assert!((0..100).any(is_up), "{program}: nothing passes before");
    let iptables = |words: &[&str]| edit(program, words);
    iptables(&["-P", "FORWARD", "DROP"]);
    assert_eq!(reached(SHORT), (false, false), "{program}");
    assert_eq!(accepted(&node.driver), [(3, 0)], "{program}");
    assert_eq!(reached(LONG), (true, true), "{program}");
    assert!(accepted(&node.driver).is_empty(), "{program}");
    // What others drop by a rule stays dropped.
    iptables(&["-A", "FORWARD", "-s", REMOTE[index], "-j", "DROP"]);
    assert_eq!(accepted(&node.driver), [(3, 3)], "{program}");
    assert_eq!(reached(SHORT), (false, false), "{program}");
    iptables(&["-D", "FORWARD", "-s", REMOTE[index], "-j", "DROP"]);
    assert_eq!(reached(LONG), (true, true), "{program}");
    // As long as a container needs them, also if the driver is another one by now; then no longer.
    let attachment = served.attachment(None);
    let tables = Arc::new(BridgeTables::new(TableName::default()));
    let unused = BridgeDriver::new(node.driver.settings.clone(), tables).unwrap();
    adopt(&unused, std::slice::from_ref(&attachment), true);
    assert!(accepted(&unused).is_empty(), "{program}");
    unused.detach(&attachment).unwrap();
    assert_eq!(accepted(&unused), [(0, 3)], "{program}");
}

#[test]
fn containers_reach_and_are_reached_where_iptables_drops_by_its_policy() {
    for (family, program) in [
        (NftFamily::Ip4, "iptables-nft"),
        (NftFamily::Ip4, "iptables-legacy"),
        (NftFamily::Ip6, "ip6tables-nft"),
        (NftFamily::Ip6, "ip6tables-legacy"),
    ] {
        in_private_netns(|| pass_a_policy(family, program));
    }
}

#[test]
fn only_bridges_get_rules_and_one_that_leads_nowhere_only_for_itself() {
    in_private_netns(|| {
        let program = "iptables-nft";
        edit(program, &["-P", "FORWARD", "DROP"]);
        // The name is that of another device, as the node's way out.
        ip("link add swtest0 type veth peer name swtest9");
        let node = Node::with(&SUBNETS, |settings| {
            settings.is_gateway = false;
            settings.has_masquerade = false;
        });
        assert!(accepted(&node.driver).is_empty());
        ip("link del swtest0");
        assert_eq!(accepted(&node.driver), [(1, 0)]);
        let container = Container::new("a");
        node.driver.attach(&container.request).unwrap();
        assert!(accepted(&node.driver).is_empty());
        let listed = edit(program, &["-S", "FORWARD"]);
        let rules: Vec<&str> = listed.lines().skip(1).collect();
        assert_eq!(
            rules,
            ["-A FORWARD -i swtest0 -o swtest0 -m comment --comment switchyard -j ACCEPT"]
        );
    });
}
