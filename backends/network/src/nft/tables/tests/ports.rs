//! Forged packets of a container on a pinned port, which has NET_RAW and NET_ADMIN in its namespace.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, bind,
    sendto, setsockopt, socket, sockopt,
};

use super::*;
use crate::netlink::Mac;
use crate::testing::hosts::{Host, LONG, SERVED, bind_again, inside, ip, set};

const NODE: [&str; 2] = ["10.88.0.1", "fd00:88::1"];
const FORGER: [&str; 2] = ["10.88.0.2", "fd00:88::2"];
const FORGER_MAC: &str = "02:42:0a:58:00:02";
/// A link-local address of the forger that it may use, from which routers are advertised.
const ROUTER: &str = "fe80::7";
/// An address of nobody, and one whose hardware address the node knows.
const NOBODY: [&str; 2] = ["10.88.0.99", "fd00:88::99"];
const KNOWN: &str = "fd00:88::98";
/// An address that the forger may use, and does not have yet.
const FREE: &str = "fd00:88::97";
/// A group that nobody has joined.
const GROUP: &str = "ff02::1234";
/// Time in which what is dropped would have arrived.
const QUIET: Duration = Duration::from_millis(300);
/// Kinds of messages of neighbour discovery.
const ADVERTISED_ROUTER: u8 = 134;
const ADVERTISED_NEIGHBOUR: u8 = 136;
/// Numbers in the header of IPv6: of ICMP and UDP; and of a message by which one joins a group.
const ICMP6: u8 = 58;
const UDP: u8 = 17;
const JOINED: u8 = 131;
/// Bytes before such a message in its packet: the header of options, with that of looking at the message, and two bytes of padding.
const LOOK_AT_IT: [u8; 8] = [ICMP6, 0, 5, 2, 0, 0, 1, 0];

/// A node with a bridge, and a container on it.
struct Wire {
    forger: File,
}

impl Wire {
    fn new() -> Self {
        ip("link set lo up");
        ip("link add sw0 type bridge");
        ip(&format!("addr add {}/24 dev sw0", NODE[0]));
        ip(&format!("addr add {}/64 dev sw0 nodad", NODE[1]));
        ip("link set sw0 up");
        for device in ["all", "sw0"] {
            set(&format!("ipv4/conf/{device}/rp_filter"), "0");
        }
        let forger = Host::new(
            NftFamily::Ip4,
            "port0",
            &format!("{}/24", FORGER[0]),
            NODE[0],
        );
        ip("link set port0 master sw0 up");
        let forger = forger.netns;
        inside(&forger, || {
            ip(&format!("link set eth0 address {FORGER_MAC}"));
            for address in [FORGER[1], ROUTER] {
                ip(&format!("addr add {address}/64 dev eth0 nodad"));
            }
        });
        Self { forger }
    }

    /// Returns whether the node gets a datagram that `send` makes the forger send.
    fn is_received(&self, family: usize, limit: Duration, send: impl Fn() + Sync) -> bool {
        let node: IpAddr = NODE[family].parse().unwrap();
        let server = bind_again(|| UdpSocket::bind((node, SERVED)));
        let pause = Duration::from_millis(50);
        server.set_read_timeout(Some(pause)).unwrap();
        let mut buffer = [0; 64];
        let end = Instant::now() + limit;
        while Instant::now() < end {
            inside(&self.forger, &send);
            if server.recv_from(&mut buffer).is_ok() {
                return true;
            }
        }
        false
    }

    fn inside(&self, command: &str) {
        inside(&self.forger, || ip(command));
    }
}

/// Sends a datagram to the node, from one of the addresses of the sender.
fn send_from(source: &str, family: usize) {
    let source: IpAddr = source.parse().unwrap();
    let node: IpAddr = NODE[family].parse().unwrap();
    let socket = UdpSocket::bind((source, 0)).unwrap();
    // It fails while the sender asks for the node's hardware address.
    let _ = socket.send_to(b"datagram", (node, SERVED));
}

/// Sends a datagram of IPv4 to the node whose sender is whoever is asked for.
fn send_forged(source: &str) {
    let socket = raw(AddressFamily::Inet, SockProtocol::Raw);
    let node: Ipv4Addr = NODE[0].parse().unwrap();
    let source: Ipv4Addr = source.parse().unwrap();
    // A header of IP without options, whose length and checksum the kernel sets, and one of UDP without checksum.
    let mut packet: Vec<u8> = vec![0x45, 0, 0, 0, 0, 7, 0, 0, 64, 17, 0, 0];
    packet.extend(source.octets());
    packet.extend(node.octets());
    packet.extend(7_u16.to_be_bytes());
    packet.extend(SERVED.to_be_bytes());
    packet.extend([0, 12, 0, 0]);
    packet.extend(b"data");
    let to = SockaddrIn::from(SocketAddrV4::new(node, 0));
    let _ = sendto(socket.as_raw_fd(), &packet, &to, MsgFlags::empty());
}

/// Sends a message of neighbour discovery to the node, as a neighbour does.
fn send_discovery(source: &str, kind: u8, body: &[u8]) {
    let socket = raw(AddressFamily::Inet6, SockProtocol::IcmpV6);
    setsockopt(&socket, sockopt::Ipv6Ttl, &255).unwrap();
    let scope = eth0();
    let address = |text: &str, scope: u32| -> SockaddrIn6 {
        SocketAddrV6::new(text.parse().unwrap(), 0, 0, scope).into()
    };
    let scope = if source == ROUTER { scope } else { 0 };
    bind(socket.as_raw_fd(), &address(source, scope)).unwrap();
    // The kernel sets the checksum.
    let mut message = vec![kind, 0, 0, 0];
    message.extend(body);
    let to = address(NODE[1], 0);
    sendto(socket.as_raw_fd(), &message, &to, MsgFlags::empty()).unwrap();
}

/// The index of the forger's device.
fn eth0() -> u32 {
    let shown = run("ip", "iproute2", &["-o", "link", "show", "eth0"]);
    shown.split(':').next().unwrap().parse().unwrap()
}

/// Sends a packet of IPv6 from `::`, as before one has an address: options, and a payload of an even length with its sum at an offset.
fn send_from_nobody(to: &str, protocol: u8, options: &[u8], mut payload: Vec<u8>, sum_at: usize) {
    let to: Ipv6Addr = to.parse().unwrap();
    let length = u16::try_from(payload.len()).unwrap();
    // The addresses, the length and the protocol are summed too.
    let mut summed = to.octets().to_vec();
    summed.extend(length.to_be_bytes());
    summed.extend([0, protocol]);
    summed.extend(&payload);
    let words = summed.chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    let sum = !u16::try_from(folded).unwrap();
    payload[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
    let first = if options.is_empty() { protocol } else { 0 };
    let mut packet: Vec<u8> = vec![0x60, 0, 0, 0];
    let behind = u16::try_from(options.len() + payload.len()).unwrap();
    packet.extend(behind.to_be_bytes());
    packet.extend([first, 1]);
    packet.extend([0; 16]);
    packet.extend(to.octets());
    packet.extend(options);
    packet.extend(payload);
    let scope = if to.is_multicast() { eth0() } else { 0 };
    let to = SockaddrIn6::from(SocketAddrV6::new(to, 0, 0, scope));
    let socket = raw(AddressFamily::Inet6, SockProtocol::Raw);
    // It fails while the node's hardware address is asked for.
    let _ = sendto(socket.as_raw_fd(), &packet, &to, MsgFlags::empty());
}

/// A datagram from nobody to the node.
fn send_datagram_from_nobody() {
    let mut datagram = 7_u16.to_be_bytes().to_vec();
    datagram.extend(SERVED.to_be_bytes());
    datagram.extend([0, 12, 0, 0]);
    datagram.extend(b"data");
    send_from_nobody(NODE[1], UDP, &[], datagram, 6);
}

/// Returns whether the forger is told that an address is taken which it is about to use: the node has it. Its question comes from `::`.
fn is_duplicate_found(wire: &Wire, address: &str) -> bool {
    ip(&format!("addr add {address}/128 dev sw0 nodad"));
    wire.inside(&format!("addr add {address}/64 dev eth0"));
    let words = ["-6", "addr", "show", "dev", "eth0", "to", address];
    let end = Instant::now() + LONG;
    let found = loop {
        let shown = inside(&wire.forger, || run("ip", "iproute2", &words));
        if shown.contains("dadfailed") {
            break true;
        }
        if !shown.contains("tentative") {
            break false;
        }
        assert!(Instant::now() < end, "{address} is not decided: {shown}");
        sleep(Duration::from_millis(20));
    };
    wire.inside(&format!("addr del {address}/64 dev eth0"));
    ip(&format!("addr del {address}/128 dev sw0"));
    found
}

fn raw(family: AddressFamily, protocol: SockProtocol) -> OwnedFd {
    socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap()
}

/// An option of neighbour discovery with the forger's hardware address.
fn link_layer(kind: u8) -> Vec<u8> {
    let mac: Mac = FORGER_MAC.parse().unwrap();
    let mut option = vec![kind, 1];
    option.extend(mac.bytes());
    option
}

/// Looks until it is so, or for as long as it takes to be sure that it is not.
fn comes_true(is_expected: bool, mut look: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + if is_expected { LONG } else { QUIET };
    while Instant::now() < end {
        if look() {
            return true;
        }
        sleep(Duration::from_millis(20));
    }
    false
}

fn shows(words: &[&str], text: &str) -> bool {
    run("ip", "iproute2", words).contains(text)
}

/// Checks that all that the forger tries succeeds, or fails, as `succeeds` says.
fn forge(wire: &Wire, succeeds: bool) {
    let limit = if succeeds { LONG } else { QUIET };
    let is = |name: &str, outcome: bool| assert_eq!(outcome, succeeds, "{name}");
    is(
        "address of IPv4 of a neighbour",
        wire.is_received(0, limit, || send_forged("10.88.0.3")),
    );
    is(
        "address of IPv4 from beyond",
        wire.is_received(0, limit, || send_forged("192.0.2.9")),
    );
    wire.inside(&format!("addr add {}/64 dev eth0 nodad", NOBODY[1]));
    is(
        "address of IPv6",
        wire.is_received(1, limit, || send_from(NOBODY[1], 1)),
    );
    wire.inside(&format!("addr del {}/64 dev eth0", NOBODY[1]));
    is(
        "sender of IPv6 that is none",
        wire.is_received(1, limit, send_datagram_from_nobody),
    );
    is(
        "question of a neighbour that is about to use an address",
        is_duplicate_found(wire, NOBODY[1]),
    );
    wire.inside("link set eth0 address 02:42:0a:58:00:77");
    is(
        "hardware address",
        wire.is_received(0, limit, || send_from(FORGER[0], 0)),
    );
    wire.inside(&format!("link set eth0 address {FORGER_MAC}"));
    forge_discovery(wire, succeeds);
}

fn forge_discovery(wire: &Wire, succeeds: bool) {
    let is = |name: &str, outcome: bool| assert_eq!(outcome, succeeds, "{name}");
    // The kernel of the forger answers for what it takes as its own.
    wire.inside(&format!("addr add {}/32 dev eth0", NOBODY[0]));
    let node = UdpSocket::bind("0.0.0.0:0").unwrap();
    let is_learnt = || {
        let _ = node.send_to(b"datagram", (NOBODY[0], SERVED));
        shows(&["neigh", "show", NOBODY[0]], FORGER_MAC)
    };
    is("answer of ARP", comes_true(succeeds, is_learnt));
    wire.inside(&format!("addr del {}/32 dev eth0", NOBODY[0]));
    ip("neigh flush dev sw0");
    ip(&format!(
        "neigh replace {KNOWN} lladdr 02:00:00:00:00:98 dev sw0 nud stale"
    ));
    // The flag that replaces what is known, the address, and the forger's hardware address.
    let mut body = 0x2000_0000_u32.to_be_bytes().to_vec();
    body.extend(KNOWN.parse::<Ipv6Addr>().unwrap().octets());
    body.extend(link_layer(2));
    let is_replaced = || {
        inside(&wire.forger, || {
            send_discovery(FORGER[1], ADVERTISED_NEIGHBOUR, &body);
        });
        shows(&["neigh", "show", KNOWN], FORGER_MAC)
    };
    is("advertised neighbour", comes_true(succeeds, is_replaced));
    ip(&format!("neigh del {KNOWN} dev sw0"));
    let is_router = || {
        let mut body: Vec<u8> = vec![64, 0];
        body.extend(1800_u16.to_be_bytes());
        body.extend([0; 8]);
        body.extend(link_layer(1));
        inside(&wire.forger, || {
            send_discovery(ROUTER, ADVERTISED_ROUTER, &body);
        });
        shows(&["-6", "route", "show", "default"], ROUTER)
    };
    is("advertised router", comes_true(succeeds, is_router));
    if succeeds {
        ip("-6 route flush default");
    }
}

/// Checks that a container that forges nothing stays connected.
fn stay_connected(wire: &Wire) {
    assert!(
        is_duplicate_found(wire, FREE),
        "its own questions are heard"
    );
    let join = || {
        let mut message = vec![JOINED, 0, 0, 0, 0, 0, 0, 0];
        message.extend(GROUP.parse::<Ipv6Addr>().unwrap().octets());
        send_from_nobody(GROUP, ICMP6, &LOOK_AT_IT, message, 2);
    };
    let is_joined = || {
        inside(&wire.forger, join);
        run("bridge", "iproute2", &["mdb", "show"]).contains(GROUP)
    };
    assert!(comes_true(true, is_joined), "a group is joined");
    // The bridge would remember it.
    ip("link set sw0 type bridge mcast_snooping 0");
    ip("link set sw0 type bridge mcast_snooping 1");
    for family in NftFamily::ALL {
        let index = usize::from(family == NftFamily::Ip6);
        let node = Host::node(family);
        let forger = Host::serving(wire.forger.try_clone().unwrap(), family);
        ip("neigh flush dev sw0");
        wire.inside("neigh flush dev eth0");
        let to = |address: &str| SocketAddr::new(address.parse().unwrap(), SERVED);
        for (client, to, server) in [
            (&forger, to(NODE[index]), &node),
            (&node, to(FORGER[index]), &forger),
        ] {
            assert!(client.tcp(to, server, LONG).is_some(), "TCP to {to}");
            assert!(client.udp(to, server, LONG).is_some(), "UDP to {to}");
        }
    }
}

fn pins() -> BTreeSet<Element> {
    let addresses = [FORGER[0], FORGER[1], ROUTER, FREE].map(|text| text.parse().unwrap());
    port_pins(&bridge("port0"), FORGER_MAC.parse().unwrap(), &addresses)
}

#[test]
fn forged_packets_of_a_pinned_port_are_dropped() {
    in_private_netns(|| {
        let wire = Wire::new();
        let mut tables = NftTables::open(TableName::default()).unwrap();
        stay_connected(&wire);
        forge(&wire, true);
        let other = port_pins(
            &bridge("port1"),
            "02:42:0a:58:00:03".parse().unwrap(),
            &["10.88.0.3".parse().unwrap()],
        );
        // Pins of another port are no matter for this one.
        tables.restore(NftFamily::Bridge, &other).unwrap();
        forge(&wire, true);
        tables.restore(NftFamily::Bridge, &pins()).unwrap();
        stay_connected(&wire);
        forge(&wire, false);
        // A flush by others, and what mends it.
        nft(&["flush", "ruleset"]);
        let repair = tables.restore(NftFamily::Bridge, &pins()).unwrap();
        assert_eq!(repair, Repair::Whole);
        forge(&wire, false);
        stay_connected(&wire);
        // Without its pins the port is as any other one.
        let changes = pins().into_iter();
        let changes: Vec<_> = changes
            .map(|element| change(NftFamily::Bridge, false, element))
            .collect();
        tables.change(&changes).unwrap();
        forge(&wire, true);
    });
}
