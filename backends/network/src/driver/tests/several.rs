//! Several bridges of one instance, which share its tables; bridges that lead nowhere, and those whose containers get a part of a subnet.

use super::*;
use crate::addresses::RangeLimits;
use crate::driver::known::KnownBridge;
use crate::testing::hosts::set;
use crate::testing::subnet;

/// A second bridge beside that of the node, on the same tables.
fn beside(node: &Node, name: &str, subnets: &[&str]) -> BridgeDriver {
    let settings = BridgeSettings {
        name: LinkName::new(name).unwrap(),
        ..settings(node.addresses.path(), subnets)
    };
    BridgeDriver::new(settings, Arc::clone(&node.driver.tables)).unwrap()
}

/// Lists what the table of IPv4 has, as `nft` shows it.
fn shown() -> Vec<String> {
    let elements = elements_of(NftFamily::Ip4);
    elements.iter().map(ToString::to_string).collect()
}

fn is_answered(client: &Host, to: &str, server: &Host) -> bool {
    let to = SocketAddr::new(to.parse().unwrap(), 8080);
    client.tcp(to, server, LONG).is_some()
}

#[test]
fn bridges_of_one_instance_share_tables_and_each_has_its_own_containers() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let second = beside(&node, "swtest1", &["10.99.0.0/24"]);
        let [a, b] = ["a", "b"].map(|id| {
            let at: IpAddr = if id == "a" {
                [127, 0, 0, 8]
            } else {
                [127, 0, 0, 9]
            }
            .into();
            let ports = both(8080).map(|port| PublishedPort {
                at: Some(at),
                ..port
            });
            Container::with_ports(id, &ports)
        });
        let alone = {
            node.driver.attach(&a.request).unwrap();
            shown()
        };
        let attached = second.attach(&b.request).unwrap();
        let here = Host::node(NftFamily::Ip4);
        let [first_server, second_server] = [&a, &b].map(|one| one.serving(NftFamily::Ip4));
        let both_answer = || {
            assert!(is_answered(&here, "127.0.0.8", &first_server));
            assert!(is_answered(&here, "127.0.0.9", &second_server));
        };
        both_answer();
        let together = shown();
        run("nft", "nftables", &["flush", "ruleset"]);
        node.driver.tables.restore().unwrap();
        assert_eq!(shown(), together);
        // One that is made anew gets its own containers back, and no others.
        ip("link del swtest1");
        let third = Container::new("c");
        second.attach(&third.request).unwrap();
        both_answer();
        assert_eq!(node.driver.tables.sweep().unwrap(), 0);
        for (container, attached) in [(&b, Some(&attached)), (&third, None)] {
            second.detach(&container.attachment(attached)).unwrap();
        }
        for _ in 0..2 {
            node.driver
                .tables
                .forget_bridge(&second.settings.name)
                .unwrap();
            assert_eq!(shown(), alone);
        }
        assert!(is_answered(&here, "127.0.0.8", &first_server));
    });
}

#[test]
fn next_process_knows_the_bridges_of_what_is_on_record_and_none_that_is_gone() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let second = beside(&node, "swtest1", &["10.99.0.0/24"]);
        let gone = beside(&node, "swtest2", &["10.98.0.0/24"]);
        let containers = ["a", "b", "c"].map(Container::new);
        let [first, other, lost] = &containers;
        node.driver.attach(&first.request).unwrap();
        let before = {
            second.attach(&other.request).unwrap();
            shown()
        };
        gone.attach(&lost.request).unwrap();
        assert_ne!(shown(), before);
        // As after a reboot.
        ip("link del swtest2");
        let tables = Arc::new(BridgeTables::new(TableName::default()));
        let next = [&node.driver, &second, &gone].map(|driver| {
            let driver = BridgeDriver::new(driver.settings.clone(), Arc::clone(&tables));
            driver.unwrap()
        });
        // While not all is known, what may be of an unknown bridge stays.
        adopt(&next[0], &[first.attachment(None)], false);
        tables.restore().unwrap();
        assert!(before.iter().all(|element| shown().contains(element)));
        for (driver, container) in next[1..].iter().zip(&containers[1..]) {
            adopt(driver, &[container.attachment(None)], true);
        }
        tables.restore().unwrap();
        assert_eq!(shown(), before);
    });
}

#[test]
fn bridge_that_is_no_gateway_connects_its_containers_alone() {
    in_private_netns(|| {
        let node = Node::with(&SUBNETS, |settings| {
            settings.is_gateway = false;
            settings.has_masquerade = false;
        });
        let [a, b] = ["a", "b"].map(Container::new);
        node.driver.attach(&a.request).unwrap();
        let attached = node.driver.attach(&b.request).unwrap();
        for family in NftFamily::ALL {
            let [client, server] = [&a, &b].map(|one| one.serving(family));
            let to = SocketAddr::new(address(&attached, family), SERVED);
            assert!(client.tcp(to, &server, LONG).is_some(), "{to}");
        }
        let on_bridge = run("ip", "iproute2", &["addr", "show", "dev", "swtest0"]);
        for beginning in ["10.88.0.", "fd00:88::", "fe80"] {
            assert!(!on_bridge.contains(beginning), "{on_bridge}");
        }
        for family in ["-4", "-6"] {
            let routes = inside(&a.netns, || run("ip", "iproute2", &[family, "route"]));
            assert!(!routes.contains("default"), "{routes}");
        }
        let is_masqueraded = |element: &Element| matches!(element, Element::Masqueraded(_));
        assert!(!elements_of(NftFamily::Ip4).iter().any(is_masqueraded));
    });
}

/// Containers may send what they like, also to the bridge itself: the node would pass it on, with the container's own address.
fn pass_nothing_on(family: NftFamily) {
    for file in ["ipv4/conf/all/rp_filter", "ipv4/conf/default/rp_filter"] {
        set(file, "0");
    }
    for file in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        set(file, "1");
    }
    let node = Node::with(&SUBNETS, |settings| {
        settings.is_gateway = false;
        settings.has_masquerade = false;
    });
    let container = Container::new("a");
    let attached = node.driver.attach(&container.request).unwrap();
    let remote = remote(family);
    let index = usize::from(family == NftFamily::Ip6);
    let (router, option) = [("10.88.0.1", "-4"), ("fd00:88::1", "-6")][index];
    inside(&container.netns, || {
        let bridge = attached.bridge_mac;
        ip(&format!("neigh add {router} lladdr {bridge} dev eth0"));
        ip(&format!(
            "{option} route add default via {router} dev eth0 onlink"
        ));
    });
    let client = container.serving(family);
    let to = SocketAddr::new(REMOTE[index].parse().unwrap(), SERVED);
    remote.udp.set_read_timeout(Some(SHORT)).unwrap();
    for _ in 0..5 {
        client.udp.send_to(b"out", to).unwrap();
        let received = remote.udp.recv_from(&mut [0; 16]);
        assert!(received.is_err(), "{received:?}");
    }
}

#[test]
fn bridge_that_is_no_gateway_passes_nothing_on() {
    for family in NftFamily::ALL {
        in_private_netns(|| pass_nothing_on(family));
    }
}

#[test]
fn containers_get_addresses_of_a_part_of_the_subnet_and_the_gateway_that_is_set() {
    let limit =
        |text: &str| Some(text.parse::<IpAddr>().unwrap()).filter(|ip| !ip.is_unspecified());
    for ([first, last, gateway], expected) in [
        (["::"; 3], ["10.88.0.2", "10.88.0.1"]),
        (
            ["10.88.0.64", "10.88.0.65", "10.88.0.9"],
            ["10.88.0.64", "10.88.0.9"],
        ),
        (
            ["10.88.0.128", "::", "10.88.0.128"],
            ["10.88.0.129", "10.88.0.128"],
        ),
        (
            ["::", "10.88.0.3", "10.88.0.200"],
            ["10.88.0.1", "10.88.0.200"],
        ),
    ] {
        let limits = RangeLimits {
            first: limit(first),
            last: limit(last),
            gateway: limit(gateway),
        };
        in_private_netns(|| {
            let node = Node::with(&SUBNETS[..1], |settings| {
                settings.subnets[0].limits = limits
            });
            let container = Container::new("a");
            let attached = node.driver.attach(&container.request).unwrap();
            let one = attached.addresses[0];
            let found = [one.address, one.gateway].map(|ip| ip.to_string());
            assert_eq!(found, expected);
            let here = Host::node(NftFamily::Ip4);
            let server = container.serving(NftFamily::Ip4);
            let to = SocketAddr::new(one.gateway, SERVED);
            assert!(server.tcp(to, &here, LONG).is_some(), "{to}");
        });
    }
}

/// As when a node gets other addresses for its pods: those of before keep theirs.
#[test]
fn containers_of_a_former_subnet_go_on_beside_those_of_the_present_one() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let remote = remote(NftFamily::Ip4);
        let [a, b] = ["a", "b"].map(Container::new);
        let attached = node.driver.attach(&a.request).unwrap();
        let present = beside(&node, "swtest0", &["10.99.0.0/24"]);
        present.attach(&b.request).unwrap();
        let to = SocketAddr::new(REMOTE[0].parse().unwrap(), SERVED);
        for container in [&a, &b] {
            let client = container.serving(NftFamily::Ip4);
            let seen = client.tcp(to, &remote, LONG);
            assert_eq!(seen, UPLINK[0].parse().ok());
        }
        node.driver.detach(&a.attachment(Some(&attached))).unwrap();
        let former = attached.addresses[0].address.to_string();
        assert!(!node.in_use().contains(&former), "{:?}", node.in_use());
        assert_eq!(node.in_use().len(), 1);
    });
}

#[test]
fn bridge_that_cannot_be_had_leaves_the_tables_of_all_others_as_they_are() {
    in_private_netns(|| {
        let node = Node::new(&["10.88.0.0/16", "fd00:88::/64"]);
        let first = Container::new("a");
        node.driver.attach(&first.request).unwrap();
        let before = shown();
        // Once as the device of another kind.
        ip("link add swtest9 type veth peer name swtest8");
        for (name, subnets, expected) in [
            (
                "swtest1",
                &["10.88.7.0/24"][..],
                "10.88.7.0/24 has addresses of 10.88.0.0/16, which the bridge swtest0 has",
            ),
            (
                "swtest1",
                &["10.0.0.0/8"],
                "10.0.0.0/8 has addresses of 10.88.0.0/16",
            ),
            ("swtest1", &["10.88.0.0/16"], "the bridge swtest0 has"),
            (
                "swtest1",
                &["10.99.0.0/24", "fd00:88::7:0/112"],
                "fd00:88::7:0/112 has addresses of fd00:88::/64",
            ),
            ("swtest9", &["10.99.0.0/24"], "of the kind veth"),
        ] {
            let second = beside(&node, name, subnets);
            let container = Container::new("b");
            let error = second.attach(&container.request).unwrap_err();
            assert!(
                error.to_string().contains(expected) && error.is_undone(),
                "{error}"
            );
            assert!(!node.driver.tables.knows(&second), "{name}");
            let is_made = devices().iter().any(|device| device == "swtest1");
            assert!(!is_made, "{:?}", devices());
            run("nft", "nftables", &["flush", "ruleset"]);
            node.driver.tables.restore().unwrap();
            assert_eq!(shown(), before, "{name} {subnets:?}");
        }
        // What did not fail can be had beside it.
        let second = beside(&node, "swtest1", &["10.99.0.0/24"]);
        second.attach(&Container::new("b").request).unwrap();
    });
}

/// Also what was known before of a bridge that was to have other subnets.
#[test]
fn bridge_that_the_kernel_refuses_is_known_as_before() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        node.driver.attach(&Container::new("a").request).unwrap();
        ip("link add swtest1 type bridge");
        let before = shown();
        for (name, subnets) in [("swtest1", "10.99.0.0/24"), ("swtest0", "10.77.0.0/24")] {
            let asked = BridgeSettings {
                name: LinkName::new(name).unwrap(),
                // More than a bridge may have.
                mtu: Some(100_000),
                ..settings(node.addresses.path(), &[subnets])
            };
            let refused = BridgeDriver::new(asked, Arc::clone(&node.driver.tables)).unwrap();
            let error = refused.attach(&Container::new("b").request).unwrap_err();
            assert!(matches!(error, DriverError::Links(_)), "{error}");
            assert!(!node.driver.tables.knows(&refused), "{name}");
            assert!(node.driver.tables.knows(&node.driver), "{name}");
            run("nft", "nftables", &["flush", "ruleset"]);
            node.driver.tables.restore().unwrap();
            assert_eq!(shown(), before, "{name}");
        }
        node.driver.attach(&Container::new("c").request).unwrap();
    });
}

#[test]
fn other_family_has_its_table_although_the_kernel_refuses_one() {
    for (refused, subnets) in [
        (NftFamily::Ip4, ["10.99.0.0/16", "10.99.7.0/24"]),
        (NftFamily::Ip6, ["fd00:99::/48", "fd00:99:0:7::/64"]),
    ] {
        in_private_netns(|| {
            let node = Node::new(&SUBNETS);
            node.driver.attach(&Container::new("a").request).unwrap();
            let tables = &node.driver.tables;
            // No bridge has such subnets: what else a kernel may refuse is not the same on all.
            let mut known = KnownBridge::new(&node.driver.rules);
            known.rules.subnets = subnets.map(subnet).to_vec();
            let name = LinkName::new("swtest1").unwrap();
            tables.lock().bridges.insert(name, known);
            run("nft", "nftables", &["flush", "ruleset"]);
            tables.restore().unwrap_err();
            for family in NftFamily::ALL {
                let is_restored = !elements_of(family).is_empty();
                assert_eq!(is_restored, family != refused, "{family:?}");
            }
        });
    }
}

/// As the daemon of before has left them: the tables can be restored all the same.
#[test]
fn bridges_on_record_with_addresses_in_common_do_not_keep_tables_from_being_restored() {
    in_private_netns(|| {
        let node = Node::new(&["10.88.0.0/16"]);
        ip("link add swtest0 type bridge");
        ip("link add swtest1 type bridge");
        let second = beside(&node, "swtest1", &["10.88.7.0/24"]);
        adopt(&node.driver, &[Container::new("a").attachment(None)], true);
        let of_second = ["b", "c", "d"].map(|id| Container::new(id).attachment(None));
        let of_second = of_second.iter().map(|attachment| (&second, attachment));
        // It is told once, however many containers are on it, and however often the records are read.
        let refused = second.tables.take_over(of_second.clone(), true);
        let [DriverError::SubnetTaken { bridge, .. }] = &refused[..] else {
            panic!("{refused:?}")
        };
        assert_eq!(bridge, "swtest0");
        let again = second.tables.take_over(of_second, true);
        assert!(again.is_empty(), "{again:?}");
        node.driver.tables.restore().unwrap();
        assert!(!node.driver.tables.knows(&second));
        assert!(shown().iter().any(|element| element.contains("swtest0")));
    });
}

#[test]
fn table_of_a_family_that_no_bridge_has_any_more_is_not_made_again() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let first = Container::new("a");
        node.driver.attach(&first.request).unwrap();
        let second = beside(&node, "swtest1", &["10.99.0.0/24", SUBNETS[1]]);
        let with_both = beside(&node, "swtest0", &[SUBNETS[0], "fd00:99::/64"]);
        let is_known = || [&node.driver, &with_both, &second].map(|one| one.tables.knows(one));
        assert_eq!(is_known(), [true, false, false]);
        let container = Container::new("b");
        let attached = second.attach(&container.request).unwrap();
        assert_eq!(is_known(), [true, false, true]);
        let before = elements_of(NftFamily::Ip6).len();
        second
            .detach(&container.attachment(Some(&attached)))
            .unwrap();
        let tables = &node.driver.tables;
        tables.forget_bridge(&second.settings.name).unwrap();
        tables.restore().unwrap();
        assert!(elements_of(NftFamily::Ip6).len() < before);
        run("nft", "nftables", &["flush", "ruleset"]);
        tables.restore().unwrap();
        assert!(!shown().is_empty());
        let mut kernel = NftTables::open(TableName::default()).unwrap();
        assert!(kernel.read(NftFamily::Ip6).unwrap().is_none());
    });
}

/// As when a node gets other addresses for its pods: else it would look on the bridge for whoever has the former ones by now.
#[test]
fn bridge_loses_the_address_of_a_former_subnet_unless_somebody_is_there_or_it_is_left_to_others() {
    for (is_in_use, leaves_addresses, stays) in [
        (false, false, false),
        (true, false, true),
        (false, true, true),
    ] {
        in_private_netns(|| {
            let node = Node::new(&SUBNETS);
            let former = Container::new("a");
            let attached = node.driver.attach(&former.request).unwrap();
            if !is_in_use {
                let attachment = former.attachment(Some(&attached));
                node.driver.detach(&attachment).unwrap();
            }
            // The next process knows nothing of it, as of a container that plugins have connected.
            ip("addr add fe80::88/64 dev swtest0 nodad");
            let settings = settings(node.addresses.path(), &["10.99.0.0/24", "fd00:99::/64"]);
            let tables = Arc::new(BridgeTables::new(TableName::default()));
            let present = BridgeDriver::new(settings, tables).unwrap();
            let present = if leaves_addresses {
                present
            } else {
                present.without_former_addresses()
            };
            present.attach(&Container::new("b").request).unwrap();
            let on_bridge = run("ip", "iproute2", &["addr", "show", "dev", "swtest0"]);
            for (address, is_there) in [
                ("10.88.0.1/24", stays),
                ("fd00:88::1/64", stays),
                // Each device with IPv6 has one of these.
                ("fe80::88/64", true),
                ("10.99.0.1/24", true),
                ("fd00:99::1/64", true),
            ] {
                assert_eq!(on_bridge.contains(address), is_there, "{on_bridge}");
            }
        });
    }
}

/// As on a node whose driver is another one by now, and which has no containers of this one.
#[test]
fn bridge_of_former_processes_goes_from_tables_that_nobody_needs() {
    in_private_netns(|| {
        let node = Node::with(&SUBNETS, |settings| settings.direct_routing = false);
        let second = beside(&node, "swtest1", &["10.99.0.0/24"]);
        let containers = ["first", "second"].map(Container::new);
        for (driver, container) in [&node.driver, &second].into_iter().zip(&containers) {
            let attached = driver.attach(&container.request).unwrap();
            let attachment = container.attachment(Some(&attached));
            driver.detach(&attachment).unwrap();
        }
        let texts = || -> Vec<String> {
            let all = NftFamily::ALL.map(elements_of);
            all.iter().flatten().map(ToString::to_string).collect()
        };
        let before = texts();
        let next = BridgeTables::new(TableName::default());
        let names = ["swtest0", "swtest1", "swtest2"];
        let [own, other, missing] = names.map(|name| LinkName::new(name).unwrap());
        node.driver.tables.forget_former_bridge(&own).unwrap();
        assert_eq!(texts(), before, "somebody needs them");
        next.forget_former_bridge(&missing).unwrap();
        assert_eq!(texts(), before, "there is no such bridge");
        let is_other = |text: &&String| text.contains("swtest1") || text.contains("10.99.0.");
        let of_other: Vec<String> = before.iter().filter(is_other).cloned().collect();
        assert!(of_other.len() < before.len(), "{before:?}");
        for _ in 0..2 {
            next.forget_former_bridge(&own).unwrap();
            assert_eq!(texts(), of_other);
        }
        next.forget_former_bridge(&other).unwrap();
        assert_eq!(texts(), Vec::<String>::new());
        run("nft", "nftables", &["flush", "ruleset"]);
        next.forget_former_bridge(&own).unwrap();
    });
}
