//! A daemon that is older than what it finds: objects that it cannot read run on, their names are refused and nothing
//! of theirs is given out; when the version that wrote them is back, all is as before.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::documents::commands;
use switchyard_tests::host::{eventually, free_port};
use switchyard_tests::leak_scan::{NAMESPACE, in_containerd, set_extension_type};
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::nomad::{Agent, TaskRunner, TaskSetup};
use switchyard_tests::root::PrivateRoot;
use tonic::{Code, Status};

use super::kubelet::KubeletView;
use super::pid;
use crate::nomad::devices::make_device;

/// The extensions of container objects, and types of them that no version has.
pub(super) const RECORD: (&str, &str) = ("switchyard.io/record", "switchyard.io/record.v99+json");
const IDENTITY: (&str, &str) = ("switchyard.io/identity", "switchyard.io/identity.v99");
/// Limit for a daemon to recover on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Extensions as a later version has written them, until they are restored.
pub(super) struct LaterVersion<'n> {
    node: &'n TestNode,
    /// Ids, keys, and the types of before.
    changed: Vec<(String, &'static str, String)>,
}

impl<'n> LaterVersion<'n> {
    pub(super) const fn of(node: &'n TestNode) -> Self {
        Self {
            node,
            changed: Vec::new(),
        }
    }

    fn set(&self, id: &str, key: &str, type_url: &str) -> String {
        let socket = self.node.root().containerd_socket();
        let socket = socket.expect("a managed containerd runs");
        set_extension_type(&socket, NAMESPACE, (id, key), type_url)
    }

    pub(super) fn write(&mut self, id: &str, (key, type_url): (&'static str, &str)) {
        let former = self.set(id, key, type_url);
        self.changed.push((id.to_owned(), key, former));
    }

    pub(super) fn restore(self) {
        for (id, key, former) in &self.changed {
            let _ = self.set(id, key, former);
        }
    }
}

/// Starts the daemon, and waits until it has recovered; it is not ready.
#[track_caller]
pub(super) fn start_unready(node: &TestNode) {
    node.daemon().spawn();
    assert!(recovers(node.root()), "{}", node.daemon().tail());
}

/// Waits for the end of recovery; returns whether it came.
pub(super) fn recovers(root: &PrivateRoot) -> bool {
    let socket = root.run().join("admin.sock");
    eventually(LIMIT, || {
        switchyard_tests::http::get_unix(&socket, "/readyz/recovery")
            .is_ok_and(|answer| answer.status == 200)
    })
}

#[track_caller]
pub(super) fn assert_refused<T: std::fmt::Debug>(result: Result<T, Status>, words: &[&str]) {
    let status = result.expect_err("it is held");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    for word in words {
        assert!(
            status.message().contains(word),
            "{word:?} is not in {:?}",
            status.message()
        );
    }
}

/// Makes two devices, and returns a configuration with their group.
pub(super) fn two_devices(root: &PrivateRoot) -> String {
    let dir = root.path().join("dev");
    std::fs::create_dir(&dir).expect("the root can be written");
    make_device(&dir.join("acme0"));
    make_device(&dir.join("acme1"));
    format!(
        "[devices]\nrestart_grace_seconds = 1\nnamed = \"refuse\"\n[[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\nname = \"v2\"\n\
         paths = [\"{}/acme[0-9]\"]\n",
        dir.display()
    )
}

pub(super) fn with_device(node: &TestNode, name: &str, device: &str) -> cri::ContainerConfig {
    let mut config = node.container(name, &["sleep", "1000"]);
    let path = node.root().path().join("dev").join(device);
    config.devices = vec![cri::Device {
        host_path: path.display().to_string(),
        container_path: path.display().to_string(),
        permissions: "rw".to_owned(),
    }];
    config
}

pub(super) fn with_port(config: &mut cri::PodSandboxConfig, port: u16) {
    config.port_mappings = vec![cri::PortMapping {
        container_port: 80,
        host_port: port.into(),
        ..Default::default()
    }];
}

fn is_runtime_ready(node: &TestNode) -> bool {
    let status = node.cri().runtime(async |mut client| {
        let request = cri::StatusRequest::default();
        client.status(request).await
    });
    let conditions = status
        .expect("it answers")
        .status
        .unwrap_or_default()
        .conditions;
    let mut ready = conditions
        .iter()
        .filter(|condition| condition.r#type == "RuntimeReady");
    ready.all(|condition| condition.status)
}

/// A task with this script to which its agent has assigned a processor and a port.
pub(super) fn pinned_task(node: &TestNode, agent: &Agent, port: u16, script: &str) -> TaskSetup {
    let config = json!({
        "image": node.image(), "command": "sh", "args": ["-c", script], "network_mode": "host", "ports": ["http"],
    });
    let mut task = TaskSetup::new(node.root(), agent, "web", &config);
    task.config.id = format!("{}/web/00000001", task.config.alloc_id);
    let resources = task.config.resources.as_mut().expect("it has some");
    let linux = resources.linux_resources.get_or_insert_default();
    linux.cpuset_cpus = "0".to_owned();
    linux.cpuset_cgroup = String::new();
    resources
        .ports
        .push(switchyard_proto::nomad::drivers::proto::PortMapping {
            label: "http".into(),
            value: port.into(),
            to: 80,
            host_ip: String::new(),
        });
    task
}

/// Ends a task that a daemon knows, as its agent does.
#[track_caller]
pub(super) fn end_task(agent: &Agent, runner: TaskRunner, mut task: TaskSetup) {
    let driver = agent.driver();
    let _ = driver.inspect(task.id()).expect("it is known");
    driver
        .stop(task.id(), Duration::ZERO, "")
        .expect("it stops");
    assert_eq!(runner.join().result.exit_code, 137);
    driver.destroy(task.id(), true).expect("it can be removed");
    task.remove_cgroups();
}

/// The id of the container of the only task of Nomad.
pub(super) fn container_of_task(node: &TestNode) -> String {
    let (_, body) = node.daemon().get("/v1/objects?owner=nomad");
    let objects: Value = serde_json::from_str(&body).expect("it is JSON");
    objects["tasks"][0]["id"]
        .as_str()
        .expect("it is listed")
        .to_owned()
}

/// The owners that hold processors exclusively.
pub(super) fn exclusive_owners(node: &TestNode) -> Vec<Value> {
    let (_, body) = node.daemon().get("/v1/devices");
    let report: Value = serde_json::from_str(&body).expect("it is JSON");
    let exclusive = report["compute"]["exclusive"].as_array().cloned();
    exclusive
        .unwrap_or_default()
        .iter()
        .map(|held| held["owner"].clone())
        .collect()
}

#[track_caller]
pub(super) fn assert_pod_is_held(node: &TestNode, pod: &TestPod<'_>, port: u16) {
    let id = &pod.id()[..12];
    let words = [id, "cannot read", "docs/alerts.md"];
    // Nothing is taken for stopped or gone.
    assert_refused(node.cri().stop_pod(pod.id()), &words);
    assert_refused(node.cri().remove_pod(pod.id()), &words);
    assert_refused(node.cri().run_pod(pod.config()), &words);
    // Nor does another attempt get its place.
    let mut again = pod.config().clone();
    again.metadata.as_mut().expect("it has a name").attempt = 3;
    assert_refused(node.cri().run_pod(&again), &words);
    let mut other = node.pod_config("other");
    with_port(&mut other, port);
    let taken = format!("{port}/tcp");
    assert_refused(node.cri().run_pod(&other), &[&taken, "kubernetes"]);
    let plain = node.pod("plain");
    let refused = plain.try_create(&with_device(node, "thief", "acme0"));
    assert_refused(refused, &["is held by", "kubernetes"]);
    // All else works as ever.
    assert_eq!(plain.run_shell("echo works", |_| {}), "works");
}

/// That these objects are reported, with this reason, and `more` that belong to them.
#[track_caller]
pub(super) fn assert_reported(node: &TestNode, ids: &[&str], more: usize, reason: &str) {
    let (status, body) = node.daemon().get("/readyz?verbose");
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("[-]objects failed: "), "{body}");
    assert!(is_runtime_ready(node), "one object must not empty the node");
    let listed = node.output(&["ps", "--state", "unreadable"]);
    for id in ids {
        let line = listed.lines().find(|line| line.starts_with(id));
        assert!(line.is_some_and(|line| line.contains(reason)), "{listed}");
        let inspected = node.output(&["inspect", &id[..12]]);
        for known in [id, reason, "unreadable", "SwitchyardUnreadable"] {
            assert!(inspected.contains(known), "{inspected}");
        }
        let log = node.call(&["logs", id]);
        let error = String::from_utf8_lossy(&log.stderr);
        assert!(
            !log.status.success() && error.contains("cannot read"),
            "{error}"
        );
    }
    let (_, metrics) = node.daemon().get("/metrics");
    let gauge = format!("switchyard_unreadable_objects {}", ids.len() + more);
    assert!(metrics.lines().any(|line| line == gauge), "{metrics}");
    let doctor = node.call(&["doctor"]);
    let findings = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(findings.contains("SY816"), "{findings}");
}

#[test]
fn what_a_later_version_wrote_is_held_and_as_before_when_that_version_is_back() {
    let node = TestNode::start_configured(two_devices);
    let port = free_port();
    let pod = node.pod_with("web", |config| with_port(config, port));
    let main = pod.start(&with_device(&node, "main", "acme0"));
    let main_pid = pid(&node, &main);
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    let task_port = free_port();
    let mut task = pinned_task(&node, &agent, task_port, "exec sleep 1000");
    let started = agent.driver().start(&task.config).expect("it starts");
    let runner = TaskRunner::start(&agent, started.handle.expect("it has a handle"));
    let of_task = container_of_task(&node);
    let pods = node.cri().pods().expect("they can be listed");
    let kubelet = KubeletView::of(&node);
    assert_eq!(exclusive_owners(&node), ["nomad"]);

    node.daemon().kill9();
    let mut later = LaterVersion::of(&node);
    later.write(pod.id(), RECORD);
    later.write(&of_task, RECORD);
    start_unready(&node);
    runner.wait_recovered(1);
    // The pod's container can be read, and has no pod.
    assert_reported(&node, &[pod.id(), &of_task], 1, "v99");
    kubelet.assert_nothing_changed("under a daemon that cannot read them");
    assert_pod_is_held(&node, &pod, port);
    assert_eq!(exclusive_owners(&node), ["nomad"]);
    let first = task.config.id.clone();
    task.config.id = first.replace("00000001", "00000002");
    let refused = agent.driver().start(&task.config);
    assert_refused(refused, &[&of_task[..12], "cannot read"]);
    task.config.id = first;

    // Not even the identity can be read: any device may be the pod's.
    node.daemon().kill9();
    later.write(pod.id(), IDENTITY);
    start_unready(&node);
    // Without a name it cannot be listed.
    assert_eq!(node.cri().pods().expect("they can be listed").len(), 0);
    let plain = node.pod("plain");
    let refused = plain.try_create(&with_device(&node, "thief", "acme1"));
    assert_refused(refused, &["cannot be read"]);
    drop(plain);
    let mut other = node.pod_config("other");
    with_port(&mut other, port);
    let held = node.cri().run_pod(&other);
    assert_refused(held, &["kubernetes"]);

    node.daemon().kill9();
    later.restore();
    node.daemon().spawn();
    node.daemon().wait_ready();
    assert_eq!(node.cri().pods().expect("they can be listed"), pods);
    assert_eq!(pid(&node, &main), main_pid);
    assert_eq!(node.cri().sh(&main, "echo reached"), "reached");
    assert_eq!(exclusive_owners(&node), ["nomad"]);
    let listed = node.output(&["ps", "--state", "unreadable"]);
    assert!(!listed.contains(pod.id()), "{listed}");
    end_task(&agent, runner, task);
    // The container's device was free for nobody, and is when it has gone.
    drop(pod);
    let next = node.pod("next");
    let _ = next.start(&with_device(&node, "main", "acme0"));
}

/// Removes an object by the commands of docs/alerts.md, all but the last one, which restarts the daemon.
#[track_caller]
fn remove_by_hand(node: &TestNode, id: &str) {
    let socket = node.root().containerd_socket();
    let socket = socket.expect("a managed containerd runs");
    let recipe = commands(include_str!("../../../docs/alerts.md"), "containers delete");
    let (removal, restart) = recipe
        .trim_end()
        .rsplit_once('\n')
        .expect("it has several commands");
    assert!(
        restart.starts_with("systemctl restart switchyard "),
        "{restart}"
    );
    let script = removal
        .replace(
            "/run/switchyard/containerd/containerd.sock",
            socket.to_str().expect("the path is ASCII"),
        )
        .replace(" ID", &format!(" {id}"));
    let output = Command::new("sh").args(["-c", &script]).output();
    let output = output.expect("every system has a shell");
    let mut left = in_containerd(&socket, NAMESPACE);
    let objects = [format!("container {id}"), format!("task {id}")];
    left.retain(|object| objects.contains(object));
    assert!(
        output.status.success() && left.is_empty(),
        "{left:?}: {script}: {output:?}"
    );
}

#[test]
fn what_cannot_be_read_and_is_removed_by_hand_leaves_nothing() {
    let node = TestNode::start_configured(two_devices);
    let port = free_port();
    let pod = node.pod_with("web", |config| with_port(config, port));
    let main = pod.start(&with_device(&node, "main", "acme0"));
    node.daemon().kill9();
    let mut later = LaterVersion::of(&node);
    for id in [pod.id(), &main] {
        later.write(id, RECORD);
    }
    start_unready(&node);
    assert_reported(&node, &[pod.id(), &main], 0, "v99");
    for id in [pod.id(), &main] {
        remove_by_hand(&node, id);
    }
    node.daemon().restart();
    node.assert_clean();
    let next = node.pod_with("web", |config| with_port(config, port));
    let _ = next.start(&with_device(&node, "main", "acme0"));
}

#[test]
fn a_pod_with_a_container_that_cannot_be_read_gets_no_other_attempt_of_it_and_is_not_stopped() {
    let node = TestNode::start();
    let pod = node.pod("web");
    let config = node.container("main", &["sleep", "1000"]);
    let main = pod.start(&config);
    let process = pid(&node, &main);
    let kubelet = KubeletView::of(&node);
    node.daemon().kill9();
    let mut later = LaterVersion::of(&node);
    later.write(&main, RECORD);
    start_unready(&node);
    assert_reported(&node, &[&main], 0, "v99");
    kubelet.assert_nothing_changed("under a daemon that cannot read the container");
    let listed = node.output(&["images", "--output", "json"]);
    let images: Value = serde_json::from_str(&listed).expect("it is JSON");
    let mut images = images.as_array().expect("it is a list").iter();
    let of_main = images.find(|image| image["tasks"][0]["id"] == main.as_str());
    assert_eq!(of_main.expect("it is in use")["task_count"], 1, "{listed}");
    let refused = node.cri().remove_image(&node.image());
    assert_refused(refused, &[&main[..12], "cannot read"]);
    assert_eq!(pod.status().state(), cri::PodSandboxState::SandboxReady);
    let mut again = config.clone();
    again.metadata.as_mut().expect("it has a name").attempt = 1;
    let words = [&main[..12], "cannot read", "docs/alerts.md"];
    for attempt in [&config, &again] {
        assert_refused(pod.try_create(attempt), &words);
    }
    let side = pod.start(&node.container("side", &["sleep", "1000"]));
    assert_refused(node.cri().stop_pod(pod.id()), &words);
    assert_refused(node.cri().remove_pod(pod.id()), &words);
    assert_eq!(node.cri().sh(&side, "echo reached"), "reached");

    node.daemon().kill9();
    later.restore();
    node.daemon().spawn();
    node.daemon().wait_ready();
    assert_eq!(pid(&node, &main), process);
    assert_eq!(node.cri().sh(&side, "echo reached"), "reached");
}
