//! Commands of CNI 1.1 that plugins of the node's network may have beside ADD and DEL: STATUS and GC.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_linux::process::ProcessId;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::root::PrivateRoot;

/// Time for the daemon to ask plugins.
const LIMIT: Duration = Duration::from_secs(60);

/// A network that is a plugin alone: it writes down what it gets, and has no device. Debian's plugins do not know CNI 1.1.
const PLUGIN: &str = r#"#!/bin/sh
cat > "DIR/$CNI_COMMAND.part" && mv "DIR/$CNI_COMMAND.part" "DIR/$CNI_COMMAND"
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/pod"}],"ips":[{"address":"10.99.0.2/24","interface":0}]}' ;;
GC) [ ! -e "DIR/hangs" ] || { sleep 1000 & echo "$$ $!" > "DIR/pids.part"; mv "DIR/pids.part" "DIR/pids"; wait; } ;;
STATUS) [ ! -e "DIR/refuses" ] || { echo '{"cniVersion":"1.1.0","code":50,"msg":"no addresses yet"}'; exit 1; } ;;
esac
"#;

/// Installs the plugin, with `loopback` before it, which is not installed; returns its directory and the daemon's settings.
fn install(root: &PrivateRoot, gc: bool) -> (PathBuf, String) {
    let dir = root.path().join("cni/recording");
    fs::create_dir_all(&dir).expect("the root can be written");
    let plugin = dir.join("recording");
    let script = PLUGIN.replace("DIR", dir.to_str().expect("the path is ASCII"));
    fs::write(&plugin, script).expect("the root can be written");
    fs::set_permissions(&plugin, Permissions::from_mode(0o755)).expect("it is ours");
    let list = json!({
        "cniVersion": "1.1.0", "name": "recorded", "plugins": [{ "type": "loopback" }, { "type": "recording" }],
    });
    let conflist = root.cni_conf().join("05-recorded.conflist");
    fs::write(conflist, list.to_string()).expect("the root can be written");
    let settings = format!("[network]\nbin_dirs = [{dir:?}]\ngc = {gc}\n");
    (dir, settings)
}

/// A node with this network.
fn start(gc: bool) -> (TestNode, PathBuf) {
    let mut place = PathBuf::new();
    let node = TestNode::start_configured(|root| {
        let (dir, settings) = install(root, gc);
        place = dir;
        settings
    });
    (node, place)
}

#[test]
fn network_is_not_ready_while_a_plugin_refuses_status_and_pods_start_all_the_same() {
    let (node, dir) = start(false);
    let condition = || {
        node.cri()
            .condition("NetworkReady")
            .expect("Status answers")
    };
    assert!(condition().status, "{:?}", condition());
    fs::write(dir.join("refuses"), "").expect("the root can be written");
    assert!(
        eventually(LIMIT, || !condition().status),
        "{:?}",
        condition()
    );
    let message = condition().message;
    for part in ["recorded", "recording", "STATUS", "no addresses yet"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // Whether ADD succeeds, the plugin says on ADD.
    let pod = node.pod("early");
    assert_eq!(pod.ip(), "10.99.0.2");
    fs::remove_file(dir.join("refuses")).expect("it was made");
    assert!(
        eventually(LIMIT, || condition().status),
        "{:?}",
        condition()
    );
}

#[test]
fn gc_is_told_the_pods_of_the_daemon_at_a_start_if_the_configuration_asks_for_it() {
    let (node, dir) = start(true);
    let valid = || {
        let text = fs::read_to_string(dir.join("GC")).unwrap_or_default();
        let given: Value = serde_json::from_str(&text).unwrap_or_default();
        let valid = given.get("cni.dev/valid-attachments").cloned();
        assert_eq!(given.get("cni.dev/attachments").cloned(), valid);
        valid
    };
    assert!(
        eventually(LIMIT, || valid() == Some(json!([]))),
        "{:?}",
        valid()
    );
    let pod = node.pod("kept");
    node.daemon().kill9();
    node.daemon().restart();
    let expected = json!([{ "containerID": pod.id(), "ifname": "eth0" }]);
    assert!(
        eventually(LIMIT, || valid().as_ref() == Some(&expected)),
        "{:?}",
        valid()
    );
    drop(pod);
    assert!(dir.join("DEL").exists(), "it ends by DEL all the same");
}

#[test]
fn gc_of_a_killed_daemon_ends_before_the_next_one_attaches_pods() {
    let (node, dir) = start(true);
    assert!(eventually(LIMIT, || dir.join("GC").exists()));
    fs::write(dir.join("hangs"), "").expect("the root can be written");
    node.daemon().kill9();
    node.daemon().restart();
    let pids = dir.join("pids");
    assert!(eventually(LIMIT, || pids.exists()), "GC begins");
    let pids = fs::read_to_string(pids).expect("it is there");
    let processes: Vec<_> = pids
        .split_whitespace()
        .map(|pid| ProcessId::of(pid.parse().expect("it is a pid")).expect("it runs"))
        .collect();
    assert_eq!(processes.len(), 2, "{pids}");
    fs::remove_file(dir.join("hangs")).expect("it was made");
    fs::remove_file(dir.join("GC")).expect("it was made");
    node.daemon().kill9();
    assert!(processes.iter().all(ProcessId::is_alive), "{pids}");
    node.daemon().restart();
    assert!(!processes.iter().any(ProcessId::is_alive), "{pids}");
    assert_eq!(node.pod("next").ip(), "10.99.0.2");
    assert!(
        eventually(LIMIT, || dir.join("GC").exists()),
        "it is repeated"
    );
}
