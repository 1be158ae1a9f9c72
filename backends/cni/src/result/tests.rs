//! Parsing results of every version.

use proptest::prelude::*;

use super::*;

fn read(value: &Value, wanted: SpecVersion) -> Result<CniResult, ResultError> {
    CniResult::parse(value.to_string().as_bytes(), wanted)
}

fn dual(version: &str) -> Value {
    json!({
        "cniVersion": version,
        "interfaces": [
            {"name": "cni0", "mac": "00:11:22:33:44:55"},
            {"name": "veth1", "mac": "55:44:33:22:11:11"},
            {"name": "eth0", "mac": "99:88:77:66:55:44", "sandbox": "/run/netns/blue"},
        ],
        "ips": [
            {"address": "fd00::5/64", "gateway": "fd00::1", "interface": 2, "version": "6"},
            {"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 2, "version": "4"},
            {"address": "192.0.2.9/32", "interface": 1, "version": "4"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00::1"}],
        "dns": {"nameservers": ["10.1.0.1"], "search": ["a.example"]},
        "own": {"kept": true},
    })
}

#[test]
fn results_of_every_cni_version_parse() {
    for version in SpecVersion::ALL {
        let raw = dual(version.as_str());
        let result = read(&raw, version).unwrap();
        assert_eq!(result.raw, raw, "{version}");
        assert_eq!(
            result.interfaces[2].sandbox.as_deref(),
            Some("/run/netns/blue")
        );
        assert_eq!(result.ips[1].address.to_string(), "10.1.0.5/16");
        assert_eq!(result.ips[1].gateway, Some("10.1.0.1".parse().unwrap()));
        assert_eq!(result.routes[1].gw, Some("fd00::1".parse().unwrap()));
        assert_eq!(result.dns.search, ["a.example"]);
    }
}

#[test]
fn pod_ips_come_from_its_interface_in_plugin_order() {
    let result = read(&dual("1.0.0"), SpecVersion::V1_0_0).unwrap();
    let ips: Vec<IpAddr> = vec!["fd00::5".parse().unwrap(), "10.1.0.5".parse().unwrap()];
    assert_eq!(result.pod_ips("eth0"), ips);
    assert_eq!(result.pod_ips("eth1"), Vec::<IpAddr>::new());
    let loose = read(
        &json!({"ips": [{"address": "10.0.0.2/8"}]}),
        SpecVersion::V1_0_0,
    )
    .unwrap();
    assert_eq!(
        loose.pod_ips("eth0"),
        ["10.0.0.2".parse::<IpAddr>().unwrap()]
    );
}

#[test]
fn list_in_place_of_an_object_is_rejected() {
    let lists = [
        json!([{"cniVersion": "1.0.0"}]),
        json!({"cniVersion": "1.0.0", "ips": [["10.0.0.2/24", null, null]]}),
        json!({"cniVersion": "1.0.0", "interfaces": [["eth0"]]}),
        json!({"cniVersion": "1.0.0", "routes": [["::/0", null]]}),
        json!({"cniVersion": "1.0.0", "dns": [null, null, null, null]}),
    ];
    for raw in lists {
        for wanted in [SpecVersion::V0_4_0, SpecVersion::V1_0_0] {
            let error = read(&raw, wanted).unwrap_err();
            assert!(matches!(error, ResultError::Json { .. }), "{raw}: {error}");
        }
    }
}

#[test]
fn result_of_another_version_is_converted() {
    let newer = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/8"}, {"address": "fd00::2/64"}]});
    let result = read(&newer, SpecVersion::V0_4_0).unwrap();
    assert_eq!(result.raw["cniVersion"], "0.4.0");
    assert_eq!(
        (
            &result.raw["ips"][0]["version"],
            &result.raw["ips"][1]["version"]
        ),
        (&json!("4"), &json!("6"))
    );
    let result = read(&dual("0.3.1"), SpecVersion::V1_1_0).unwrap();
    assert_eq!(result.raw["cniVersion"], "1.1.0");
    assert_eq!(result.raw["own"]["kept"], true);
    let without = read(
        &json!({"ips": null, "interfaces": null, "routes": null}),
        SpecVersion::V0_3_1,
    )
    .unwrap();
    assert_eq!(without.raw["cniVersion"], "0.3.1");
    assert!(without.ips.is_empty());
}

#[test]
fn invalid_result_is_rejected_with_a_reason() {
    let check = |text: &str, part: &str| {
        let error = CniResult::parse(text.as_bytes(), SpecVersion::V1_0_0).expect_err(text);
        let line = switchyard_linux::report(&error);
        assert!(line.contains(part), "{text}: {line}");
    };
    check("", "empty");
    check(" \n", "empty");
    check("success!", "success!");
    check("[]", "not a CNI result");
    check("null", "not a CNI result");
    check(r#"["1.0.0",null,null,null,null]"#, "not a CNI result");
    check(
        r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/8"}}"#,
        "0.2.0",
    );
    check(r#"{"ips":[{"address":"10.0.0.2"}]}"#, "10.0.0.2");
    check(r#"{"ips":[{"address":"10.0.0.2/33"}]}"#, "10.0.0.2/33");
    check(r#"{"ips":[{"address":"10.0.0.2/+8"}]}"#, "10.0.0.2/+8");
    check(r#"{"ips":[{"address":"host/8"}]}"#, "host/8");
    check(r#"{"ips":[{"address":"10.0.0.2/8","gateway":"gw"}]}"#, "gw");
    check(
        r#"{"ips":[{"address":"10.0.0.2/8","interface":0}]}"#,
        "only 0",
    );
    check(
        r#"{"ips":[{"address":"10.0.0.2/8","interface":-1}]}"#,
        "not a CNI result",
    );
    check(r#"{"routes":[{"dst":"default"}]}"#, "default");
}

proptest! {
    #[test]
    fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,40}") {
        let _ = CniResult::parse(&bytes, SpecVersion::V1_0_0);
        let _ = CniResult::parse(json!({"ips": [{"address": text, "gateway": text}], "cniVersion": text}).to_string().as_bytes(), SpecVersion::V0_4_0);
    }

    #[test]
    fn parsed_result_round_trips(v4 in any::<std::net::Ipv4Addr>(), v6 in any::<std::net::Ipv6Addr>(), prefix in 0_u8..=32) {
        let raw = json!({"ips": [{"address": format!("{v4}/{prefix}")}, {"address": format!("{v6}/{prefix}")}]});
        let once = read(&raw, SpecVersion::V0_4_0).unwrap();
        prop_assert_eq!(once.pod_ips("eth0"), vec![IpAddr::V4(v4), IpAddr::V6(v6)]);
        prop_assert_eq!(CniResult::from_value(once.raw.clone(), SpecVersion::V0_4_0).unwrap(), once);
    }
}
