//! Stops of pods whose plugins only undo what they have made on the node: their DEL runs behind the answer.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use switchyard_proto::cri::v1::{PodSandboxConfig, PodSandboxState, PortMapping};
use switchyard_tests::host::eventually;
use switchyard_tests::network::port_rules;
use switchyard_tests::node::TestNode;
use switchyard_tests::{cni_plugin, prereq};

/// Time for the daemon to do what it does behind an answer.
const LIMIT: Duration = Duration::from_secs(60);

/// Stands for the plugin `firewall`: its DEL of a sandbox waits as long as a file has its id.
const PLUGIN: &str = r#"if [ "$CNI_COMMAND" = DEL ]; then
  echo begun >>"DIR/dels"
  while grep -qs "$CNI_CONTAINERID" "DIR/hold"; do sleep 0.05; done
  echo done >>"DIR/dels"
fi
"#;

/// A node whose network ends with that plugin, and the plugin's directory.
fn start() -> (TestNode, PathBuf) {
    let mut place = PathBuf::new();
    let node = TestNode::start_configured(|root| {
        place = cni_plugin::add(root, "firewall", PLUGIN);
        format!(
            "[network]\nbin_dirs = [{place:?}, {:?}]\n",
            prereq::CNI_BIN_DIR
        )
    });
    (node, place)
}

/// A pod to which this port of the node leads.
fn with_port(node: &TestNode, name: &str, port: u16) -> PodSandboxConfig {
    let mut config = node.pod_config(name);
    config.port_mappings = vec![PortMapping {
        container_port: 80,
        host_port: port.into(),
        ..Default::default()
    }];
    config
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0");
    let address = listener.and_then(|listener| listener.local_addr());
    address.expect("loopback has a free port").port()
}

#[test]
fn stop_is_answered_before_plugins_are_done_and_who_needs_what_they_free_waits() {
    let (node, dir) = start();
    let port = free_port();
    let dels = || fs::read_to_string(dir.join("dels")).unwrap_or_default();
    let pod = node.run(with_port(&node, "first", port));
    fs::write(dir.join("hold"), pod.id()).expect("the root can be written");
    node.cri().stop_pod(pod.id()).expect("it can be stopped");
    assert_eq!(pod.status().state(), PodSandboxState::SandboxNotready);
    assert!(eventually(LIMIT, || dels() == "begun\n"), "{}", dels());
    node.cri().stop_pod(pod.id()).expect("it is stopped");
    let next = with_port(&node, "next", port);
    let id = thread::scope(|scope| {
        let starts = scope.spawn(|| node.cri().run_pod(&next));
        let waits = || {
            node.output(&["status", "--verbose"])
                .contains("wait_for_ports")
        };
        assert!(eventually(LIMIT, waits), "the ports are waited for");
        let removal = scope.spawn(|| node.cri().remove_pod(pod.id()));
        assert_eq!(dels(), "begun\n");
        fs::remove_file(dir.join("hold")).expect("it was made");
        let removed = removal.join().expect("the call does not panic");
        removed.expect("it can be removed");
        let started = starts.join().expect("the call does not panic");
        started.expect("the port is free")
    });
    assert!(dels().starts_with("begun\ndone\n"), "{}", dels());
    let rules = port_rules(port);
    let is_of_next = rules.iter().all(|rule| rule.contains(&id));
    assert!(!rules.is_empty() && is_of_next, "{rules:#?}");
    node.cri().stop_pod(&id).expect("it can be stopped");
    node.cri().remove_pod(&id).expect("it can be removed");
}

/// Lets the node's network give this address alone.
fn set_only_address(node: &TestNode, only: Ipv4Addr) {
    let file = node.root().cni_conf().join("10-test.conflist");
    let text = fs::read_to_string(&file).expect("it was written");
    let mut conf: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let range = &mut conf["plugins"][0]["ipam"]["ranges"][0][0];
    let only = only.to_string();
    (range["rangeStart"], range["rangeEnd"]) = (only.as_str().into(), only.as_str().into());
    fs::write(&file, conf.to_string()).expect("the root can be written");
}

#[test]
fn address_of_an_answered_stop_is_that_of_the_next_pod_on_a_full_network() {
    let (node, dir) = start();
    let [a, b, c, _] = node.root().network().gateway().octets();
    let only = Ipv4Addr::new(a, b, c, 77);
    set_only_address(&node, only);
    let waits = || {
        node.output(&["status", "--verbose"])
            .contains("wait_for_addresses")
    };
    let first = node.pod("first");
    // Without a stopped one there is nothing to wait for.
    let refused = node.cri().run_pod(&node.pod_config("full"));
    let refused = refused.expect_err("all addresses are taken");
    assert!(refused.message().contains("no IP addresses"), "{refused}");
    assert!(!waits());

    fs::write(dir.join("hold"), first.id()).expect("the root can be written");
    node.cri().stop_pod(first.id()).expect("it can be stopped");
    let next = node.pod_config("next");
    let next = thread::scope(|scope| {
        let starts = scope.spawn(|| node.cri().run_pod(&next));
        assert!(eventually(LIMIT, waits), "the address is waited for");
        fs::remove_file(dir.join("hold")).expect("it was made");
        let started = starts.join().expect("the call does not panic");
        started.expect("the address is free")
    });
    let status = node.cri().pod_status(&next).expect("it is there");
    let ip = status.network.map(|network| network.ip);
    assert_eq!(ip, Some(only.to_string()));
    node.cri().remove_pod(&next).expect("it can be removed");
}

#[test]
fn network_of_an_answered_stop_is_released_by_the_next_daemon() {
    let (node, dir) = start();
    let port = free_port();
    let pod = node.run(with_port(&node, "kept", port));
    fs::write(dir.join("hold"), pod.id()).expect("the root can be written");
    node.cri().stop_pod(pod.id()).expect("it can be stopped");
    assert!(eventually(LIMIT, || dir.join("dels").exists()));
    node.daemon().kill9();
    assert!(!port_rules(port).is_empty(), "plugins were held up");
    fs::remove_file(dir.join("hold")).expect("it was made");
    node.daemon().restart();
    assert_eq!(pod.status().state(), PodSandboxState::SandboxNotready);
    assert!(
        eventually(LIMIT, || port_rules(port).is_empty()),
        "{:#?}",
        port_rules(port)
    );
    // The port is held until then, and not longer.
    let next = node.run(with_port(&node, "next", port));
    assert_eq!(next.status().state(), PodSandboxState::SandboxReady);
}
