//! Networks of tasks: the gateway's own bridge with published ports, the host network, none, and a namespace
//! that the agent or the driver created.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::network_isolation_spec::NetworkIsolationMode;
use switchyard_proto::nomad::shared::structs::Attribute;
use switchyard_proto::nomad::shared::structs::attribute::Value::StringVal as Text;
use switchyard_tests::host::{ask, eventually, free_port, random_name};
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use switchyard_tests::prereq;

/// Time for a connection on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// The configuration of a daemon that attaches tasks to its bridge itself, which has the same families on each node.
pub(super) const NATIVE: &str = "[network.bridge]\ndriver = \"native\"\nipv6 = false\n";

/// A task that serves one line on a port, and says its addresses.
fn server(node: &TestNode, agent: &Agent, port: u16, more: Value) -> TaskSetup {
    let script = format!(
        "ip -o -4 addr; cat /etc/resolv.conf; while :; do echo served | nc -l -p {port}; done"
    );
    let mut config = json!({ "image": node.image(), "command": "sh", "args": ["-c", script] });
    config
        .as_object_mut()
        .expect("it is one")
        .extend(more.as_object().expect("it is one").clone());
    TaskSetup::new(node.root(), agent, "web", &config)
}

/// A network namespace as an agent makes one for a group. Dropping it removes it.
struct Netns {
    name: String,
    ip: PathBuf,
}

impl Netns {
    #[track_caller]
    fn make() -> Self {
        let netns = Self {
            name: format!("sw-{}", random_name()),
            ip: prereq::require("ip", "iproute2"),
        };
        assert!(
            netns.run(&["netns", "add", &netns.name]),
            "a namespace can be made"
        );
        assert!(
            netns.run(&["-n", &netns.name, "link", "set", "lo", "up"]),
            "it has a loopback"
        );
        netns
    }

    fn path(&self) -> String {
        format!("/var/run/netns/{}", self.name)
    }

    /// All users of the namespace must have released it by now.
    #[track_caller]
    fn remove(self) {
        assert!(
            self.run(&["netns", "delete", &self.name]),
            "it can be removed"
        );
    }

    fn run(&self, words: &[&str]) -> bool {
        Command::new(&self.ip)
            .args(words)
            .status()
            .expect("it starts")
            .success()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if Path::new(&self.path()).exists() {
            self.run(&["netns", "delete", &self.name]);
        }
    }
}

#[track_caller]
fn end(agent: &Agent, mut task: TaskSetup) {
    task.end(&agent.driver());
}

#[test]
fn task_without_network_mode_uses_the_bridge_with_published_ports() {
    use_the_bridge(&TestNode::shared());
}

#[test]
fn task_uses_the_bridge_without_plugins() {
    use_the_bridge(&TestNode::start_with(NATIVE, |_| {}));
}

fn use_the_bridge(node: &TestNode) {
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let port = free_port();
    let mut task = server(node, &agent, 8080, json!({ "ports": ["http"] }));
    let published = nomad::PortMapping {
        label: "http".into(),
        value: port.into(),
        to: 8080,
        host_ip: Ipv4Addr::LOCALHOST.to_string(),
    };
    task.config
        .resources
        .as_mut()
        .expect("it has some")
        .ports
        .push(published);
    let started = driver.start(&task.config).expect("it starts");
    let network = started
        .network_override
        .expect("the agent is reported where it is");
    assert_eq!(network.port_map.get("http"), Some(&8080), "{network:?}");
    let address: Ipv4Addr = network.addr.parse().expect("it is an address");
    task.wait_stdout(|text| text.contains(&address.to_string()));
    let inside = SocketAddr::from((address, 8080));
    assert!(
        eventually(SOON, || ask(inside, b"\n").as_deref() == Some("served\n")),
        "not served on {inside}"
    );
    let outside = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    assert!(
        eventually(SOON, || ask(outside, b"\n").as_deref() == Some("served\n")),
        "not published on {outside}"
    );
    let inspected = driver.inspect(task.id()).expect("it is there");
    assert_eq!(
        inspected.network_override.map(|network| network.addr),
        Some(address.to_string())
    );
    // Jobs find what runs on the node by this attribute.
    let mut fingerprints = driver.fingerprint().expect("it is opened");
    let printed = fingerprints
        .next(SOON)
        .expect("it does not end")
        .expect("it is no error")
        .attributes;
    let Some(Attribute {
        value: Some(Text(node_address)),
        ..
    }) = printed.get("driver.switchyard.bridge_ip")
    else {
        panic!("no address of the bridge: {printed:?}");
    };
    let route = driver
        .exec(task.id(), &["ip", "route"], SOON)
        .expect("it runs")
        .stdout;
    assert!(
        route.contains(&format!("default via {node_address} ")),
        "{node_address}: {route}"
    );
    end(&agent, task);
    assert!(ask(outside, b"\n").is_none(), "the port is still published");
}

#[test]
fn published_port_is_kept_from_programs_of_the_node_also_by_the_next_daemon() {
    keep_a_port(&TestNode::start());
}

#[test]
fn port_that_the_daemon_forwards_itself_is_kept_also_by_the_next_one() {
    keep_a_port(&TestNode::start_with(NATIVE, |_| {}));
}

fn keep_a_port(node: &TestNode) {
    let agent = Agent::start(node.root(), &json!({}));
    let port = free_port();
    let mut task = server(node, &agent, 8080, json!({ "ports": ["http"] }));
    let published = nomad::PortMapping {
        label: "http".into(),
        value: port.into(),
        to: 8080,
        host_ip: String::new(),
    };
    task.config
        .resources
        .as_mut()
        .expect("it has some")
        .ports
        .push(published);
    agent.driver().start(&task.config).expect("it starts");
    let is_kept = || {
        [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST]
            .iter()
            .all(|ip| {
                TcpListener::bind((*ip, port)).is_err() && UdpSocket::bind((*ip, port)).is_err()
            })
    };
    let outside = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let is_reached = || eventually(SOON, || ask(outside, b"\n").as_deref() == Some("served\n"));
    assert!(is_kept() && is_reached());
    node.daemon().kill9();
    assert!(is_kept(), "the logkeeper keeps it while no daemon runs");
    node.daemon().restart();
    assert!(is_kept() && is_reached());
    assert!(
        agent.plugin().exit(SOON).is_some(),
        "a plugin ends with the daemon that was there"
    );
    let _ = agent.dispense();
    end(&agent, task);
    assert!(eventually(SOON, || TcpListener::bind((
        Ipv4Addr::UNSPECIFIED,
        port
    ))
    .is_ok()
        && UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()));
}

#[test]
fn port_on_an_address_that_cannot_be_forwarded_is_refused_with_the_reason() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    for (address, reason) in [
        ("::1", "comes from the loopback address of IPv6"),
        ("fd00:aaaa::1", "its network has no addresses of IPv6"),
        ("::", "its network has no addresses of IPv6"),
    ] {
        let port = free_port();
        let mut task = server(&node, &agent, 8080, json!({ "ports": ["http"] }));
        let published = nomad::PortMapping {
            label: "http".into(),
            value: port.into(),
            to: 8080,
            host_ip: address.to_owned(),
        };
        task.config
            .resources
            .as_mut()
            .expect("it has some")
            .ports
            .push(published);
        let refused = agent.driver().start(&task.config).unwrap_err();
        let named = format!("host port [{address}]:{port}/tcp cannot be forwarded: ");
        let text = refused.message();
        assert!(text.contains(&named) && text.contains(reason), "{text}");
        // Nothing is left of the attempt.
        let _ = agent.driver().destroy(task.id(), true);
        task.remove_cgroups();
    }
}

#[test]
fn task_network_mode_host_and_none_are_applied() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let script = "ls /sys/class/net | tr '\\n' ' '; readlink /proc/self/ns/net; sleep 1000";
    let host = std::fs::read_link("/proc/self/ns/net").expect("it is there");
    let host = host.to_str().expect("it is text").to_owned();
    for (mode, is_hosts) in [("host", true), ("none", false)] {
        let config = json!({
            "image": node.image(), "command": "sh", "args": ["-c", script], "network_mode": mode
        });
        let task = TaskSetup::new(node.root(), &agent, "task", &config);
        let started = agent.driver().start(&task.config).expect("it starts");
        assert!(
            started
                .network_override
                .is_none_or(|network| network.addr.is_empty()),
            "{mode}"
        );
        let printed = task.wait_stdout(|text| text.contains("net:["));
        assert_eq!(printed.contains(&host), is_hosts, "{mode}: {printed}");
        if !is_hosts {
            assert!(printed.starts_with("lo "), "{printed}");
        }
        end(&agent, task);
    }
}

#[test]
fn sandbox_with_host_uts_and_private_network_is_ready_after_kill() {
    let node = TestNode::start();
    let agent = Agent::start(
        node.root(),
        &json!({ "allowed_modes": { "uts": ["host"] } }),
    );
    let task = server(&node, &agent, 8080, json!({ "uts_mode": "host" }));
    agent.driver().start(&task.config).expect("it starts");
    let states = || {
        let (_, body) = node.daemon().get("/statusz");
        let status: Value = serde_json::from_str(&body).expect("it is JSON");
        status["sandboxes"]
            .as_array()
            .expect("it is a list")
            .clone()
    };
    let before = states();
    assert_eq!(
        before,
        [json!({ "owner": "nomad", "state": "ready", "count": 1 })]
    );
    node.daemon().kill9();
    node.daemon().restart();
    assert_eq!(states(), before);
    assert!(
        agent.plugin().exit(SOON).is_some(),
        "a plugin ends with the daemon that was there"
    );
    let _ = agent.dispense();
    end(&agent, task);
}

#[test]
fn group_tasks_join_the_agents_network_namespace() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let netns = Netns::make();
    let group = nomad::NetworkIsolationSpec {
        mode: NetworkIsolationMode::Group.into(),
        path: netns.path(),
        ..Default::default()
    };
    // As with Docker, a process need not be root to bind a low port in the group's network.
    let mut web = server(&node, &agent, 90, json!({}));
    web.config.user = "1000".to_owned();
    web.config.network_isolation_spec = Some(group.clone());
    let config = json!({
        "image": node.image(), "command": "sh",
        "args": ["-c", "while ! nc -w 1 127.0.0.1 90 </dev/null; do sleep 0.1; done"],
    });
    let mut client = TaskSetup::new(node.root(), &agent, "client", &config);
    client.config.network_isolation_spec = Some(group);
    agent.driver().start(&web.config).expect("it starts");
    agent.driver().start(&client.config).expect("it starts");
    client.wait_stdout(|text| text == "served\n");
    assert_eq!(
        agent
            .driver()
            .wait(client.id(), SOON)
            .expect("it ends")
            .exit_code,
        0
    );
    end(&agent, client);
    end(&agent, web);
    // It is the agent's to remove.
    netns.remove();
}

#[test]
fn task_joins_the_network_of_another_task_of_its_allocation() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    let web = server(&node, &agent, 90, json!({ "network_mode": "bridge" }));
    let config = json!({
        "image": node.image(), "command": "sh", "network_mode": "container:web",
        "args": ["-c", "while ! nc -w 1 127.0.0.1 90 </dev/null; do sleep 0.1; done; hostname"],
        "hostname": "client",
    });
    let mut client = TaskSetup::new(node.root(), &agent, "client", &config);
    client.config.alloc_id.clone_from(&web.config.alloc_id);
    client.config.id = format!("{}/client/0123abcd", web.config.alloc_id);
    let early = agent.driver().start(&client.config);
    let early = early.expect_err("the other does not run yet");
    assert!(early.message().contains("does not run"), "{early}");
    agent.driver().start(&web.config).expect("it starts");
    agent.driver().start(&client.config).expect("it starts");
    client.wait_stdout(|text| text == "served\nclient\n");
    // Neither ends the other.
    end(&agent, client);
    let inspected = agent.driver().inspect(web.id()).expect("it is there");
    let state = inspected.task.expect("it has a state").state();
    assert_eq!(state, nomad::TaskState::Running);
    end(&agent, web);
    node.assert_clean();
}

#[test]
fn driver_created_network_is_created_once_and_removed_with_the_allocation() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({ "must_create_network": true }));
    let driver = agent.driver();
    assert!(driver.capabilities().must_create_network);
    let mut task = server(&node, &agent, 9090, json!({}));
    let alloc = task.config.alloc_id.clone();
    let made = driver.create_network(&alloc, "myhost").expect("it is made");
    assert!(made.created);
    let spec = made.isolation_spec.expect("an agent keeps it");
    assert_eq!(spec.mode(), NetworkIsolationMode::Group);
    let again = driver
        .create_network(&alloc, "myhost")
        .expect("it is there");
    assert!(!again.created);
    assert_eq!(
        again.isolation_spec.as_ref().map(|spec| spec.path.as_str()),
        Some(spec.path.as_str())
    );
    task.config.network_isolation_spec = Some(spec.clone());
    driver.start(&task.config).expect("it starts");
    let inside = std::fs::metadata(&spec.path).expect("it is pinned");
    let printed = driver
        .exec(
            task.id(),
            &["stat", "-L", "-c", "%i", "/proc/self/ns/net"],
            SOON,
        )
        .expect("it runs");
    assert_eq!(
        printed.stdout.trim(),
        std::os::unix::fs::MetadataExt::ino(&inside).to_string()
    );
    end(&agent, task);
    driver
        .destroy_network(&alloc, spec.clone())
        .expect("it is removed");
    driver
        .destroy_network(&alloc, spec)
        .expect("what is gone is removed");
}
