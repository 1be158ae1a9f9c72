//! The forms of requests and results.

use proptest::prelude::*;
use switchyard_cni as cni;
use switchyard_network::addresses::AssignedAddress;
use switchyard_network::netlink::LinkName;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn table_is_named_after_its_bridge() {
    let name = |bridge: &str| table_of(bridge).unwrap().as_str().to_owned();
    for (bridge, table) in [
        ("switchyard0", "switchyard"),
        ("switchyard1", "switchyard_switchyard1"),
        ("sw_2", "switchyard_sw_2"),
        ("a", "switchyard_a"),
    ] {
        assert_eq!(name(bridge), table);
    }
    for (bridge, beginning) in [
        ("br-lan", "switchyard_br_lan_"),
        ("Bridge", "switchyard__ridge_"),
        ("br.100", "switchyard_br_100_"),
        ("fifteen-letters", "switchyard_fifteen_letters_"),
    ] {
        let table = name(bridge);
        let digits = table.strip_prefix(beginning).unwrap_or_default();
        let is_hash =
            digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        assert!(is_hash, "{table}");
    }
    assert_ne!(name("br-lan"), name("br.lan"));
}

proptest! {
    #[test]
    fn every_bridge_has_a_table_of_its_own(one in "[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}", other in "[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}") {
        let tables = (table_of(&one).unwrap(), table_of(&other).unwrap());
        prop_assert_eq!(tables.0 == tables.1, one == other);
    }
}

#[test]
fn address_is_asked_for_by_a_restart_or_by_an_argument() {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    for (wanted, args, expected) in [
        (vec![], vec![], Some(vec![])),
        (vec!["10.0.0.7"], vec![], Some(vec!["10.0.0.7"])),
        (
            vec![],
            vec![pair("IgnoreUnknown", "1"), pair("IP", "10.0.0.7")],
            Some(vec!["10.0.0.7"]),
        ),
        (
            vec![],
            vec![pair("IP", "10.0.0.7/24")],
            Some(vec!["10.0.0.7"]),
        ),
        (
            vec!["10.0.0.7", "fd00::7"],
            vec![pair("IP", "10.0.0.7")],
            Some(vec!["10.0.0.7", "fd00::7"]),
        ),
        (
            vec!["10.0.0.7"],
            vec![pair("IP", "fd00::8")],
            Some(vec!["10.0.0.7", "fd00::8"]),
        ),
        (vec![], vec![pair("IP", "")], None),
        (vec![], vec![pair("IP", "ten")], None),
        (vec![], vec![pair("MAC", "10.0.0.7")], Some(vec![])),
    ] {
        let before: Vec<IpAddr> = wanted.into_iter().map(ip).collect();
        let found = wanted_addresses(&before, &args).ok();
        let expected: Option<Vec<IpAddr>> = expected.map(|all| all.into_iter().map(ip).collect());
        assert_eq!(found, expected, "{before:?} {args:?}");
    }
}

#[test]
fn ports_are_published_on_the_addresses_that_can_be_forwarded() {
    let (four, six) = (ip("172.26.80.2"), ip("fd00:26:80::2"));
    for (at, ips, expected) in [
        (None, vec![four], Some(None)),
        (Some("127.0.0.1"), vec![four], Some(Some("127.0.0.1"))),
        (Some("::ffff:10.0.0.1"), vec![four], Some(Some("10.0.0.1"))),
        (Some("0.0.0.0"), vec![four, six], Some(Some("0.0.0.0"))),
        (Some("fd00::1"), vec![four, six], Some(Some("fd00::1"))),
        (Some("fd00::1"), vec![four], None),
        (Some("10.0.0.1"), vec![six], None),
        (Some("::1"), vec![four, six], None),
        (Some("::1"), vec![six], None),
    ] {
        let port = PortMapping {
            protocol: Protocol::Udp,
            container_port: 53,
            host_port: 5353,
            host_ip: at.map(ip),
        };
        let published: Vec<_> = published_ports(&[port], &ips)
            .into_iter()
            .map(|port| (port.protocol, port.at, port.port, port.to_port))
            .collect();
        let expected: Vec<_> = expected
            .into_iter()
            .map(|at: Option<&str>| (Transport::Udp, at.map(ip), 5353, 53))
            .collect();
        assert_eq!(published, expected, "{at:?} {ips:?}");
    }
    for (protocol, transport) in [
        (Protocol::Tcp, Transport::Tcp),
        (Protocol::Udp, Transport::Udp),
        (Protocol::Sctp, Transport::Sctp),
    ] {
        let port = PortMapping {
            protocol,
            container_port: 1,
            host_port: 2,
            host_ip: None,
        };
        assert_eq!(published_port(&port).protocol, transport);
    }
}

#[test]
fn limits_are_of_the_directions_that_have_a_rate() {
    let rates = |limits: Limits| {
        [limits.into, limits.out]
            .map(|limit| limit.map(|limit| (limit.bits_per_second, limit.burst_bits)))
    };
    let bandwidth = |ingress_bits, egress_bits| {
        Some(Bandwidth {
            ingress_bits,
            egress_bits,
        })
    };
    for (asked, expected) in [
        (None, [None, None]),
        (bandwidth(None, None), [None, None]),
        (bandwidth(Some(0), Some(8)), [None, Some(8)]),
        (bandwidth(Some(9), None), [Some(9), None]),
        (bandwidth(Some(9), Some(8)), [Some(9), Some(8)]),
    ] {
        let expected = expected.map(|rate| rate.map(|rate| (rate, MAX_BURST_BITS)));
        assert_eq!(rates(limits(asked)), expected, "{asked:?}");
    }
}

#[test]
fn hardware_address_is_that_which_was_asked_for() {
    for text in [
        "02:42:ac:11:65:43",
        "fe:ff:ff:ff:ff:ff",
        "00:00:00:00:00:01",
    ] {
        let mac = hardware_address(MacAddress::parse(text).unwrap()).unwrap();
        assert_eq!(mac.to_string(), text);
    }
}

/// The golden file has what the plugin `bridge` 1.1.1 returns, with other names and hardware addresses.
#[test]
fn result_is_as_the_plugins_return_it() {
    let address = |text: &str, prefix, gateway: &str| AssignedAddress {
        address: ip(text),
        prefix,
        gateway: ip(gateway),
    };
    let mac = |text: &str| text.parse::<Mac>().unwrap();
    let attached = Attached {
        host_link: LinkName::new("sw0123456789ab").unwrap(),
        host_mac: mac("3a:97:79:0a:eb:3d"),
        bridge_mac: mac("e6:cd:92:7f:30:cd"),
        mac: mac("02:42:ac:1a:50:02"),
        addresses: vec![
            address("172.26.80.2", 20, "172.26.80.1"),
            address("fd00:26:80::2", 64, "fd00:26:80::1"),
        ],
    };
    let netns = Path::new("/run/switchyard/ns/c0ffee/net");
    let bridge = |is_gateway| BridgeSettings {
        name: LinkName::new("switchyard0").unwrap(),
        subnets: Vec::new(),
        is_gateway,
        has_masquerade: true,
        mtu: None,
        addresses_dir: PathBuf::new(),
        owner: String::new(),
        direct_routing: true,
    };
    let internal = cni_result("1.0.0", &bridge(false), netns, &attached);
    assert_eq!(internal["routes"], json!([]));
    let result = cni_result("1.0.0", &bridge(true), netns, &attached);
    let golden: Value = serde_json::from_str(include_str!("../golden/result.json")).unwrap();
    assert_eq!(result, golden);
    let read = cni::CniResult::from_value(result.clone(), cni::SpecVersion::V1_0_0).unwrap();
    assert_eq!(read.raw, result);
    assert_eq!(
        read.pod_ips(INTERFACE),
        [ip("172.26.80.2"), ip("fd00:26:80::2")]
    );
}

#[test]
fn bridge_is_what_plugins_would_make_of_the_list() {
    let plugin = |change: fn(&mut Value)| {
        let mut plugin = json!({
            "type": "bridge", "bridge": "swy-1", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "capabilities": { "mac": true, "ips": true },
            "ipam": { "type": "host-local", "dataDir": "/run/a", "ranges": [[{ "subnet": "10.7.0.0/16" }]], "routes": [] },
        });
        change(&mut plugin);
        let list = json!({ "cniVersion": "1.0.0", "name": "swy-1", "plugins": [plugin, { "type": "firewall" }] });
        let list = cni::NetworkList::parse(Path::new("list"), list.to_string().as_bytes());
        bridge_settings(&list.unwrap())
    };
    let subnet = |text: &str, [first, last, gateway]: [Option<&str>; 3]| BridgeSubnet {
        subnet: text.parse().unwrap(),
        limits: RangeLimits {
            first: first.map(ip),
            last: last.map(ip),
            gateway: gateway.map(ip),
        },
    };
    let plain = || BridgeSettings {
        name: LinkName::new("swy-1").unwrap(),
        subnets: vec![subnet("10.7.0.0/16", [None; 3])],
        is_gateway: true,
        has_masquerade: true,
        mtu: None,
        addresses_dir: "/run/a".into(),
        owner: String::new(),
        direct_routing: true,
    };
    assert_eq!(plugin(|_| {}).unwrap(), plain());
    let internal = plugin(|plugin| {
        plugin["isGateway"] = false.into();
        plugin["ipMasq"] = false.into();
        plugin["mtu"] = 1400.into();
    });
    let expected = BridgeSettings {
        is_gateway: false,
        has_masquerade: false,
        mtu: Some(1400),
        ..plain()
    };
    assert_eq!(internal.unwrap(), expected);
    let ranges = plugin(|plugin| {
        let first = json!({ "subnet": "10.7.0.0/16", "rangeStart": "10.7.5.0", "rangeEnd": "10.7.5.255", "gateway": "10.7.0.9" });
        plugin["ipam"]["ranges"] = json!([[first], [{ "subnet": "fd00:7::/64" }]]);
    });
    let expected = [
        subnet(
            "10.7.0.0/16",
            [Some("10.7.5.0"), Some("10.7.5.255"), Some("10.7.0.9")],
        ),
        subnet("fd00:7::/64", [None; 3]),
    ];
    assert_eq!(ranges.unwrap().subnets, expected);
    let unfit: [fn(&mut Value); 5] = [
        |plugin| plugin["bridge"] = "other".into(),
        |plugin| plugin["type"] = "macvlan".into(),
        |plugin| plugin["ipam"]["ranges"] = json!([[{ "subnet": "ten" }]]),
        |plugin| {
            let two = json!([{ "subnet": "10.7.0.0/24" }, { "subnet": "10.8.0.0/24" }]);
            plugin["ipam"]["ranges"] = json!([two]);
        },
        |plugin| plugin["ipam"] = json!({ "type": "dhcp" }),
    ];
    for change in unfit {
        let refused = plugin(change).unwrap_err();
        assert_eq!(
            refused.kind(),
            switchyard_core::ErrorKind::InvalidArgument,
            "{refused}"
        );
    }
}

#[test]
fn bridges_have_owners_and_pods_are_reached_by_routes() {
    for direct_routing in [true, false] {
        let policy = BridgePolicy {
            own: "switchyard0".into(),
            pods: "switchyard-pods".into(),
            direct_routing,
        };
        for (name, owner, is_open) in [
            ("switchyard0", "", direct_routing),
            ("switchyard-pods", "kubernetes", true),
            ("swy-0123456789a", "swarm", direct_routing),
            // Former names of the bridge of pods.
            ("pods0", "pods0", direct_routing),
            ("swy-pods", "swy-pods", direct_routing),
        ] {
            let plugin = json!({
                "type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true,
                "ipam": { "type": "host-local", "dataDir": "/run/a", "ranges": [[{ "subnet": "10.7.0.0/16" }]] },
            });
            let list = json!({ "cniVersion": "1.0.0", "name": name, "plugins": [plugin] });
            let list = cni::NetworkList::parse(Path::new("list"), list.to_string().as_bytes());
            let settings = policy.settings(&list.unwrap()).unwrap();
            let found = (settings.owner.as_str(), settings.direct_routing);
            assert_eq!(found, (owner, is_open), "{name}");
        }
    }
}
