//! Tests of what settings close, and of what they leave open.

use super::*;

/// The reachability of a container on a bridge with these settings, for one that is closed or open to routed packets.
fn reach_by_route(family: NftFamily, direct_routing: bool) {
    let index = usize::from(family == NftFamily::Ip6);
    let node = Node::new(&SUBNETS);
    // Isolation has no effect on one bridge.
    let tables = BridgeTables::new(TableName::default());
    let tables = tables.with_isolation(Isolation::Bridge, Vec::new());
    let settings = BridgeSettings {
        direct_routing,
        ..node.driver.settings.clone()
    };
    let driver = BridgeDriver::new(settings, Arc::new(tables)).unwrap();
    let served = Container::with_ports("served", &both(8080));
    let other = Container::new("other");
    let attached = driver.attach(&served.request).unwrap();
    driver.attach(&other.request).unwrap();
    let remote = remote(family);
    // Another bridge of the node, as docker's: it is none of ours.
    let (address, router) = [
        ("10.77.0.2/24", "10.77.0.1"),
        ("fd00:77::2/64", "fd00:77::1"),
    ][index];
    let foreign = Host::new(family, "foreign", address, router);
    let (bits, nodad) = [("24", ""), ("64", " nodad")][index];
    ip(&format!("addr add {router}/{bits} dev foreign{nodad}"));
    ip("link set foreign up");
    let here = Host::node(family);
    let server = served.serving(family);
    let beside = other.serving(family);
    let container = SocketAddr::new(super::address(&attached, family), SERVED);
    let published = SocketAddr::new(UPLINK[index].parse().unwrap(), 8080);
    let outside = SocketAddr::new(REMOTE[index].parse().unwrap(), SERVED);
    // The kernel gives a device its addresses of IPv6 when it has seen its carrier.
    let is_up = |_| {
        remote.tcp(published, &server, SHORT).is_some()
            && foreign.tcp(published, &server, SHORT).is_some()
    };
    assert!((0..100).any(is_up), "{published} is not reached");
    for (name, client, to, server, expected) in [
        (
            "remote, by route",
            &remote,
            container,
            &server,
            direct_routing,
        ),
        (
            "foreign bridge, by route",
            &foreign,
            container,
            &server,
            direct_routing,
        ),
        ("remote, by port", &remote, published, &server, true),
        (
            "foreign bridge, by port",
            &foreign,
            published,
            &server,
            true,
        ),
        ("node", &here, container, &server, true),
        ("neighbour", &beside, container, &server, true),
        ("neighbour, by port", &beside, published, &server, true),
        ("itself, by port", &server, published, &server, true),
        ("outwards", &server, outside, &remote, true),
    ] {
        let limit = if expected { LONG } else { SHORT };
        let reached = (
            client.tcp(to, server, limit).is_some(),
            client.udp(to, server, limit).is_some(),
        );
        assert_eq!(reached, (expected, expected), "{name}, {direct_routing}");
    }
}

#[test]
fn routed_packets_reach_containers_if_that_is_wanted_and_others_always_do() {
    for family in NftFamily::ALL {
        for direct_routing in [false, true] {
            in_private_netns(|| reach_by_route(family, direct_routing));
        }
    }
}

#[test]
fn elements_follow_the_settings_of_the_next_process() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        ip("link add swtest0 type bridge");
        let name = |name: &str| crate::nft::BridgeName::new(name).unwrap();
        let own = name("swtest0");
        let apart = [
            Element::Apart(own.clone()),
            Element::Allowed(own.clone(), own.clone()),
        ];
        for (isolation, direct_routing, is_apart, closed) in [
            (Isolation::Bridge, false, true, 1),
            (Isolation::Owner, true, true, 0),
            (Isolation::None, false, false, 1),
            (Isolation::None, true, false, 0),
        ] {
            // Bridges that are not there have no effect.
            let allow = vec![(own.clone(), name("docker0"))];
            let tables = BridgeTables::new(TableName::default()).with_isolation(isolation, allow);
            let settings = BridgeSettings {
                direct_routing,
                ..node.driver.settings.clone()
            };
            let driver = BridgeDriver::new(settings, Arc::new(tables)).unwrap();
            driver.keep().unwrap();
            adopt(&driver, &[], true);
            driver.tables.restore().unwrap();
            for family in NftFamily::ALL {
                let found = elements_of(family);
                for element in &apart {
                    assert_eq!(found.contains(element), is_apart, "{isolation:?} {element}");
                }
                let is_closed = |element: &&Element| matches!(element, Element::Closed(_));
                assert_eq!(
                    found.iter().filter(is_closed).count(),
                    closed,
                    "{isolation:?}"
                );
            }
        }
    });
}

/// The node may forward packets of a network beyond it that has the same addresses.
#[test]
fn subnet_is_in_the_tables_once_there_is_its_bridge() {
    in_private_netns(|| {
        let node = Node::with(&SUBNETS, |settings| settings.direct_routing = false);
        let of_subnets = || {
            let is_subnet =
                |one: &&Element| matches!(one, Element::Masqueraded(_) | Element::Closed(_));
            NftFamily::ALL.map(|family| elements_of(family).iter().filter(is_subnet).count())
        };
        let restored = |driver: &BridgeDriver| {
            adopt(driver, &[], true);
            driver.tables.restore().unwrap();
            of_subnets()
        };
        assert_eq!(restored(&node.driver), [0, 0]);
        assert!(
            !elements_of(NftFamily::Ip4).is_empty(),
            "the table is there"
        );
        let container = Container::new("a");
        let attached = node.driver.attach(&container.request).unwrap();
        assert_eq!(of_subnets(), [2, 2]);
        run("nft", "nftables", &["flush", "ruleset"]);
        assert_eq!(restored(&node.driver), [2, 2]);
        // Also while nothing is attached to it, and in the next process.
        let attachment = container.attachment(Some(&attached));
        node.driver.detach(&attachment).unwrap();
        assert_eq!(restored(&node.driver), [2, 2]);
        assert_eq!(restored(&node.next_driver()), [2, 2]);
    });
}

/// Two bridges of an instance, and a port that the second one publishes.
fn reach_each_other_apart(isolation: Isolation, owners: [&str; 2], is_reached: bool) {
    let node = Node::new(&SUBNETS[..1]);
    let tables = BridgeTables::new(TableName::default()).with_isolation(isolation, Vec::new());
    let tables = Arc::new(tables);
    let bridge = |name: &str, subnet: &str, owner: &str| {
        let settings = BridgeSettings {
            name: LinkName::new(name).unwrap(),
            owner: owner.to_owned(),
            ..settings(node.addresses.path(), &[subnet])
        };
        BridgeDriver::new(settings, Arc::clone(&tables)).unwrap()
    };
    let first = bridge("swtest1", "10.98.0.0/24", owners[0]);
    let second = bridge("swtest2", "10.99.0.0/24", owners[1]);
    let client = Container::new("client");
    let served = Container::with_ports("served", &both(8080));
    let neighbour = Container::new("neighbour");
    first.attach(&client.request).unwrap();
    let attached = second.attach(&served.request).unwrap();
    second.attach(&neighbour.request).unwrap();
    let from = client.serving(NftFamily::Ip4);
    let server = served.serving(NftFamily::Ip4);
    let beside = neighbour.serving(NftFamily::Ip4);
    let direct = SocketAddr::new(address(&attached, NftFamily::Ip4), SERVED);
    let published = SocketAddr::new("10.98.0.1".parse().unwrap(), 8080);
    assert!(beside.tcp(direct, &server, LONG).is_some(), "{isolation:?}");
    assert!(
        from.tcp(published, &server, LONG).is_some(),
        "{isolation:?}"
    );
    let limit = if is_reached { LONG } else { SHORT };
    let found = from.tcp(direct, &server, limit).is_some();
    assert_eq!(found, is_reached, "{isolation:?} {owners:?}");
}

#[test]
fn bridges_of_an_instance_are_kept_apart_but_for_published_ports() {
    for (isolation, owners, is_reached) in [
        (Isolation::None, ["a", "b"], true),
        (Isolation::Bridge, ["a", "a"], false),
        (Isolation::Owner, ["a", "b"], false),
        (Isolation::Owner, ["a", "a"], true),
    ] {
        in_private_netns(|| reach_each_other_apart(isolation, owners, is_reached));
    }
}
