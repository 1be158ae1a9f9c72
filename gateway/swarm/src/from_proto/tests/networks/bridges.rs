//! Networks of the swarm that are a bridge on the node.

use super::*;

/// A bridge network of the swarm.
fn own(change: impl FnOnce(&mut swarm::Network)) -> swarm::NetworkAttachment {
    let mut attachment = network("back", "bridge", false);
    let network = attachment.network.as_mut().unwrap();
    network.id = "ymkwbbwalorn3wk0pf1a1y09r".into();
    change(network);
    attachment
}

fn with_addresses(subnet: &str, range: &str, gateway: &str) -> swarm::NetworkAttachment {
    let config = swarm::IpamConfig {
        subnet: subnet.into(),
        range: range.into(),
        gateway: gateway.into(),
        ..Default::default()
    };
    with_ipam(swarm::IpamOptions {
        driver: None,
        configs: vec![config],
    })
}

fn with_ipam(ipam: swarm::IpamOptions) -> swarm::NetworkAttachment {
    own(|network| network.spec.as_mut().unwrap().ipam = Some(ipam))
}

fn with_option(key: &str, value: &str) -> swarm::NetworkAttachment {
    own(|network| {
        let options = [(key.to_owned(), value.to_owned())].into();
        network.driver_state = Some(swarm::Driver {
            name: "bridge".into(),
            options,
        });
    })
}

fn link_of(attachment: swarm::NetworkAttachment) -> Link {
    let made = planned_task(&on(vec![attachment])).sandbox.network;
    let SandboxNetwork::Pod(PodNetwork { link, .. }) = made else {
        panic!("{made:?}")
    };
    link
}

fn bridge_of(attachment: swarm::NetworkAttachment) -> ClusterBridge {
    let made = link_of(attachment);
    let Link::ClusterBridge(bridge) = made else {
        panic!("{made:?}")
    };
    *bridge
}

#[test]
fn bridge_network_of_the_swarm_has_its_addresses_and_options() {
    let plain = bridge_of(own(|_| {}));
    let id = NetworkName::parse("id", "ymkwbbwalorn3wk0pf1a1y09r").unwrap();
    let expected = ClusterBridge {
        id,
        name: "back".into(),
        addresses: None,
        ipv6: None,
        is_internal: false,
        has_masquerade: true,
        mtu: None,
    };
    assert_eq!(plain, expected);
    let addresses = bridge_of(with_addresses("10.7.0.0/16", "10.7.5.0/24", "10.7.0.9"))
        .addresses
        .unwrap();
    let parts = (
        addresses.subnet().to_string(),
        addresses.gateway().to_string(),
    );
    assert_eq!(parts, ("10.7.0.0/16".to_owned(), "10.7.0.9".to_owned()));
    assert_eq!(
        addresses.range().map(ToString::to_string).as_deref(),
        Some("10.7.5.0/24")
    );
    let internal = bridge_of(own(|network| {
        network.spec.as_mut().unwrap().internal = true
    }));
    assert!(internal.is_internal);
    assert_eq!(
        bridge_of(with_option("com.docker.network.driver.mtu", "1400")).mtu,
        Some(1400)
    );
    assert!(
        !bridge_of(with_option(
            "com.docker.network.bridge.enable_ip_masquerade",
            "false"
        ))
        .has_masquerade
    );
    assert!(bridge_of(with_option("com.docker.network.bridge.enable_icc", "true")).has_masquerade);
    let mut named = own(|_| {});
    named
        .network
        .as_mut()
        .unwrap()
        .spec
        .as_mut()
        .unwrap()
        .annotations
        .as_mut()
        .unwrap()
        .name = "a\n".repeat(999);
    assert_eq!(bridge_of(named).name, "a".repeat(64));
}

#[test]
fn addresses_that_no_bridge_can_have_are_refused() {
    let text = |attachment: swarm::NetworkAttachment| refusal(&on(vec![attachment])).report();
    for subnet in [
        "garbage",
        "10.1.0.0",
        "10.1.0.0/",
        "10.1.0.0/33",
        "10.1.0.0/-1",
        "/24",
        "10.1/16",
        "::/129",
    ] {
        let told = text(with_addresses(subnet, "", ""));
        assert!(
            told.starts_with("networks[0].network.ipam: subnet: ") && told.contains("is no range"),
            "{told}"
        );
    }
    for (subnet, part) in [
        ("0.0.0.0/0", "not within the private ranges"),
        ("8.8.8.0/24", "not within the private ranges"),
        ("127.0.0.0/8", "not within the private ranges"),
        ("10.1.0.0/31", "/30 is the smallest"),
        (
            "fd00::/64",
            "with the subnet fd00::/64, and created without --ipv6, is not",
        ),
    ] {
        let told = text(with_addresses(subnet, "", ""));
        assert!(told.contains(part), "{told}");
    }
    assert!(text(with_addresses("10.1.0.0/24", "10.2.0.0/24", "")).contains("range: "));
    assert!(text(with_addresses("10.1.0.0/24", "x", "")).contains("is no range"));
    assert!(text(with_addresses("10.1.0.0/24", "", "10.1.0.255")).contains("gateway: 10.1.0.255"));
    assert!(
        text(with_addresses("10.1.0.0/24", "", "x")).contains("the gateway \"x\" is no address")
    );
    assert!(text(with_addresses("", "", "10.1.0.1")).contains("without a subnet"));
    assert!(text(with_addresses(&"1".repeat(100_000), "", "")).len() < 200);
    let many = swarm::IpamOptions {
        driver: None,
        configs: vec![Default::default(); 1_000],
    };
    assert!(text(with_ipam(many)).contains("with 1000 subnets instead of 1"));
    let other = swarm::Driver {
        name: "dhcp".into(),
        ..Default::default()
    };
    let told = text(with_ipam(swarm::IpamOptions {
        driver: Some(other),
        configs: Vec::new(),
    }));
    assert!(told.contains("addresses of the driver \"dhcp\""), "{told}");
    let reserved = swarm::IpamConfig {
        subnet: "10.1.0.0/24".into(),
        reserved: [("a".to_owned(), "10.1.0.7".to_owned())].into(),
        ..Default::default()
    };
    assert!(
        text(with_ipam(swarm::IpamOptions {
            driver: None,
            configs: vec![reserved]
        }))
        .contains("reserved")
    );
}

/// A network with IPv6 and these subnets, ranges and gateways.
fn with_ipv6(configs: &[[&str; 3]]) -> swarm::NetworkAttachment {
    let configs = configs
        .iter()
        .map(|[subnet, range, gateway]| swarm::IpamConfig {
            subnet: (*subnet).into(),
            range: (*range).into(),
            gateway: (*gateway).into(),
            ..Default::default()
        });
    own(|network| {
        let spec = network.spec.as_mut().unwrap();
        spec.ipv6_enabled = true;
        spec.ipam = Some(swarm::IpamOptions {
            driver: None,
            configs: configs.collect(),
        });
    })
}

#[test]
fn network_with_ipv6_names_a_subnet_of_it() {
    let four = ["10.7.0.0/16", "", "10.7.0.9"];
    for (configs, expected) in [
        (&[["fd00:7::/64", "", ""]][..], (None, "fd00:7::1")),
        (
            &[four, ["fd00:7::/64", "", "fd00:7::9"]][..],
            (Some("10.7.0.9"), "fd00:7::9"),
        ),
        (
            &[["fd00:7::/64", "", ""], four][..],
            (Some("10.7.0.9"), "fd00:7::1"),
        ),
    ] {
        let made = bridge_of(with_ipv6(configs));
        let gateway = made.addresses.map(|four| four.gateway().to_string());
        let six = made.ipv6.map(|six| six.gateway().to_string());
        assert_eq!(
            (gateway.as_deref(), six.as_deref()),
            (expected.0, Some(expected.1))
        );
    }
    let text = |configs: &[[&str; 3]]| refusal(&on(vec![with_ipv6(configs)])).report();
    for (configs, part) in [
        (&[four][..], "with IPv6 and without a subnet of it"),
        (&[["", "", ""]][..], "with IPv6 and without a subnet of it"),
        (&[four, four][..], "with two subnets of one family"),
        (
            &[["fd00:7::/64", "", ""], ["fd00:8::/64", "", ""]][..],
            "with two subnets of one family",
        ),
        (
            &[["fd00:7::/64", "", ""], four, four][..],
            "with 3 subnets instead of 2",
        ),
        (
            &[["fd00:7::/64", "fd00:7::/80", ""]][..],
            "with a range of IPv6 within its subnet",
        ),
        (
            &[["2001:db8::/64", "", ""]][..],
            "not within the private range fc00::/7",
        ),
        (
            &[["fd00:7::/64", "", "fd00:8::1"]][..],
            "gateway: fd00:8::1",
        ),
    ] {
        let told = text(configs);
        assert!(told.contains(part), "{told}");
    }
    let mut small = with_ipv6(&[["fd00:7::/64", "", ""]]);
    let options = [(
        "com.docker.network.driver.mtu".to_owned(),
        "1279".to_owned(),
    )]
    .into();
    small.network.as_mut().unwrap().driver_state = Some(swarm::Driver {
        name: "bridge".into(),
        options,
    });
    let told = refusal(&on(vec![small])).report();
    assert!(told.contains("at least 1280"), "{told}");
}

#[test]
fn what_a_bridge_network_cannot_have_is_refused_by_name() {
    let text = |attachment: swarm::NetworkAttachment| refusal(&on(vec![attachment])).report();
    for (key, value) in [
        ("com.docker.network.bridge.name", "eth0"),
        ("com.docker.network.bridge.enable_icc", "false"),
        ("parent", "eth0"),
    ] {
        let told = text(with_option(key, value));
        assert!(
            told.contains(&format!("with the option {key:?} as {value:?}")),
            "{told}"
        );
    }
    for mtu in ["", "67", "65536", "-1", "many"] {
        assert!(
            text(with_option("com.docker.network.driver.mtu", mtu))
                .contains("is no MTU within 68..=65535")
        );
    }
    let told = text(with_option(
        "com.docker.network.bridge.enable_ip_masquerade",
        "yes",
    ));
    assert!(
        told.contains("is neither true nor false: \"yes\""),
        "{told}"
    );
    assert!(
        text(own(
            |network| network.spec.as_mut().unwrap().ipv6_enabled = true
        ))
        .contains("with IPv6")
    );
    let option = [("k".to_owned(), "v".to_owned())].into();
    let attachment = swarm::NetworkAttachment {
        driver_attachment_opts: option,
        ..own(|_| {})
    };
    assert!(text(attachment).contains("with the option \"k\" of the service"));
    let attachment = swarm::NetworkAttachment {
        addresses: vec!["10.1.0.7/24".into()],
        ..own(|_| {})
    };
    assert!(text(attachment).contains("with an address that is chosen"));
    for id in ["", "../x", "a/b"] {
        assert!(
            text(own(|network| network.id = id.into())).starts_with("networks[0].network.id: "),
            "{id}"
        );
    }
    let internal = own(|network| network.spec.as_mut().unwrap().internal = true);
    let told = refusal(&published(vec![internal], vec![port(8080, 80, 1)])).report();
    assert!(
        told.contains("no port of the node leads into an internal network"),
        "{told}"
    );
    assert!(text(network("host", "host", false)).contains("with driver \"host\""));
}

#[test]
fn ports_lead_into_a_task_on_a_bridge_network() {
    let made = planned_task(&published(vec![own(|_| {})], vec![port(8080, 80, 1)]));
    let SandboxNetwork::Pod(network) = made.sandbox.network else {
        panic!("it has a network of its own")
    };
    assert_eq!((network.ports.len(), network.ports[0].host_port), (1, 8080));
    assert_eq!(made.sandbox.host_ports.ports.len(), 1);
}
