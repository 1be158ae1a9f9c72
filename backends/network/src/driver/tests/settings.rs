//! Many ports, limits of bandwidth, IPv6 that is disabled, a device that is no bridge, and what the kernel has.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use nix::sys::socket::sockopt::Ipv6MulticastHops;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendto, setsockopt,
    socket,
};

use super::*;
use crate::netlink::{IpFamily, is_forwarding, would_ignore_routers};
use crate::testing::hosts::set;

#[test]
fn hundreds_of_ports_are_published_for_one_container() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        let ports: Vec<_> = (20_000..20_400).flat_map(both).collect();
        let container = Container::with_ports("a", &ports);
        let attached = node.driver.attach(&container.request).unwrap();
        let here = Host::node(NftFamily::Ip4);
        let server = container.serving(NftFamily::Ip4);
        for number in [20_000, 20_399] {
            let to = SocketAddr::new([127, 0, 0, 1].into(), number);
            assert!(here.tcp(to, &server, LONG).is_some(), "{number}");
        }
        node.driver
            .detach(&container.attachment(Some(&attached)))
            .unwrap();
        let left = elements_of(NftFamily::Ip6);
        assert!(
            !left
                .iter()
                .any(|element| matches!(element, Element::Port { .. })),
            "{left:?}"
        );
    });
}

#[test]
fn limits_are_on_both_directions_and_go_with_the_container() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let mut container = Container::new("a");
        let limit = |bits_per_second| {
            Some(LimitBits {
                bits_per_second,
                burst_bits: 800_000,
            })
        };
        container.request.limits = Limits {
            into: limit(8_000_000),
            out: limit(16_000_000),
        };
        let attached = node.driver.attach(&container.request).unwrap();
        let shown = run("tc", "iproute2", &["qdisc", "show"]);
        for text in ["rate 8Mbit", "rate 16Mbit", "qdisc ingress"] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        let here = Host::node(NftFamily::Ip4);
        let server = container.serving(NftFamily::Ip4);
        let to = SocketAddr::new(address(&attached, NftFamily::Ip4), SERVED);
        assert!(here.tcp(to, &server, LONG).is_some());
        // As after a kill: the devices are there, and are replaced.
        container.request.addresses = attached.addresses.iter().map(|one| one.address).collect();
        node.driver.attach(&container.request).unwrap();
        node.driver
            .detach(&container.attachment(Some(&attached)))
            .unwrap();
        let shown = run("tc", "iproute2", &["qdisc", "show"]);
        assert!(!shown.contains("16Mbit"), "{shown}");
        assert!(!links().contains("ifb"), "{}", links());
    });
}

#[test]
fn ipv6_that_the_namespaces_have_disabled_is_enabled_for_their_addresses() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        let container = Container::new("a");
        inside(&container.netns, || {
            for name in ["all", "default"] {
                let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
                fs::write(path, "1").unwrap();
            }
        });
        node.driver.attach(&container.request).unwrap();
        let here = Host::node(NftFamily::Ip6);
        let server = container.serving(NftFamily::Ip6);
        let to = SocketAddr::new("fd00:88::1".parse().unwrap(), SERVED);
        assert!(server.tcp(to, &here, LONG).is_some());
    });
}

#[test]
fn kernel_has_what_the_driver_needs() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        node.driver.tables.probe(&NftFamily::ALL).unwrap();
        assert!(!links().contains("probe"), "{}", links());
        assert!(elements_of(NftFamily::Ip4).is_empty());
    });
}

#[test]
fn device_of_another_kind_is_no_bridge() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        ip("link add swtest0 type veth peer name swtest1");
        let container = Container::new("a");
        let attached = node.driver.attach(&container.request).map(drop);
        for result in [attached, node.driver.check_device()] {
            let error = result.unwrap_err();
            assert!(error.to_string().contains("of the kind veth"), "{error}");
        }
        assert!(node.in_use().is_empty());
        ip("link del swtest0");
        node.driver.check_device().unwrap();
        node.driver.attach(&container.request).unwrap();
        node.driver.check_device().unwrap();
    });
}

#[test]
fn no_bridge_is_made_for_a_container_that_is_gone() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let mut container = Container::new("a");
        container.request.netns = "/nowhere/netns".into();
        let error = node.driver.attach(&container.request).unwrap_err();
        assert!(error.to_string().contains("/nowhere/netns"), "{error}");
        assert!(error.is_undone() && node.in_use().is_empty());
        assert!(!links().contains("swtest0"), "{}", links());
    });
}

#[test]
fn bridge_that_was_there_before_gets_the_mtu_that_is_set() {
    in_private_netns(|| {
        ip("link add swtest0 mtu 1500 type bridge");
        for (mtu, shown) in [(None, 1500), (Some(1400), 1400), (Some(1460), 1460)] {
            let node = Node::with(&SUBNETS, |settings| settings.mtu = mtu);
            node.driver.attach(&Container::new("a").request).unwrap();
            let bridge = run("ip", "iproute2", &["link", "show", "swtest0"]);
            assert!(bridge.contains(&format!(" mtu {shown} ")), "{bridge}");
        }
    });
}

/// The kernel forgets what routers have told an interface as soon as it forwards, unless it is set to listen all the same.
#[test]
fn node_keeps_what_it_learns_from_routers() {
    let learnt = " valid_lft 1000 preferred_lft 1000";
    for (accept_ra, lifetime, subnets, is_refused) in [
        ("1", learnt, &SUBNETS[..], true),
        ("1", learnt, &SUBNETS[1..], true),
        ("2", learnt, &SUBNETS[..], false),
        // Programs of the node listen to routers.
        ("0", learnt, &SUBNETS[..], false),
        ("1", "", &SUBNETS[..], false),
        ("1", learnt, &SUBNETS[..1], false),
    ] {
        in_private_netns(|| {
            let node = Node::new(subnets);
            set("ipv6/conf/all/forwarding", "0");
            ip("link add uplink type veth peer name router");
            ip("link set router up");
            ip("link set uplink up");
            set("ipv6/conf/uplink/accept_ra", accept_ra);
            ip(&format!(
                "addr add 2001:db8:5::7/64 dev uplink nodad{lifetime}"
            ));
            assert_eq!(node.driver.keep_routers().is_err(), is_refused);
            let attached = node.driver.attach(&Container::new("a").request);
            let forwards = is_forwarding(IpFamily::V6).unwrap();
            match attached {
                Ok(_) => {
                    assert!(!is_refused, "{accept_ra} {lifetime:?}");
                    assert_eq!(forwards, subnets.contains(&SUBNETS[1]));
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(is_refused && text.contains("uplink/accept_ra=2"), "{text}");
                    assert!(!forwards && node.in_use().is_empty());
                    assert!(!Path::new("/proc/sys/net/ipv4/conf/swtest0").exists());
                    set("ipv6/conf/uplink/accept_ra", "2");
                    node.driver.attach(&Container::new("b").request).unwrap();
                }
            }
        });
    }
}

/// What the kernel says of the addresses of IPv6 of the bridge.
fn of_bridge() -> String {
    run(
        "ip",
        "iproute2",
        &["-6", "addr", "show", "dev", "swtest0", "scope", "global"],
    )
}

/// As after a restart of the daemon. With forwarding switched off by hand the node has learnt routes, which it keeps; a bridge that was there
/// before is used for its IPv4 all the same, and gets back the addresses that others have taken from it.
#[test]
fn bridge_with_ipv6_is_used_after_forwarding_was_switched_off() {
    type Change = fn();
    let [dual, six] = [&SUBNETS[..], &SUBNETS[1..]];
    let none: Change = || {};
    let set_down: Change = || {
        ip("link set swtest0 down");
        ip("link set swtest0 up");
        assert!(of_bridge().contains("fd00:88::1/64"), "{}", of_bridge());
    };
    let lose: Change = || {
        set("ipv6/conf/all/keep_addr_on_down", "-1");
        ip("link set swtest0 down");
        ip("link set swtest0 up");
        assert!(of_bridge().is_empty(), "{}", of_bridge());
    };
    let take: Change = || ip("addr del fd00:88::1/64 dev swtest0");
    // As plugins leave it.
    let unmark: Change = || set("ipv6/conf/swtest0/keep_addr_on_down", "0");
    let never: Change = || {
        set("ipv6/conf/swtest0/keep_addr_on_down", "0");
        ip("addr del fd00:88::1/64 dev swtest0");
    };
    // By a default of the node for all devices.
    let never_but_kept: Change = || {
        set("ipv6/conf/swtest0/keep_addr_on_down", "1");
        ip("addr del fd00:88::1/64 dev swtest0");
    };
    let delete: Change = || ip("link del swtest0");
    for (case, subnets, accept_ra, change, forwards) in [
        ("as it was", dual, "1", none, Some(false)),
        ("listens always", dual, "2", none, Some(true)),
        ("never listens", dual, "0", none, Some(true)),
        ("set down and up", dual, "1", set_down, Some(false)),
        ("loses addresses so", dual, "1", lose, Some(false)),
        ("address taken", dual, "1", take, Some(false)),
        ("of plugins", dual, "1", unmark, Some(false)),
        // As a bridge for which nothing was ever forwarded.
        ("never forwarded", dual, "1", never, None),
        ("never, and keeps all", dual, "1", never_but_kept, None),
        ("deleted", dual, "1", delete, None),
        // Its containers would reach nothing beyond the node.
        ("IPv6 alone", six, "1", none, None),
        ("IPv6 alone, set down and up", six, "1", set_down, None),
        ("IPv6 alone, listens always", six, "2", none, Some(true)),
    ] {
        in_private_netns(|| {
            let node = Node::new(subnets);
            let first = Container::new("a");
            let before = node.driver.attach(&first.request).unwrap();
            set("ipv6/conf/all/forwarding", "0");
            ip("link add uplink type veth peer name router");
            ip("link set router up");
            ip("link set uplink up");
            set("ipv6/conf/uplink/accept_ra", accept_ra);
            ip("addr add 2001:db8:5::7/64 dev uplink nodad valid_lft 1000 preferred_lft 1000");
            change();
            let next = node.next_driver();
            adopt(&next, &[first.attachment(Some(&before))], true);
            let is_used = forwards.is_some();
            assert_eq!(next.keep_routers().is_ok(), is_used, "{case}");
            let attached = next.attach(&Container::new("b").request);
            assert_eq!(attached.is_ok(), is_used, "{attached:?} {case}");
            if is_used {
                assert!(of_bridge().contains("fd00:88::1/64"), "{case}");
            }
            let forwards = forwards.unwrap_or_default();
            assert_eq!(is_forwarding(IpFamily::V6).unwrap(), forwards, "{case}");
        });
    }
}

/// A router may tell the node something at any moment: what one look has found decides about all of a bridge.
#[test]
fn one_look_at_the_uplinks_decides_for_a_bridge() {
    let [dual, six] = [&SUBNETS[..], &SUBNETS[1..]];
    for (subnets, is_told_before, accept_ra, forwards) in [
        (dual, false, "1", true),
        (six, false, "1", true),
        (dual, true, "1", false),
        (dual, true, "2", true),
    ] {
        in_private_netns(|| {
            let node = Node::new(subnets);
            let attached = node.driver.attach(&Container::new("a").request);
            attached.unwrap();
            set("ipv6/conf/all/forwarding", "0");
            ip("link add uplink type veth peer name router");
            ip("link set router up");
            ip("link set uplink up");
            set("ipv6/conf/uplink/accept_ra", accept_ra);
            let told = "2001:db8:5::7/64 dev uplink nodad valid_lft 1000 preferred_lft 1000";
            if is_told_before {
                ip(&format!("addr add {told}"));
            }
            let look = node.driver.look_at_uplinks().unwrap();
            if is_told_before {
                ip(&format!(
                    "addr del {}",
                    &told[.."2001:db8:5::7/64 dev uplink".len()]
                ));
            } else {
                ip(&format!("addr add {told}"));
            }
            let bridge: LinkRef = node.driver.settings.name.clone().into();
            let mut state = node.driver.tables.lock();
            node.driver.lead_out(&mut state, &bridge, &look).unwrap();
            let case = format!("{subnets:?} {is_told_before} {accept_ra}");
            assert_eq!(is_forwarding(IpFamily::V6).unwrap(), forwards, "{case}");
        });
    }
}

/// Somebody has given the bridge its address with a search for duplicates, which a bridge without a port does not even begin.
#[test]
fn address_that_the_kernel_does_not_use_is_given_anew() {
    for (given, is_own) in [
        (Some("fd00:88::1/64"), true),
        (Some("fd00:88::1/64 nodad"), true),
        // Of somebody else: it stays as it is.
        (Some("fd00:99::1/64"), false),
        (None, true),
    ] {
        in_private_netns(|| {
            let node = Node::new(&SUBNETS);
            ip("link add swtest0 type bridge");
            ip("link set swtest0 up");
            if let Some(given) = given {
                ip(&format!("addr add {given} dev swtest0"));
            }
            node.driver.attach(&Container::new("a").request).unwrap();
            let shown = of_bridge();
            assert!(shown.contains("fd00:88::1/64"), "{given:?}: {shown}");
            assert!(
                !is_own || !shown.contains("tentative"),
                "{given:?}: {shown}"
            );
            assert_eq!(shown.contains("fd00:99::1/64"), !is_own, "{shown}");
        });
    }
}

/// Tells all neighbours at the device `eth0` of this thread's namespace, as a router: a default route, and a prefix for their addresses.
fn advertise() -> nix::Result<usize> {
    let mut message = vec![134, 0, 0, 0, 64, 0];
    message.extend(1800_u16.to_be_bytes());
    message.extend([0; 8]);
    message.extend([3, 4, 64, 0xc0]);
    message.extend([3600_u32, 3600, 0].into_iter().flat_map(u32::to_be_bytes));
    let prefix: Ipv6Addr = "2001:db8:5::".parse().unwrap();
    message.extend(prefix.octets());
    let flags = SockFlag::SOCK_CLOEXEC;
    let raw = socket(
        AddressFamily::Inet6,
        SockType::Raw,
        flags,
        SockProtocol::IcmpV6,
    )?;
    setsockopt(&raw, Ipv6MulticastHops, &255)?;
    let neighbours = "ff02::1".parse().unwrap();
    let to = SocketAddrV6::new(neighbours, 0, 0, if_nametoindex("eth0")?);
    let to = SockaddrIn6::from(to);
    sendto(raw.as_raw_fd(), &message, &to, MsgFlags::empty())
}

/// By what is said before, also before the router has told anything.
#[test]
fn uplink_keeps_its_routes_where_it_is_said_to() {
    for (accept_ra, keeps) in [("2", true), ("1", false)] {
        in_private_netns(|| {
            let node = Node::new(&SUBNETS);
            set("ipv6/conf/all/forwarding", "0");
            let router = Host::new(
                NftFamily::Ip6,
                "uplink",
                "2001:db8:9::1/64",
                "2001:db8:9::2",
            );
            set("ipv6/conf/uplink/accept_ra", accept_ra);
            ip("link set uplink up");
            let would_keep = |uplinks: &[String]| would_ignore_routers(uplinks).unwrap().is_none();
            assert_eq!(would_keep(&["uplink".to_owned()]), keeps, "{accept_ra}");
            let has_route = || {
                let routes = ["-6", "route", "show", "default", "dev", "uplink"];
                !run("ip", "iproute2", &routes).is_empty()
            };
            let hears = || {
                // Not before it has an address.
                let _ = inside(&router.netns, advertise);
                thread::sleep(Duration::from_millis(10));
                has_route()
            };
            assert!((0..2000).any(|_| hears()), "{accept_ra}");
            assert_eq!(would_keep(&[]), keeps, "{accept_ra}");
            if keeps {
                node.driver.attach(&Container::new("a").request).unwrap();
            } else {
                set("ipv6/conf/all/forwarding", "1");
            }
            assert!(is_forwarding(IpFamily::V6).unwrap());
            assert_eq!(has_route(), keeps, "{accept_ra}");
            assert!(would_keep(&["uplink".to_owned()]), "it forwards already");
        });
    }
}
