//! Tests of what a node makes of a cluster's bridge network, and of its file.

use super::*;

fn asked(addresses: Option<&str>) -> ClusterBridge {
    let addresses =
        addresses.map(|text| BridgeAddresses::new(text.parse().unwrap(), None, None).unwrap());
    ClusterBridge {
        id: NetworkName::parse("id", "ymkwbbwalorn3wk0pf1a1y09r").unwrap(),
        name: "back".into(),
        addresses,
        ipv6: None,
        is_internal: false,
        has_masquerade: true,
        mtu: None,
    }
}

fn with_ipv6(subnet: &str) -> ClusterBridge {
    let made = Ipv6BridgeAddresses::new(subnet.parse().unwrap(), None);
    ClusterBridge {
        ipv6: Some(made.unwrap()),
        ..asked(Some("10.7.0.0/24"))
    }
}

fn free(_: &Subnet) -> Option<String> {
    None
}

#[test]
fn free_addresses_are_chosen_by_the_id() {
    let first = Definition::new(&asked(None), free).unwrap();
    assert_eq!(Definition::new(&asked(None), free).unwrap(), first);
    assert!(Subnet::of_v4(POOL, 16).contains_all(first.addresses.subnet()));
    let taken = *first.addresses.subnet();
    let next = Definition::new(&asked(None), |subnet| {
        subnet.overlaps(&taken).then(|| "eth0".into())
    })
    .unwrap();
    assert_ne!(next.addresses.subnet(), first.addresses.subnet());
    let error = Definition::new(&asked(None), |_| Some("eth0".into()))
        .unwrap_err()
        .report();
    assert!(
        error.contains("172.29.0.0/16: create the network with a subnet"),
        "{error}"
    );
    assert_eq!(Definition::parse(next.to_json().as_bytes()), Some(next));
}

#[test]
fn file_of_the_first_version_is_read_and_written() {
    let addresses = BridgeAddresses::new(
        "10.7.0.0/16".parse().unwrap(),
        Some("10.7.5.0/24".parse().unwrap()),
        Some("10.7.0.9".parse().unwrap()),
    );
    let asked = ClusterBridge {
        addresses: addresses.ok(),
        mtu: Some(1400),
        ..asked(None)
    };
    let golden = include_str!("../golden/network.json");
    let read = Definition::parse(golden.as_bytes()).unwrap();
    assert_eq!(read, Definition::new(&asked, free).unwrap());
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(json(&read.to_json()), json(golden));
}

#[test]
fn taken_addresses_are_refused_with_who_has_them() {
    let error = Definition::new(&asked(Some("10.7.0.0/24")), |_| {
        Some("eth1 has 10.0.0.0/8".into())
    });
    let error = error.unwrap_err().report();
    assert!(
        error.contains("network \"back\": 10.7.0.0/24 is taken on this node: eth1 has 10.0.0.0/8"),
        "{error}"
    );
}

#[test]
fn tasks_share_a_bridge_only_if_they_ask_for_the_same() {
    let made = Definition::new(&asked(Some("10.7.0.0/24")), free).unwrap();
    made.check_same(&asked(Some("10.7.0.0/24"))).unwrap();
    let other_id = ClusterBridge {
        id: NetworkName::parse("id", "x").unwrap(),
        ..asked(Some("10.7.0.0/24"))
    };
    let internal = ClusterBridge {
        is_internal: true,
        ..asked(Some("10.7.0.0/24"))
    };
    let dual = with_ipv6("fd00:7::/64");
    let others = [
        asked(None),
        asked(Some("10.8.0.0/24")),
        other_id,
        internal,
        dual,
    ];
    for other in others {
        let error = made.check_same(&other).unwrap_err().report();
        assert!(error.contains("with other properties"), "{error}");
    }
    Definition::new(&asked(None), free)
        .unwrap()
        .check_same(&asked(None))
        .unwrap();
}

#[test]
fn network_with_ipv6_has_a_range_and_a_route_of_it_and_is_read_again() {
    let made = Definition::new(&with_ipv6("fd00:7::/64"), free).unwrap();
    assert_eq!(
        Definition::parse(made.to_json().as_bytes()).as_ref(),
        Some(&made)
    );
    made.check_same(&with_ipv6("fd00:7::/64")).unwrap();
    for other in [with_ipv6("fd00:8::/64"), asked(Some("10.7.0.0/24"))] {
        made.check_same(&other).unwrap_err();
    }
    let list = |made: &Definition| made.conflist("swy-1", Path::new("/run/a"), 0);
    let ipam = &list(&made)["plugins"][0]["ipam"];
    let six = json!([{ "subnet": "fd00:7::/64", "gateway": "fd00:7::1" }]);
    assert_eq!(ipam["ranges"][1], six);
    assert_eq!(
        ipam["routes"],
        json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }])
    );
    let internal = ClusterBridge {
        is_internal: true,
        ..with_ipv6("fd00:7::/64")
    };
    let ipam = &list(&Definition::new(&internal, free).unwrap())["plugins"][0]["ipam"];
    assert_eq!(ipam["ranges"][1], json!([{ "subnet": "fd00:7::/64" }]));
    assert_eq!(ipam["routes"], json!([]));
    let taken = Definition::new(&with_ipv6("fd00:7::/64"), |subnet| {
        subnet.first().is_ipv6().then(|| "eth1 has it".to_owned())
    });
    let error = taken.unwrap_err().report();
    assert!(
        error.contains("fd00:7::/64 is taken on this node: eth1"),
        "{error}"
    );
}

#[test]
fn configuration_list_has_the_addresses_and_an_internal_network_no_way_out() {
    let addresses = BridgeAddresses::new(
        "10.7.0.0/16".parse().unwrap(),
        Some("10.7.5.0/24".parse().unwrap()),
        Some("10.7.0.9".parse().unwrap()),
    );
    let open = ClusterBridge {
        addresses: addresses.ok(),
        mtu: Some(1400),
        ..asked(None)
    };
    let list = Definition::new(&open, free)
        .unwrap()
        .conflist("swy-1", Path::new("/run/a"), 0);
    let bridge = &list["plugins"][0];
    let pool = json!({
        "subnet": "10.7.0.0/16", "rangeStart": "10.7.5.0", "rangeEnd": "10.7.5.255", "gateway": "10.7.0.9",
    });
    let ipam = json!({
        "type": "host-local", "dataDir": "/run/a", "ranges": [[pool]], "routes": [{ "dst": "0.0.0.0/0" }],
    });
    assert_eq!(
        (&bridge["ipam"], &bridge["mtu"], &bridge["bridge"]),
        (&ipam, &json!(1400), &json!("swy-1"))
    );
    assert_eq!(
        (&bridge["isGateway"], &bridge["ipMasq"]),
        (&json!(true), &json!(true))
    );
    let internal = ClusterBridge {
        is_internal: true,
        mtu: None,
        ..open
    };
    let list = Definition::new(&internal, free)
        .unwrap()
        .conflist("swy-1", Path::new("/run/a"), 0);
    let bridge = &list["plugins"][0];
    assert_eq!(
        (&bridge["isGateway"], &bridge["ipMasq"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(
        (&bridge["ipam"]["routes"], &bridge["mtu"]),
        (&json!([]), &Value::Null)
    );
}

#[test]
fn default_mtu_is_one_with_which_the_kernel_has_ipv6() {
    for (six, own, default, expected) in [
        (false, None, 1200, json!(1200)),
        (true, None, 1200, json!(1280)),
        (true, None, 1279, json!(1280)),
        (true, None, 1400, json!(1400)),
        (true, None, 0, Value::Null),
        (false, None, 0, Value::Null),
        (true, Some(1300), 1200, json!(1300)),
    ] {
        let asked = ClusterBridge {
            mtu: own,
            ..if six {
                with_ipv6("fd00:7::/64")
            } else {
                asked(Some("10.7.0.0/24"))
            }
        };
        let list = Definition::new(&asked, free).unwrap();
        let list = list.conflist("swy-1", Path::new("/run/a"), default);
        assert_eq!(
            list["plugins"][0]["mtu"], expected,
            "{six} {own:?} {default}"
        );
    }
}
