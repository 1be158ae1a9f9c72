//! On this kernel, in network namespaces of their own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use nix::errno::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{SendFlags, getsockname, sendto};

use super::uapi::{NLM_F_CAPPED, NLMSG_ERROR};
use super::*;
use crate::testing::in_private_netns;

mod round_trip;
mod settings;

/// Index of the loopback device in every namespace.
const LO: u32 = 1;
const MISSING: u32 = 9_999;

fn socket() -> Socket {
    Socket::open(Family::Route).unwrap()
}

fn name(text: &str) -> LinkName {
    LinkName::new(text).unwrap()
}

fn named(text: &str) -> LinkRef {
    name(text).into()
}

fn found(socket: &mut Socket, text: &str) -> Link {
    find_link(socket, &named(text)).unwrap().unwrap()
}

fn prefix(address: &str, length: u8) -> IpPrefix {
    IpPrefix::new(address.parse().unwrap(), length).unwrap()
}

fn bridge(text: &str) -> Bridge {
    Bridge {
        link: NewLink::new(name(text)),
    }
}

/// A pair whose other end is `eth0` of a new namespace. The namespace goes with the value, and both ends with the namespace.
fn pair(master: Option<u32>) -> Veth {
    Veth {
        link: NewLink::new(name("swt0")),
        master,
        peer: NewLink::new(name("eth0")),
        peer_namespace: in_private_netns(NetNs::current).unwrap(),
    }
}

fn rule(from: IpPrefix) -> Rule {
    Rule {
        from,
        to: None,
        arriving_by: Some(name("eth0")),
        table: 100,
        priority: 1_000,
    }
}

/// Attaches a namespace to the bridge `swtbr`, in two batches: the pair, flags of the port and addresses of the bridge here; addresses,
/// routes and neighbours of both families inside. Returns the socket inside.
fn attach(host: &mut Socket, veth: &Veth) -> Socket {
    let master = found(host, "swtbr").index;
    let flags = PortFlags {
        hairpin: Some(true),
        isolated: Some(true),
        ..PortFlags::default()
    };
    let gateway: [IpAddr; 2] = [
        Ipv4Addr::new(10, 88, 0, 1).into(),
        "fd00:5::1".parse().unwrap(),
    ];
    let mut requests = vec![
        veth.create(),
        set_port(&named("swt0"), flags),
        disable_link_local(&named("swt0")),
    ];
    for (address, length) in gateway.into_iter().zip([24, 64]) {
        let prefix = IpPrefix::new(address, length).unwrap();
        requests.push(add_address(&Address {
            link: master,
            prefix,
        }));
    }
    host.run(&requests).unwrap();

    let mac = found(host, "swtbr").mac.unwrap();
    let mut inside = Socket::open_in(&veth.peer_namespace, Family::Route).unwrap();
    let link = found(&mut inside, "eth0").index;
    let mut requests = vec![set_up(&LinkRef::Index(LO)), set_up(&LinkRef::Index(link))];
    for (prefix, gateway, all) in [
        (prefix("10.88.0.2", 24), gateway[0], IpPrefix::ALL_IPV4),
        (prefix("fd00:5::2", 64), gateway[1], IpPrefix::ALL_IPV6),
    ] {
        requests.push(add_address(&Address { link, prefix }));
        requests.push(add_route(&Route::by_gateway(all, gateway, link)).unwrap());
        requests.push(add_neighbour(link, gateway, mac));
    }
    inside.run(&requests).unwrap();
    inside
}

fn veth_with_all(master: u32) -> Veth {
    let mut veth = pair(Some(master));
    veth.link.group = 77;
    veth.peer.mtu = Some(1_400);
    veth.link.mtu = Some(1_400);
    veth.peer.mac = Some(Mac::of(Ipv4Addr::new(10, 88, 0, 2)));
    veth
}

fn fixed_mac(text: &str) -> Option<Mac> {
    Some(text.parse().unwrap())
}

#[test]
fn container_is_attached_with_what_was_asked_and_packets_pass() {
    in_private_netns(|| {
        let mut host = socket();
        let mut bridge = bridge("swtbr");
        bridge.link.mac = fixed_mac("02:00:00:00:00:01");
        host.run_one(&bridge.create()).unwrap();
        let master = found(&mut host, "swtbr");
        assert_eq!(master.kind.as_deref(), Some("bridge"));
        assert!(master.is_up && master.mac == fixed_mac("02:00:00:00:00:01"));

        let veth = veth_with_all(master.index);
        let mut inside = attach(&mut host, &veth);
        let port = found(&mut host, "swt0");
        assert_eq!(
            (port.kind.as_deref(), port.mtu, port.group),
            (Some("veth"), 1_400, 77)
        );
        assert_eq!((port.master, port.is_up), (Some(master.index), true));
        assert!(port.port.is_some());
        let eth0 = found(&mut inside, "eth0");
        assert_eq!(
            (eth0.mac, eth0.mtu, eth0.is_up),
            (veth.peer.mac, 1_400, true)
        );
        assert_eq!((eth0.master, eth0.port), (None, None));

        let addresses = list_addresses(&mut inside).unwrap();
        for prefix in [prefix("10.88.0.2", 24), prefix("fd00:5::2", 64)] {
            let address = Address {
                link: eth0.index,
                prefix,
            };
            let state = AddressState::Usable;
            let held = HeldAddress { address, state };
            assert!(addresses.contains(&held), "{prefix}: {addresses:?}");
        }
        let routes = list_routes(&mut inside).unwrap();
        let gateway = Ipv4Addr::new(10, 88, 0, 1).into();
        let expected = Route::by_gateway(IpPrefix::ALL_IPV4, gateway, eth0.index);
        assert!(routes.contains(&expected), "{routes:?}");
        let neighbours = list_neighbours(&mut inside).unwrap();
        let expected = Neighbour {
            link: eth0.index,
            address: gateway,
            mac: master.mac.unwrap(),
            is_permanent: true,
        };
        assert!(neighbours.contains(&expected), "{neighbours:?}");

        for (here, there) in [
            ("10.88.0.1:0", "10.88.0.2:0"),
            ("[fd00:5::1]:0", "[fd00:5::2]:0"),
        ] {
            assert!(
                reaches(&veth.peer_namespace, here, there),
                "{there} to {here}"
            );
        }
    });
}

/// Returns whether a datagram from an address of the namespace arrives at an address here. A port of a bridge forwards soon, not at once.
fn reaches(namespace: &NetNs, here: &str, there: &str) -> bool {
    let receiver = UdpSocket::bind(here).unwrap();
    receiver
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let to = receiver.local_addr().unwrap();
    let sender = namespace.run(|| UdpSocket::bind(there).unwrap()).unwrap();
    (0..100).any(|_| {
        sender.send_to(b"hello", to).unwrap();
        receiver.recv(&mut [0; 16]).is_ok_and(|length| length == 5)
    })
}

#[test]
fn deletion_of_what_is_gone_is_success() {
    let four = prefix("10.9.9.9", 24);
    let six = prefix("fd00:9::9", 64);
    let mut cases = vec![
        ("device by name", delete_link(&named("swt-none"))),
        ("device by index", delete_link(&LinkRef::Index(MISSING))),
        ("devices of a group", delete_links_of_group(7_777).unwrap()),
        ("set down", set_down(&named("swt-none"))),
        ("limit of a device", delete_limit(LO)),
        ("limit of no device", delete_limit(MISSING)),
    ];
    for prefix in [four, six] {
        for link in [LO, MISSING] {
            let address = prefix.address();
            cases.push(("address", delete_address(&Address { link, prefix })));
            cases.push(("neighbour", delete_neighbour(link, address)));
            cases.push(("route", delete_route(&Route::direct(prefix, link)).unwrap()));
        }
        cases.push(("rule", delete_rule(&rule(prefix)).unwrap()));
    }
    in_private_netns(|| {
        let mut socket = socket();
        socket.run_one(&set_up(&LinkRef::Index(LO))).unwrap();
        for (case, request) in &cases {
            let deleted = socket.run_one(request);
            assert!(deleted.is_ok(), "{case}: {:?}", deleted.unwrap_err());
        }
    });
}

#[test]
fn refusal_names_what_was_asked_and_later_requests_are_carried_out() {
    in_private_netns(|| {
        let mut socket = socket();
        let address = Address {
            link: LO,
            prefix: prefix("10.9.9.9", 24),
        };
        let again = rule(prefix("10.9.9.9", 24));
        let made = [
            bridge("swtbr").create(),
            add_address(&address),
            add_rule(&again).unwrap(),
        ];
        socket.run(&made).unwrap();

        let mut small = bridge("swt-small");
        small.link.mtu = Some(10);
        let mut taken = pair(None);
        taken.peer.name = name("lo");
        let mac = fixed_mac("02:00:00:00:00:01").unwrap();
        let cases = [
            (bridge("swtbr").create(), Errno::EEXIST, "swtbr"),
            (taken.create(), Errno::EEXIST, "swt0"),
            (small.create(), Errno::EINVAL, "swt-small"),
            (set_master(&named("swtbr"), MISSING), Errno::EINVAL, "9999"),
            (
                set_port(&LinkRef::Index(LO), PortFlags::default()),
                Errno::EOPNOTSUPP,
                "device 1",
            ),
            (set_up(&named("swt-none")), Errno::ENODEV, "swt-none"),
            (add_address(&address), Errno::EEXIST, "10.9.9.9/24"),
            (add_rule(&again).unwrap(), Errno::EEXIST, "10.9.9.9/24"),
            (
                add_neighbour(MISSING, address.prefix.address(), mac),
                Errno::ENODEV,
                "10.9.9.9",
            ),
        ];
        for (index, (request, errno, object)) in cases.into_iter().enumerate() {
            let later = format!("swt-later{index}");
            let refused = socket.run(&[request, bridge(&later).create()]).unwrap_err();
            assert_eq!(refused.refusal(), Some(errno), "{refused}");
            let text = refused.to_string();
            assert!(
                text.starts_with("cannot ") && text.contains(object),
                "{text}"
            );
            assert_eq!(found(&mut socket, &later).name, later);
        }
        let refused = socket.run_one(&small.create()).unwrap_err();
        assert!(
            matches!(&refused, NetlinkError::Refused { text: Some(_), .. }),
            "the kernel says more than a number: {refused:?}"
        );
        assert_eq!(find_link(&mut socket, &named("swt-small")).unwrap(), None);
        assert_eq!(find_link(&mut socket, &named("swt0")).unwrap(), None);
    });
}

#[test]
fn addresses_of_two_families_are_never_in_one_request() {
    let [four, six] = [prefix("10.9.9.0", 24), prefix("fd00:9::", 64)];
    for (to, other) in [(four, six), (six, four)] {
        let other = other.address();
        let by_gateway = Route::by_gateway(to, other, LO);
        let with_source = Route {
            source: Some(other),
            ..Route::direct(to, LO)
        };
        for route in [by_gateway, with_source] {
            assert!(
                matches!(add_route(&route), Err(NetlinkError::Value { .. })),
                "{route:?}"
            );
            assert!(
                matches!(delete_route(&route), Err(NetlinkError::Value { .. })),
                "{route:?}"
            );
        }
        let rule = Rule {
            to: Some(IpPrefix::host(other)),
            ..rule(to)
        };
        assert!(
            matches!(add_rule(&rule), Err(NetlinkError::Value { .. })),
            "{rule:?}"
        );
        assert!(
            matches!(delete_rule(&rule), Err(NetlinkError::Value { .. })),
            "{rule:?}"
        );
    }
    assert!(matches!(
        delete_links_of_group(0),
        Err(NetlinkError::Value { .. })
    ));
}

#[test]
fn list_of_many_datagrams_is_whole_and_a_group_is_deleted_at_once() {
    in_private_netns(|| {
        let mut socket = socket();
        let all: Vec<_> = (0..200)
            .map(|index| {
                let mut bridge = bridge(&format!("swt{index}"));
                bridge.link.group = 77;
                bridge.create()
            })
            .collect();
        let refused = socket.run(&all).unwrap_err();
        assert!(matches!(
            refused,
            NetlinkError::TooMany {
                requests: 200,
                most: 128
            }
        ));
        assert_eq!(
            list_links(&mut socket)
                .unwrap()
                .iter()
                .filter(|link| link.group == 77)
                .count(),
            0
        );
        for part in all.chunks(100) {
            socket.run(part).unwrap();
        }
        let links = list_links(&mut socket).unwrap();
        let mut names: Vec<_> = links
            .iter()
            .filter(|link| link.group == 77)
            .map(|link| &link.name)
            .collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 200);
        socket.run_one(&delete_links_of_group(77).unwrap()).unwrap();
        assert!(
            list_links(&mut socket)
                .unwrap()
                .iter()
                .all(|link| link.group == 0)
        );
        assert!(socket.run(&[]).unwrap().is_empty());
    });
}

#[test]
fn answer_that_the_kernel_has_not_sent_is_no_answer() {
    in_private_netns(|| {
        let mut socket = Socket::open(Family::Route).unwrap();
        let address = SocketAddrNetlink::try_from(getsockname(&socket).unwrap()).unwrap();
        // A refusal of the next request, as a process of the namespace can send it.
        let mut forged = [36_u32.to_ne_bytes(), [0; 4], 1_u32.to_ne_bytes(), [0; 4]].concat();
        forged[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        forged[6..8].copy_from_slice(&NLM_F_CAPPED.to_ne_bytes());
        forged.extend((-1_i32).to_ne_bytes());
        forged.extend([0; 16]);
        let other = Socket::open(Family::Route).unwrap();
        sendto(&other, &forged, SendFlags::empty(), &address).unwrap();
        socket.run_one(&bridge("swtbr").create()).unwrap();
        assert!(found(&mut socket, "swtbr").is_up);
    });
}

#[test]
fn rules_of_both_families_are_added_and_deleted() {
    in_private_netns(|| {
        let mut socket = socket();
        let host = IpPrefix::host(Ipv6Addr::LOCALHOST.into());
        for prefix in [
            prefix("10.9.9.9", 24),
            IpPrefix::ALL_IPV4,
            prefix("fd00:9::9", 64),
            host,
        ] {
            let rule = rule(prefix);
            // It does not stay: the kernel takes a rule for all packets for one that it has for some of them.
            for _ in 0..2 {
                let requests = [add_rule(&rule), delete_rule(&rule)].map(Result::unwrap);
                socket.run(&requests).unwrap();
            }
        }
    });
}
