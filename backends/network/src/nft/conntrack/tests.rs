//! Tests of which connections are removed.

use std::net::UdpSocket;

use super::*;
use crate::nft::kept::kept;
use crate::nft::{Element, ElementChange, NftTables, TableName};
use crate::testing::{in_private_netns, subnet};

fn tuple(protocol: u8, from: &str, to: &str) -> FlowTuple {
    let from: SocketAddr = from.parse().unwrap();
    let to: SocketAddr = to.parse().unwrap();
    FlowTuple {
        source: from.ip(),
        destination: to.ip(),
        protocol,
        ports: (protocol != 1).then_some((from.port(), to.port())),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is one table of cases")]
fn only_connections_of_the_port_are_removed() {
    let client = "198.51.100.7:4000";
    let node = "192.0.2.1:53";
    let container = "10.88.0.3:5353";
    let direct = |protocol, from, to| Flow {
        original: tuple(protocol, from, to),
        reply: tuple(protocol, to, from),
    };
    let translated = |protocol, from, to, by, back| Flow {
        original: tuple(protocol, from, to),
        reply: tuple(protocol, by, back),
    };
    let before = |at: Option<&str>| Flows::BeforePublished {
        protocol: Transport::Udp,
        at: at.map(|at| at.parse().unwrap()),
        port: 53,
    };
    let to = Flows::To {
        protocol: Transport::Udp,
        port: 53,
        container: container.parse().unwrap(),
    };
    let of = Flows::Of("10.88.0.3".parse().unwrap());
    let early = direct(17, client, node);
    let published = translated(17, client, node, container, client);
    // A container that asks a name server elsewhere, with the address of the node.
    let masqueraded = translated(
        17,
        "10.88.0.3:4001",
        "203.0.113.9:53",
        "203.0.113.9:53",
        "192.0.2.1:4001",
    );
    for (name, flows, flow, wanted) in [
        ("early packet", before(None), early, true),
        (
            "early packet to this address",
            before(Some("192.0.2.1")),
            early,
            true,
        ),
        (
            "early packet to another address",
            before(Some("192.0.2.2")),
            early,
            false,
        ),
        (
            "another port",
            before(None),
            direct(17, client, "192.0.2.1:54"),
            false,
        ),
        (
            "another protocol",
            before(None),
            direct(6, client, node),
            false,
        ),
        ("no ports", before(None), direct(1, client, node), false),
        (
            "from the port",
            before(None),
            direct(17, node, client),
            false,
        ),
        ("already translated", before(None), published, false),
        ("a query of a container", before(None), masqueraded, false),
        ("to the container", to, published, true),
        (
            "to another port of it",
            to,
            translated(17, client, node, "10.88.0.3:5354", client),
            false,
        ),
        (
            "to another container",
            to,
            translated(17, client, node, "10.88.0.4:5353", client),
            false,
        ),
        (
            "by another protocol",
            to,
            translated(6, client, node, container, client),
            false,
        ),
        ("directly", to, direct(17, client, container), true),
        ("from the container", to, masqueraded, false),
        ("of the address, to it", of, published, true),
        ("of the address, from it", of, masqueraded, true),
        (
            "of the address, without ports",
            of,
            direct(1, "10.88.0.3:0", client),
            true,
        ),
        (
            "of another address",
            of,
            direct(17, "10.88.0.4:1", client),
            false,
        ),
    ] {
        assert_eq!(flows.include(&flow), wanted, "{name}");
    }
}

#[test]
fn connections_that_last_are_abandoned_with_the_address_that_they_lead_to() {
    let client = "198.51.100.7:4000";
    let node = "192.0.2.1:53";
    let translated = |protocol, by: &str| Flow {
        original: tuple(protocol, client, node),
        reply: tuple(protocol, by, client),
    };
    let subnets = ["10.88.0.0/24", "fd00:88::/64"].map(subnet);
    let in_use = BTreeSet::from(["10.88.0.4".parse().unwrap()]);
    let six = Flow {
        original: tuple(132, "[2001:db8::7]:4000", "[2001:db8::1]:53"),
        reply: tuple(132, "[fd00:88::3]:53", "[2001:db8::7]:4000"),
    };
    let masqueraded = Flow {
        original: tuple(17, "10.88.0.3:4001", "203.0.113.9:53"),
        reply: tuple(17, "203.0.113.9:53", "192.0.2.1:4001"),
    };
    let direct = Flow {
        original: tuple(17, "10.88.0.1:4001", "10.88.0.3:53"),
        reply: tuple(17, "10.88.0.3:53", "10.88.0.1:4001"),
    };
    for (name, flow, expected) in [
        ("of UDP", translated(17, "10.88.0.3:53"), true),
        ("of SCTP", translated(132, "10.88.0.3:53"), true),
        ("of IPv6", six, true),
        ("of TCP", translated(6, "10.88.0.3:53"), false),
        (
            "to an address in use",
            translated(17, "10.88.0.4:53"),
            false,
        ),
        ("to another subnet", translated(17, "10.89.0.3:53"), false),
        ("from a container", masqueraded, false),
        ("of a neighbour", direct, false),
    ] {
        assert_eq!(flow.is_abandoned(&subnets, &in_use), expected, "{name}");
    }
}

#[test]
fn connections_are_read_from_a_dump_of_the_kernel() {
    let dump = kept("conntrack-ip4");
    let flows: Vec<_> = messages(&dump)
        .filter_map(|message| Flow::read(message.body(), NftFamily::Ip4))
        .collect();
    let translated = Flows::To {
        protocol: Transport::Udp,
        port: 53,
        container: "10.88.0.3:5353".parse().unwrap(),
    };
    assert_eq!(flows.len(), 3);
    assert_eq!(
        flows.iter().filter(|flow| translated.include(flow)).count(),
        1
    );
    assert!(messages(&dump).all(|message| Flow::read(message.body(), NftFamily::Ip6).is_none()));
}

#[test]
fn connection_is_removed_once() {
    in_private_netns(|| {
        crate::nft::tables::tests::prepare();
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for socket in [&server, &other] {
            client.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        }
        let before = |socket: &UdpSocket| Flows::BeforePublished {
            protocol: Transport::Udp,
            at: None,
            port: socket.local_addr().unwrap().port(),
        };
        let mut conntrack = Conntrack::open().unwrap();
        assert_eq!(conntrack.remove(&[]).unwrap(), 0);
        assert_eq!(conntrack.remove(&[before(&server)]).unwrap(), 1);
        assert_eq!(conntrack.remove(&[before(&server)]).unwrap(), 0);
        assert_eq!(
            conntrack
                .remove(&[before(&server), before(&other)])
                .unwrap(),
            1
        );
        client.send_to(b"x", server.local_addr().unwrap()).unwrap();
        let of = Flows::Of("127.0.0.1".parse().unwrap());
        assert_eq!(conntrack.remove(&[of]).unwrap(), 1);
    });
}

#[test]
fn look_for_abandoned_connections_lists_only_those_that_are_translated() {
    in_private_netns(|| {
        crate::nft::tables::tests::prepare();
        let [container, other] =
            ["127.0.0.2:0", "127.0.0.3:0"].map(|at| UdpSocket::bind(at).unwrap());
        let to = container.local_addr().unwrap();
        let element = Element::Port {
            at: None,
            protocol: Transport::Udp,
            port: 8053,
            to: to.ip(),
            to_port: to.port(),
        };
        let change = ElementChange {
            family: NftFamily::Ip4,
            add: true,
            element,
        };
        let mut tables = NftTables::open(TableName::default()).unwrap();
        tables.change(&[change]).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"x", "127.0.0.1:8053").unwrap();
        client.send_to(b"x", other.local_addr().unwrap()).unwrap();
        let mut conntrack = Conntrack::open().unwrap();
        let count = |status| {
            let listed = conntrack.list(NftFamily::Ip4, status, |_| true).unwrap();
            messages(&listed).count()
        };
        assert_eq!([None, Some(DST_NAT)].map(count), [2, 1]);
        let subnets = [subnet("127.0.0.0/8")];
        for expected in [1, 0] {
            let removed = conntrack.remove_abandoned(&subnets, &BTreeSet::new());
            assert_eq!(removed.unwrap(), expected);
        }
        let listed = conntrack.list(NftFamily::Ip4, None, |_| true).unwrap();
        assert_eq!(messages(&listed).count(), 1, "the other one stays");
    });
}
