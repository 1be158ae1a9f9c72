//! 4xx: a kubelet. 5xx: Nomad. 7xx: devices.

use switchyard_operator_api::{GroupView, SlotView};

use super::*;

const KUBELET: &str = "/var/lib/kubelet/config.yaml";

#[test]
fn kubelet_with_another_runtime() {
    let other = "cgroupDriver: cgroupfs\ncontainerRuntimeEndpoint: /var/run/crio/crio.sock\n";
    let listening = |node: &mut TestNode| {
        node.file(KUBELET, other);
        node.sockets.insert("/run/crio/crio.sock".into(), true);
    };
    check(listening, &["SY401 warning"]);
    check(
        |node| {
            listening(node);
            node.config("[cri]\nenabled = false");
        },
        &[],
    );
    check(
        |node| node.file(KUBELET, other),
        &["SY401 warning", "SY402 error"],
    );
    // An argument wins over the file, also one of kubeadm.
    let flags =
        "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/dockershim.sock --x=y\"\n";
    let found = check(
        |node| {
            node.file("/var/lib/kubelet/kubeadm-flags.env", flags);
            node.sockets.insert("/run/dockershim.sock".into(), false);
        },
        &["SY401 warning", "SY402 error", "SY405 note"],
    );
    assert!(found[0].found.contains("/run/dockershim.sock"), "{found:?}");
}

#[test]
fn kubelet_with_another_cgroup_driver() {
    let endpoint = "containerRuntimeEndpoint: unix:///run/switchyard/cri.sock\n";
    check(|node| node.file(KUBELET, endpoint), &["SY403 error"]);
    check(
        |node| {
            node.file(KUBELET, endpoint);
            node.command("kubelet --version", "Kubernetes v1.34.2\n");
        },
        &["SY403 note"],
    );
    check(
        |node| {
            node.file(KUBELET, endpoint);
            node.config("[cgroup]\ndriver = \"cgroupfs\"");
        },
        &[],
    );
}

#[test]
fn kubelet_without_the_service_it_uses() {
    check(
        |node| node.config("[cri]\nenabled = false"),
        &["SY404 error"],
    );
}

#[test]
fn sockets_and_tools_of_other_runtimes() {
    check(
        |node| node.socket("/run/crio/crio.sock", false),
        &["SY405 note"],
    );
    check(|node| node.socket("/run/crio/crio.sock", true), &[]);
    check(
        |node| node.file("/etc/crictl.yaml", "runtime-endpoint: /run/x.sock\n"),
        &["SY406 note"],
    );
}

#[test]
fn kubelet_and_swap() {
    let swaps = "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n";
    check(|node| node.file("/proc/swaps", swaps), &["SY407 warning"]);
    check(
        |node| {
            node.file("/proc/swaps", swaps);
            node.process(200, "/usr/bin/kubelet --fail-swap-on=false");
        },
        &[],
    );
}

#[test]
fn kubelet_with_drop_ins() {
    let with = |dropped: &'static [(&'static str, &'static str)]| {
        move |node: &mut TestNode| {
            let swaps = "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n";
            node.file("/proc/swaps", swaps);
            let config = "{\"cgroupDriver\": \"cgroupfs\", \"failSwapOn\": true, \
                 \"containerRuntimeEndpoint\": \"unix:///run/switchyard/cri.sock\"}";
            node.file("/etc/k.json", config);
            let kubelet = "/usr/bin/kubelet --config=/etc/k.json --config-dir /etc/k.d";
            node.process(200, kubelet);
            for (name, text) in dropped {
                node.file(&format!("/etc/k.d/{name}"), text);
            }
        }
    };
    check(with(&[]), &["SY403 error", "SY407 warning"]);
    let last_wins = &[
        ("10-a.conf", "cgroupDriver: systemd\nfailSwapOn: true\n"),
        ("20-b.conf", "{\"failSwapOn\": false}"),
        ("30-c.yaml", "cgroupDriver: cgroupfs\nfailSwapOn: true\n"),
    ];
    check(with(last_wins), &[]);
}

const GROUP: &str = "[[devices.groups]]\nvendor = \"a\"\ntype = \"tpu\"\nname = \"v\"\nresource = \"a.com/tpu\"\npaths = [\"/dev/a[0-9]\"]\nquota = { kubernetes = 1 }";

fn with_group(node: &mut TestNode, capacity: usize) {
    node.config(GROUP);
    node.devices.groups.push(GroupView {
        vendor: "a".into(),
        kind: "tpu".into(),
        name: "v".into(),
        resource: "a.com/tpu".into(),
        capacity,
        free: 0,
        held: Vec::new(),
    });
    node.file("/var/lib/kubelet/device-plugins/x", "");
}

#[test]
fn devices_of_the_node() {
    check(|node| with_group(node, 1), &[]);
    check(|node| with_group(node, 0), &["SY701 warning"]);
    check(
        |node| {
            with_group(node, 1);
            node.remove("/var/lib/kubelet/device-plugins");
        },
        &["SY408 warning"],
    );
    let slot = SlotView {
        id: "1".into(),
        device: "/dev/a0".into(),
        group: "a/tpu/v".into(),
        healthy: false,
        reason: "it is missing".into(),
        holders: Vec::new(),
    };
    let found = check(
        |node| node.devices.slots = vec![slot.clone(), slot],
        &["SY703 warning"],
    );
    assert_eq!(found[0].found, "/dev/a0 (it is missing)");
}

#[test]
fn files_of_the_container_device_interface() {
    let file = |name: &str, text: &str, expected: &[&str]| {
        check(
            |node| node.file(&format!("/etc/cdi/{name}"), text),
            expected,
        );
    };
    let json = |devices: &str| {
        format!(r#"{{"cdiVersion":"1.1.0","kind":"a.com/x","devices":[{devices}]}}"#)
    };
    let device =
        |name: &str, edits: &str| format!(r#"{{"name":"{name}","containerEdits":{{{edits}}}}}"#);
    let good = device("0", r#""env":["A=b"]"#);
    file("a.json", &json(&good), &[]);
    file(
        "a.yaml",
        "cdiVersion: 0.6.0\nkind: a.com/x\ndevices:\n- name: 0\n  containerEdits:\n    deviceNodes: [{path: /dev/x, fileMode: 0660}]\n",
        &[],
    );
    file("a.json", &format!("\u{feff}{}", json(&good)), &[]);
    file("README", "{", &[]);
    // What the daemon refuses, syntax aside, is found too.
    for wrong in [
        "{".to_owned(),
        "[]".to_owned(),
        r#"{"kind": "a.com/x"}"#.to_owned(),
        json(""),
        json(&device("0", "")),
        json(&device("0 1", r#""env":["A=b"]"#)),
        json(&device("0", r#""env":["A=b"],"strange":1"#)),
        json(&device(
            "0",
            r#""hooks":[{"hookName":"never","path":"/h"}]"#,
        )),
        json(&format!("{good},{good}")),
        json(&device(
            "0",
            r#""netDevices":[{"hostInterfaceName":"vf7","name":"eth1"}]"#,
        )),
        json(&good).replace("1.1.0", "9.9.9"),
        "x".repeat(5 << 20),
    ] {
        file("a.json", &wrong, &["SY702 warning"]);
    }
    let twice = check(
        |node| {
            node.file("/etc/cdi/a.json", &json(&good));
            node.file("/etc/cdi/b.json", &json(&good));
        },
        &["SY702 warning"],
    );
    assert!(
        twice[0]
            .found
            .contains("a.com/x=0: it is in both /etc/cdi/a.json and /etc/cdi/b.json"),
        "{twice:?}"
    );
}

const AGENT: &str = "/etc/nomad.d/switchyard.hcl";

#[test]
fn agent_without_plugin_blocks() {
    check(|node| node.remove(AGENT), &["SY501 warning"]);
    check(
        |node| {
            node.remove(AGENT);
            node.config("[nomad]\nenabled = false");
        },
        &[],
    );
    // A server has no drivers.
    check(
        |node| {
            node.remove(AGENT);
            node.file("/etc/nomad.d/nomad.hcl", "server {\n  enabled = true\n}\n");
        },
        &[],
    );
    check(
        |node| {
            with_group(node, 1);
            node.file(AGENT, "plugin \"switchyard\" {}\n");
        },
        &["SY507 note"],
    );
}

#[test]
fn plugins_in_the_agents_directory() {
    let found = check(
        |node| node.remove("/opt/nomad/data/plugins/switchyard"),
        &["SY502 error"],
    );
    assert_eq!(
        found[0].command.as_deref(),
        Some("switchyard nomad-plugin install /opt/nomad/data/plugins")
    );
    let found = check(
        |node| node.remove("/usr/bin/switchyard"),
        &["SY503 error", "SY503 error"],
    );
    assert!(
        found[0].found.contains("leads to /usr/bin/switchyard"),
        "{found:?}"
    );
    check(
        |node| {
            node.file(AGENT, "plugin_dir = \"/p\"\nplugin \"switchyard\" {}\n");
            node.file("/p/switchyard", "no program");
        },
        &["SY503 error"],
    );
}

#[test]
fn agent_whose_plugins_have_no_session() {
    let alone = |node: &mut TestNode| node.status.as_mut().unwrap().nomad_launchers = Some(0);
    check(alone, &["SY508 warning"]);
    // A fault of its files is reported as such.
    let found = look(|node| {
        alone(node);
        node.remove("/opt/nomad/data/plugins/switchyard");
    });
    let mut codes = found.findings.iter().map(|finding| finding.code.as_str());
    assert!(!codes.any(|code| code == "SY508"));
}

#[test]
fn plugin_directories_are_those_of_all_agents_of_the_node() {
    let dirs = |node: &TestNode| -> Vec<String> {
        let found = crate::nomad::plugin_dirs(node);
        assert!(found.unknown.is_empty(), "{found:?}");
        let dirs = found.dirs.iter();
        dirs.map(|dir| dir.display().to_string()).collect()
    };
    let mut node = TestNode::healthy();
    assert_eq!(dirs(&node), ["/opt/nomad/data/plugins"]);
    node.file("/srv/b.hcl", "plugin_dir = \"/srv/b\"\n");
    node.process(
        202,
        "/usr/bin/nomad agent -config=/srv/b.hcl -data-dir /srv/data",
    );
    node.process(
        203,
        "/usr/bin/nomad agent -dev -plugin-dir=/srv/dev -data-dir=relative",
    );
    node.process(204, "/usr/bin/nomad agent -plugin-dir=/srv/contained");
    node.contained.insert(204);
    node.process(205, "/usr/bin/nomad job status -plugin-dir=/srv/job");
    let expected = [
        "/opt/nomad/data/plugins",
        "/srv/b",
        "/srv/data/plugins",
        "/srv/dev",
    ];
    assert_eq!(dirs(&node), expected);
    node.remove("/etc/nomad.d/nomad.hcl");
    assert_eq!(dirs(&node), expected[1..]);
}

#[test]
fn configuration_of_an_agent_is_found_from_its_directory_and_else_reported() {
    let mut node = TestNode::healthy();
    node.process(202, "/usr/bin/nomad agent -config conf/agent.hcl");
    node.file("/srv/conf/agent.hcl", "plugin_dir = \"/srv/plugins\"\n");
    let found = crate::nomad::plugin_dirs(&node);
    assert_eq!(
        found.dirs,
        BTreeSet::from(["/opt/nomad/data/plugins".into()])
    );
    let unknown: Vec<_> = found.unknown.into_iter().collect();
    assert!(
        unknown.len() == 1 && unknown[0].contains("conf/agent.hcl"),
        "{unknown:?}"
    );
    node.links.insert("/proc/202/cwd".into(), "/srv".into());
    let found = crate::nomad::plugin_dirs(&node);
    assert!(found.dirs.contains(Path::new("/srv/plugins")), "{found:?}");
    assert!(found.unknown.is_empty(), "{found:?}");
    // A file that is gone named directories that nobody knows.
    node.remove("/srv/conf/agent.hcl");
    assert_eq!(crate::nomad::plugin_dirs(&node).unknown.len(), 1);
}

#[test]
fn agent_and_daemon_that_do_not_fit() {
    let args = |args: &str| format!("plugin \"switchyard\" {{\n  args = [{args}]\n}}\n");
    check(
        |node| node.file(AGENT, &args("\"--socket\", \"/x.sock\"")),
        &["SY504 error"],
    );
    check(
        |node| node.file(AGENT, &args("\"--socket=/run/switchyard/nomad.sock\"")),
        &[],
    );
    check(
        |node| node.config("[nomad]\nenabled = false"),
        &["SY506 error"],
    );
    let docker = |node: &mut TestNode| node.socket("/run/docker.sock", true);
    check(docker, &["SY505 note"]);
    check(
        |node| {
            docker(node);
            node.file(AGENT, &args("\"--name\", \"docker\""));
        },
        &[],
    );
}

/// The codes about kubelets and agents that are found by the daemon of the run directory `/srv/x/run`.
fn found_at_x(mut node: TestNode) -> Vec<String> {
    for name in ["admin", "cri", "nomad", "logkeeper/logkeeper"] {
        node.socket(&format!("/srv/x/run/{name}.sock"), true);
    }
    let request = DoctorRequest {
        socket: Some("/srv/x/run/admin.sock".into()),
        ..DoctorRequest::default()
    };
    let report = run(Arc::new(node), request);
    assert!(report.daemon, "{:?}", report.findings);
    let codes = report.findings.iter().map(|found| found.code.to_string());
    codes
        .filter(|code| code.starts_with("SY4") || code.starts_with("SY5"))
        .collect()
}

#[test]
fn sockets_are_those_of_the_daemon_that_answers_also_if_its_files_are_not_known() {
    let mut node = TestNode::healthy();
    // As in another PID namespace.
    node.contained.extend(i32::try_from(DAEMON));
    node.in_force = Some("version = 1\n[paths]\nrun = \"/srv/x/run\"\n".to_owned());
    node.file(
        AGENT,
        "plugin \"switchyard\" {\n  args = [\"--socket\", \"/srv/x/run/nomad.sock\"]\n}\n",
    );
    for file in ["/var/lib/kubelet/config.yaml", "/etc/crictl.yaml"] {
        let text = node.files[Path::new(file)].replace("/run/switchyard/", "/srv/x/run/");
        node.file(file, &text);
    }
    assert_eq!(found_at_x(node.clone()), Vec::<String>::new());
    // What the file says takes effect later.
    node.contained.clear();
    assert_eq!(found_at_x(node), Vec::<String>::new());
}

#[test]
fn orchestrators_of_another_daemon_of_the_node_are_not_looked_for_at_this_one() {
    let mut node = TestNode::healthy();
    node.process(300, "/usr/bin/switchyard serve --config /srv/x/config.toml");
    node.configs.insert(
        "/srv/x/config.toml".into(),
        "version = 1\n[paths]\nrun = \"/srv/x/run\"\nstate = \"/srv/x/state\"\n".to_owned(),
    );
    node.status.as_mut().unwrap().pid = Some(300);
    assert_eq!(found_at_x(node.clone()), Vec::<String>::new());
    // Without it, nobody serves them.
    node.remove(&format!("/proc/{DAEMON}"));
    assert_eq!(found_at_x(node), ["SY504", "SY401", "SY406"]);
}
