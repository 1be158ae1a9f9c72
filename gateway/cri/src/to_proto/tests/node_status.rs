//! The status of the node.

use super::*;

fn backend() -> BackendStatus {
    BackendStatus {
        runtime: Condition::True,
        contact_losses: 0,
        network: Condition::False {
            reason: "NetworkPluginNotReady".into(),
            message: "no conf".into(),
        },
        disk: Condition::True,
        snapshotters: Condition::True,
        version: "containerd 1.6".into(),
        cgroup_driver: CgroupDriver::Cgroupfs,
        network_config: r#"{"name":"net","cniVersion":"1.0.0","plugins":[{"type":"bridge"}]}"#
            .into(),
        bridge_address: None,
        facts: BTreeMap::from([
            ("stateDir".into(), "/run/x".into()),
            ("maxContainerLogLineSize".into(), "16384".into()),
        ]),
        troubles: BTreeMap::from([(Trouble::SilentShim, vec!["a".into(), "b".into()])]),
        advisories: Vec::new(),
        disks: Vec::new(),
    }
}

#[test]
fn recovering_node_is_not_ready() {
    let conditions = |recovered| {
        let status = status(&backend(), recovered, &[])
            .status
            .expect("it is set");
        status
            .conditions
            .into_iter()
            .map(|c| (c.r#type, c.status, c.reason))
            .collect::<Vec<_>>()
    };
    let network = (
        "NetworkReady".to_owned(),
        false,
        "NetworkPluginNotReady".to_owned(),
    );
    assert_eq!(
        conditions(true),
        [
            ("RuntimeReady".into(), true, String::new()),
            network.clone()
        ]
    );
    assert_eq!(
        conditions(false),
        [("RuntimeReady".into(), false, "Recovering".into()), network]
    );
}

#[test]
fn default_handler_is_also_listed_with_empty_name() {
    let handler = |name: &str, recursive_readonly_mounts| Handler {
        name: name.into(),
        recursive_readonly_mounts,
        user_namespaces: false,
    };
    let status = status(
        &backend(),
        true,
        &[handler("runc", true), handler("crun", false)],
    );
    let listed: Vec<_> = status
        .runtime_handlers
        .into_iter()
        .map(|handler| {
            (
                handler.name,
                handler
                    .features
                    .expect("it is set")
                    .recursive_read_only_mounts,
            )
        })
        .collect();
    assert_eq!(
        listed,
        [
            ("".into(), true),
            ("runc".into(), true),
            ("crun".into(), false)
        ]
    );
}

#[test]
fn user_namespaces_go_with_the_network_of_the_host_if_a_handler_has_any() {
    let cases: [&[bool]; 4] = [&[], &[false], &[true], &[false, true]];
    for handlers in cases {
        let listed: Vec<_> = handlers
            .iter()
            .map(|&user_namespaces| Handler {
                name: "x".into(),
                recursive_readonly_mounts: false,
                user_namespaces,
            })
            .collect();
        let features = status(&backend(), true, &listed).features;
        assert_eq!(
            features.expect("it is set").user_namespaces_host_network,
            handlers.contains(&true),
            "{handlers:?}"
        );
    }
}

#[test]
fn verbose_info_has_backend_facts() {
    let info = status_info(&backend(), &[]);
    let config: serde_json::Value = serde_json::from_str(&info["config"]).expect("it is JSON");
    assert_eq!(config["stateDir"], "/run/x");
    assert_eq!(config["maxContainerLogLineSize"], 16384);
    assert_eq!(config["shims.silent"], "a, b");
    assert_eq!(config["cgroupDriver"], "cgroupfs");
    let config: serde_json::Value = serde_json::from_str(&info["cniconfig"]).expect("it is JSON");
    let network = &config["Networks"][0]["Config"];
    assert_eq!(
        (&network["Name"], &network["CNIVersion"]),
        (&json!("net"), &json!("1.0.0"))
    );
    assert_eq!(network["Plugins"][0]["Network"]["type"], "bridge");
    let none = BackendStatus {
        network_config: String::new(),
        ..backend()
    };
    assert_eq!(status_info(&none, &[])["cniconfig"], r#"{"Networks":[]}"#);
}

#[test]
fn cgroup_driver_is_always_reported() {
    let driver = |driver| {
        runtime_config(driver)
            .linux
            .expect("kubelets fall back without it")
            .cgroup_driver()
    };
    assert_eq!(driver(CgroupDriver::Cgroupfs), cri::CgroupDriver::Cgroupfs);
    assert_eq!(driver(CgroupDriver::Systemd), cri::CgroupDriver::Systemd);
}
