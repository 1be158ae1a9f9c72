//! What settings close, and what they leave open.

use super::*;

/// The reachability of a container on a bridge with these settings, for one that is closed or open to routed packets.
fn reach_by_route(family: NftFamily, direct_routing: bool) {
    let index = usize::from(family == NftFamily::Ip6);
    let node = Node::new(&SUBNETS);
    let driver = BridgeDriver::new(BridgeSettings {
        direct_routing,
        // It has no effect on one bridge.
        isolation: Isolation::Bridge,
        ..node.driver.settings.clone()
    });
    let driver = driver.unwrap();
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
            let driver = BridgeDriver::new(BridgeSettings {
                isolation,
                // Bridges that are not there have no effect.
                isolation_allow: vec![(own.clone(), name("docker0"))],
                direct_routing,
                ..node.driver.settings.clone()
            });
            driver.unwrap().restore().unwrap();
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
