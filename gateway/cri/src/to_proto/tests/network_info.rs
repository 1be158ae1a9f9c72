//! The network in the verbose status of a pod.

use serde_json::Value;

use super::*;

#[test]
fn network_of_a_pod_is_shown_as_containerd_shows_it() {
    let shown = |result: Value, netns_closed: bool| {
        let inspection = Inspection {
            cni_result: result.to_string(),
            netns_closed,
            ..Inspection::default()
        };
        let info = sandbox_info(&sandbox(SandboxState::Ready), None, &inspection);
        let info: Value = serde_json::from_str(&info["info"]).expect("it is JSON");
        assert_eq!(info["netNamespaceClosed"], netns_closed);
        info["cniResult"].clone()
    };
    let config = |addresses: Value, mac: &str, sandbox: &str| json!({ "IPConfigs": addresses, "Mac": mac, "Sandbox": sandbox, "PciID": "", "SocketPath": "" });
    let bridge = json!({
        "cniVersion": "1.0.0",
        "interfaces": [
            { "name": "cni0", "mac": "m0" },
            { "name": "eth0", "mac": "m1", "sandbox": "/ns" },
        ],
        "ips": [
            { "interface": 1, "address": "10.0.0.2/24", "gateway": "10.0.0.1" },
            { "interface": 1, "address": "fd00::2/64" },
        ],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dns": { "nameservers": ["10.0.0.1"] },
    });
    let addresses = json!([
        { "IP": "10.0.0.2", "Gateway": "10.0.0.1" },
        { "IP": "fd00::2", "Gateway": "" },
    ]);
    let expected = json!({
        "Interfaces": {
            "cni0": config(Value::Null, "m0", ""),
            "eth0": config(addresses, "m1", "/ns"),
        },
        "DNS": [{ "nameservers": ["10.0.0.1"] }],
        "Routes": [{ "dst": "0.0.0.0/0" }],
    });
    assert_eq!(shown(bridge, false), expected);
    // Plugins may name no interface, an interface that is not there, and nothing at all.
    for (ips, addresses) in [
        (
            json!([{ "address": "10.0.0.2/24" }]),
            json!([{ "IP": "10.0.0.2", "Gateway": "" }]),
        ),
        (
            json!([{ "interface": 7, "address": "10.0.0.2/24" }]),
            json!([{ "IP": "10.0.0.2", "Gateway": "" }]),
        ),
        (json!(null), json!(null)),
        (json!("odd"), json!(null)),
    ] {
        let expected = json!({
            "Interfaces": { "eth0": config(addresses, "", "") },
            "DNS": [{}],
            "Routes": [],
        });
        assert_eq!(shown(json!({ "ips": ips }), true), expected, "{ips}");
    }
}
