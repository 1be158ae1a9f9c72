//! Packets through our rules, between hosts that are network namespaces: which of them reach which, and with which address.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::*;
use crate::nft::bridges::{BridgeRules, Isolation, bridge_elements};
use crate::testing::hosts::{Host, LONG, SERVED, SHORT, inside, ip, nodad, set};

/// Addresses of the hosts of a family.
struct Plan {
    bits: u8,
    uplink: &'static str,
    remote: &'static str,
    /// Address of the bridge and of two containers.
    first: [&'static str; 3],
    /// Address of the bridge and of a container.
    second: [&'static str; 2],
}

const PLANS: [(NftFamily, Plan); 2] = [
    (
        NftFamily::Ip4,
        Plan {
            bits: 24,
            uplink: "192.0.2.1",
            remote: "192.0.2.9",
            first: ["10.88.0.1", "10.88.0.2", "10.88.0.3"],
            second: ["10.99.0.1", "10.99.0.2"],
        },
    ),
    (
        NftFamily::Ip6,
        Plan {
            bits: 64,
            uplink: "2001:db8::1",
            remote: "2001:db8::9",
            first: ["fd00:88::1", "fd00:88::2", "fd00:88::3"],
            second: ["fd00:99::1", "fd00:99::2"],
        },
    ),
];

/// Hosts around a node with two bridges.
struct Lab {
    node: Host,
    remote: Host,
    first: Host,
    neighbour: Host,
    second: Host,
}

impl Lab {
    fn new(family: NftFamily, plan: &Plan) -> Self {
        ip("link set lo up");
        match family {
            NftFamily::Ip4 => set("ipv4/ip_forward", "1"),
            NftFamily::Ip6 => set("ipv6/conf/all/forwarding", "1"),
            NftFamily::Bridge => unreachable!("a plan is of addresses"),
        }
        let bits = plan.bits;
        for (bridge, address) in [("sw0", plan.first[0]), ("sw1", plan.second[0])] {
            ip(&format!("link add {bridge} type bridge"));
            ip(&format!(
                "addr add {address}/{bits} dev {bridge}{}",
                nodad(family)
            ));
            ip(&format!("link set {bridge} up"));
            set(&format!("ipv4/conf/{bridge}/route_localnet"), "1");
        }
        let container = |device: &str, bridge: &str, address: &str, router: &str| {
            let host = Host::new(family, device, &format!("{address}/{bits}"), router);
            ip(&format!("link set {device} master {bridge} up"));
            ip(&format!("link set {device} type bridge_slave hairpin on"));
            host
        };
        let remote = Host::new(
            family,
            "uplink",
            &format!("{}/{bits}", plan.remote),
            plan.uplink,
        );
        ip(&format!(
            "addr add {}/{bits} dev uplink{}",
            plan.uplink,
            nodad(family)
        ));
        ip("link set uplink up");
        Self {
            remote,
            first: container("first", "sw0", plan.first[1], plan.first[0]),
            neighbour: container("neighbour", "sw0", plan.first[2], plan.first[0]),
            second: container("second", "sw1", plan.second[1], plan.second[0]),
            node: Host::node(family),
        }
    }
}

/// Publishes port 8080 of all addresses of the node, and port 9090 of one, for the first container; keeps the bridges apart.
fn elements_of(plan: &Plan) -> BTreeSet<Element> {
    let address = |text: &str| -> IpAddr { text.parse().unwrap() };
    let container = address(plan.first[1]);
    let mut all = BTreeSet::from([Element::Hairpin(container)]);
    for protocol in [Transport::Tcp, Transport::Udp] {
        for (at, port) in [(None, 8080), (Some(address(plan.uplink)), 9090)] {
            all.insert(Element::Port {
                at,
                protocol,
                port,
                to: container,
                to_port: SERVED,
            });
        }
    }
    for (name, router) in [("sw0", plan.first[0]), ("sw1", plan.second[0])] {
        let subnet = NftSubnet::new(address(router), plan.bits).unwrap();
        let name = bridge(name);
        all.extend([
            Element::Masqueraded(subnet),
            Element::Closed(subnet),
            Element::Bridge(name.clone()),
            Element::Same(name.clone()),
            Element::Apart(name.clone()),
            Element::Allowed(name.clone(), name),
        ]);
    }
    all
}

#[expect(clippy::too_many_lines, reason = "it is one table of cases")]
fn reach_each_other(family: NftFamily, plan: &Plan, bridged_packets: bool) {
    let lab = Lab::new(family, plan);
    let seen = Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists();
    if seen {
        let value = if bridged_packets { "1" } else { "0" };
        set("bridge/bridge-nf-call-iptables", value);
        set("bridge/bridge-nf-call-ip6tables", value);
    }
    let mut tables = NftTables::open(TableName::default()).unwrap();
    tables.restore(family, &elements_of(plan)).unwrap();
    let router = plan.first[0];
    // Where the bridge shows its packets to the rules, the answer of a neighbour is translated there too.
    let neighbour = if seen && bridged_packets {
        plan.first[2]
    } else {
        router
    };
    let mut rows = vec![
        (
            "node to port",
            &lab.node,
            plan.uplink,
            8080,
            &lab.first,
            Some(plan.uplink),
        ),
        (
            "node to port of address",
            &lab.node,
            plan.uplink,
            9090,
            &lab.first,
            Some(plan.uplink),
        ),
        (
            "node to container",
            &lab.node,
            plan.first[1],
            80,
            &lab.first,
            Some(router),
        ),
        (
            "remote to port",
            &lab.remote,
            plan.uplink,
            8080,
            &lab.first,
            Some(plan.remote),
        ),
        (
            "remote to port of address",
            &lab.remote,
            plan.uplink,
            9090,
            &lab.first,
            Some(plan.remote),
        ),
        (
            "remote to node",
            &lab.remote,
            plan.uplink,
            80,
            &lab.node,
            Some(plan.remote),
        ),
        (
            "container to itself",
            &lab.first,
            plan.uplink,
            8080,
            &lab.first,
            Some(router),
        ),
        (
            "neighbour to port",
            &lab.neighbour,
            plan.uplink,
            8080,
            &lab.first,
            Some(neighbour),
        ),
        (
            "neighbour directly",
            &lab.neighbour,
            plan.first[1],
            80,
            &lab.first,
            Some(plan.first[2]),
        ),
        (
            "other bridge to port",
            &lab.second,
            plan.uplink,
            8080,
            &lab.first,
            Some(plan.second[1]),
        ),
        (
            "container to outside",
            &lab.first,
            plan.remote,
            80,
            &lab.remote,
            Some(plan.uplink),
        ),
        (
            "other bridge to outside",
            &lab.second,
            plan.remote,
            80,
            &lab.remote,
            Some(plan.uplink),
        ),
        (
            "remote directly",
            &lab.remote,
            plan.first[1],
            80,
            &lab.first,
            None,
        ),
        (
            "remote directly to other bridge",
            &lab.remote,
            plan.second[1],
            80,
            &lab.second,
            None,
        ),
        (
            "other bridge directly",
            &lab.second,
            plan.first[1],
            80,
            &lab.first,
            None,
        ),
        (
            "to other bridge directly",
            &lab.first,
            plan.second[1],
            80,
            &lab.second,
            None,
        ),
        (
            "port of another address",
            &lab.node,
            router,
            9090,
            &lab.first,
            None,
        ),
    ];
    if family == NftFamily::Ip4 {
        rows.push((
            "loopback of the node",
            &lab.node,
            "127.0.0.1",
            8080,
            &lab.first,
            Some(router),
        ));
    } else {
        rows.push((
            "loopback of the node",
            &lab.node,
            "::1",
            8080,
            &lab.first,
            None,
        ));
    }
    for (name, client, address, port, server, source) in rows {
        let to = SocketAddr::new(address.parse().unwrap(), port);
        let source: Option<IpAddr> = source.map(|source| source.parse().unwrap());
        let limit = if source.is_some() { LONG } else { SHORT };
        assert_eq!(
            client.tcp(to, server, limit),
            source,
            "{name}, TCP, {bridged_packets}"
        );
        assert_eq!(
            client.udp(to, server, limit),
            source,
            "{name}, UDP, {bridged_packets}"
        );
    }
}

#[test]
fn ports_are_reached_from_everywhere_and_bridges_only_by_them() {
    for (family, plan) in &PLANS {
        for bridged_packets in [false, true] {
            in_private_netns(|| reach_each_other(*family, plan, bridged_packets));
        }
    }
}

/// Both bridges, with owners.
fn rules_of(plan: &Plan, owners: [&str; 2]) -> Vec<BridgeRules> {
    let routers = [plan.first[0], plan.second[0]];
    let rules = |((name, owner), router): ((&str, &str), &str)| BridgeRules {
        name: bridge(name),
        owner: owner.to_owned(),
        subnets: vec![NftSubnet::new(router.parse().unwrap(), plan.bits).unwrap()],
        is_gateway: true,
        masquerade: true,
        direct_routing: true,
    };
    let named = ["sw0", "sw1"].into_iter().zip(owners);
    named.zip(routers).map(rules).collect()
}

fn reach_by_isolation(family: NftFamily, plan: &Plan) {
    let lab = Lab::new(family, plan);
    let mut tables = NftTables::open(TableName::default()).unwrap();
    let pair = |a, b| vec![(bridge(a), bridge(b))];
    for (isolation, owners, allow, expected) in [
        (Isolation::None, ["nomad", "swarm"], vec![], true),
        (Isolation::Bridge, ["nomad", "nomad"], vec![], false),
        (
            Isolation::Bridge,
            ["nomad", "swarm"],
            pair("sw1", "sw0"),
            true,
        ),
        (
            Isolation::Bridge,
            ["nomad", "swarm"],
            pair("sw0", "docker0"),
            false,
        ),
        (Isolation::Owner, ["nomad", "nomad"], vec![], true),
        (Isolation::Owner, ["nomad", "swarm"], vec![], false),
        (
            Isolation::Owner,
            ["nomad", "swarm"],
            pair("sw0", "sw1"),
            true,
        ),
    ] {
        let elements = bridge_elements(&rules_of(plan, owners), isolation, &allow);
        tables.restore(family, &elements).unwrap();
        let limit = if expected { LONG } else { SHORT };
        for (client, address, server) in [
            (&lab.first, plan.second[1], &lab.second),
            (&lab.second, plan.first[1], &lab.first),
        ] {
            let to = SocketAddr::new(address.parse().unwrap(), SERVED);
            let name = format!("{isolation:?} {owners:?} {allow:?} to {address}");
            assert_eq!(
                client.tcp(to, server, limit).is_some(),
                expected,
                "TCP, {name}"
            );
            assert_eq!(
                client.udp(to, server, limit).is_some(),
                expected,
                "UDP, {name}"
            );
        }
        // A bridge reaches itself always.
        let to = SocketAddr::new(plan.first[1].parse().unwrap(), SERVED);
        assert!(
            lab.neighbour.tcp(to, &lab.first, LONG).is_some(),
            "{isolation:?}"
        );
    }
}

#[test]
fn bridges_reach_each_other_by_isolation_owner_and_pair() {
    for (family, plan) in &PLANS {
        in_private_netns(|| reach_by_isolation(*family, plan));
    }
}

/// Returns whether a host gets an answer of ICMP that nobody has asked for, which belongs to no connection.
fn gets_unasked(family: NftFamily, hosts: [&Host; 2], to: IpAddr, limit: Duration) -> bool {
    let (domain, protocol, answer, header): (_, _, [u8; 8], usize) = match family {
        NftFamily::Ip4 => (
            AddressFamily::Inet,
            SockProtocol::Icmp,
            [0, 0, 0xff, 0xff, 0, 0, 0, 0],
            20,
        ),
        // The kernel sets the checksum.
        NftFamily::Ip6 => (
            AddressFamily::Inet6,
            SockProtocol::IcmpV6,
            [129, 0, 0, 0, 0, 0, 0, 0],
            0,
        ),
        NftFamily::Bridge => unreachable!("a plan is of addresses"),
    };
    let open = || socket(domain, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap();
    let [client, server] = hosts.map(|host| UdpSocket::from(inside(&host.netns, open)));
    server.set_read_timeout(Some(SHORT)).unwrap();
    let mut buffer = [0; 256];
    let end = Instant::now() + limit;
    while Instant::now() < end {
        let _ = client.send_to(&answer, (to, 0));
        let received = server.recv(&mut buffer).unwrap_or_default();
        if buffer[..received].get(header) == answer.first() {
            return true;
        }
    }
    false
}

/// Packets of connections that the kernel knows, and of others: those that a rule of others says are none, and answers without a question.
fn stay_apart_without_a_connection(family: NftFamily, plan: &Plan) {
    let lab = Lab::new(family, plan);
    let mut tables = NftTables::open(TableName::default()).unwrap();
    let address: IpAddr = plan.second[1].parse().unwrap();
    let to = SocketAddr::new(address, SERVED);
    for is_tracked in [true, false] {
        if !is_tracked {
            let table = family.name();
            let hook = "{ type filter hook prerouting priority -300; }";
            nft(&["add", "table", table, "other"]);
            nft(&["add", "chain", table, "other", "early", hook]);
            nft(&["add", "rule", table, "other", "early", "notrack"]);
        }
        for (isolation, allow, is_reached) in [
            (Isolation::None, vec![], true),
            (Isolation::Bridge, vec![], false),
            (
                Isolation::Bridge,
                vec![(bridge("sw0"), bridge("sw1"))],
                true,
            ),
            (Isolation::Owner, vec![], false),
        ] {
            let elements = bridge_elements(&rules_of(plan, ["nomad", "swarm"]), isolation, &allow);
            tables.restore(family, &elements).unwrap();
            let limit = if is_reached { LONG } else { SHORT };
            let reached = [
                lab.first.tcp(to, &lab.second, limit).is_some(),
                lab.first.udp(to, &lab.second, limit).is_some(),
                gets_unasked(family, [&lab.first, &lab.second], address, limit),
            ];
            assert_eq!(
                reached, [is_reached; 3],
                "{isolation:?} {allow:?}, is tracked: {is_tracked}"
            );
        }
    }
}

#[test]
fn bridges_are_kept_apart_from_packets_without_a_connection_too() {
    for (family, plan) in &PLANS {
        in_private_netns(|| stay_apart_without_a_connection(*family, plan));
    }
}
