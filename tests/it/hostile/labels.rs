//! Labels and annotations that mean something to containerd, to a shim, to an OCI runtime or to another
//! reader of containerd's objects: a client may set them, gets them back, and no other program ever sees
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_tests::cri::{image_spec, namespaces};
use switchyard_tests::host::eventually;
use switchyard_tests::leak_scan::{NAMESPACE, ctr};
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};

/// Time for something to happen.
const LIMIT: Duration = Duration::from_secs(60);

/// The value that the client gives each of them; no value of the daemon's own is like it.
const VALUE: &str = "set-by-a-client";

/// Keys that a program below the daemon reads, at least one for each such program.
const RESERVED: [&str; 33] = [
    "containerd.io/restart.policy",
    "containerd.io/restart.loguri",
    "containerd.io/gc.ref.content.x",
    "containerd.io/gc.ref.snapshot.overlayfs",
    "containerd.io/snapshot/overlay.upperdir",
    "containerd.io/snapshot.ref",
    "io.containerd.runc.v2.group",
    "io.containerd.image.name",
    "io.cri-containerd.kind",
    "io.cri-containerd.image",
    "io.kubernetes.cri.sandbox-id",
    "io.kubernetes.cri.container-type",
    "io.kubernetes.cri-o.userns-mode",
    "io.kubernetes.docker.type",
    "io.katacontainers.config.hypervisor.path",
    "com.github.containers.virtcontainers.pkg.oci.container_type",
    "dev.gvisor.internal.nvproxy",
    "dev.gvisor.flag.debug",
    "org.criu.config",
    "org.systemd.property.ExecStart",
    "org.opencontainers.runc.version",
    "run.oci.handler",
    "run.oci.mount_context_type",
    "run.oci.hooks.stdout",
    "krun.variant",
    "module.wasm.image/variant",
    "nri.io/rule",
    "devices.nri.io/container.main",
    "ulimits.nri.containerd.io/container.main",
    "io.podman.annotations.userns",
    "nerdctl/state-dir",
    "switchyard.io/kind",
    "bundle",
];

/// Keys that are similar to those, and the kubelet's own, which cAdvisor reads: they stay on the object.
const HARMLESS: [&str; 4] = [
    "io.kubernetes.pod.name",
    "app.kubernetes.io/name",
    "mycontainerd.io/x",
    "org.opencontainers.image.title",
];

fn hostile() -> BTreeMap<String, String> {
    let mut all: BTreeMap<_, _> = RESERVED
        .map(|key| (key.to_owned(), VALUE.to_owned()))
        .into();
    all.insert(
        "containerd.io/restart.status".to_owned(),
        "running".to_owned(),
    );
    all
}

/// The same with some that are no business of anybody below.
fn mixed() -> BTreeMap<String, String> {
    hostile()
        .into_iter()
        .chain(HARMLESS.map(|key| (key.to_owned(), "kept".to_owned())))
        .collect()
}

/// The output of `ctr`.
#[track_caller]
fn ctr_text(node: &TestNode, words: &[&str]) -> String {
    let socket = node
        .root()
        .containerd_socket()
        .expect("the node has a containerd");
    let lines = ctr(&socket, NAMESPACE, words);
    assert!(
        !lines.iter().any(|line| line.starts_with("unknown: ")),
        "{lines:?}"
    );
    lines.join("\n")
}

/// A container object as containerd stores it.
#[track_caller]
fn object(node: &TestNode, id: &str) -> Value {
    serde_json::from_str(&ctr_text(node, &["containers", "info", id])).expect("it prints JSON")
}

/// Fails if anything that a client has set under a reserved key is on a container object, or on the snapshot
/// of its name.
#[track_caller]
fn assert_unseen(node: &TestNode, id: &str) {
    let object = object(node, id);
    for place in [&object["Labels"], &object["Spec"]["annotations"]] {
        let pairs = place.as_object().into_iter().flatten();
        for (key, value) in pairs {
            assert!(
                value != VALUE && !key.starts_with("containerd.io/restart."),
                "{id}: {key} is {value}"
            );
        }
    }
    if object["SnapshotKey"] == id {
        let snapshot = ctr_text(node, &["snapshots", "info", id]);
        assert!(!snapshot.contains(VALUE), "{snapshot}");
    }
}

#[test]
fn reserved_client_labels_are_kept_off_containerd_objects_and_returned() {
    let node = TestNode::start();
    let set = |config: &mut cri::PodSandboxConfig| {
        (config.labels, config.annotations) = (mixed(), mixed())
    };
    let pod = node.pod_with("hostile", set);
    let shared = node.pod_with("shared", |config| {
        set(config);
        namespaces(config).set_pid(cri::NamespaceMode::Pod);
    });
    let container = pod.start_shell_with("main", "exec sleep 1000", |config| {
        (config.labels, config.annotations) = (mixed(), mixed());
    });
    update_annotations(&node, &container);
    let earlier = start_of_v1alpha2(&node, pod.id());

    let agent = Agent::start(node.root(), &json!({}));
    // The gateway's own names are refused there by name.
    let labels: BTreeMap<_, _> = mixed()
        .into_iter()
        .filter(|(key, _)| !key.starts_with("switchyard.io/"))
        .collect();
    let config = json!({
        "image": node.image(), "command": "sleep", "args": ["1000"], "network_mode": "none", "labels": [labels]
    });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    agent.driver().start(&task.config).expect("it starts");

    let ids = ctr_text(&node, &["containers", "ls", "-q"]);
    assert_eq!(ids.lines().count(), 6, "{ids}");
    for id in ids.lines() {
        assert_unseen(&node, id);
        let labels = &object(&node, id)["Labels"];
        assert!(HARMLESS.iter().all(|key| labels[key] == "kept"), "{labels}");
    }
    let kind = |id: &str| object(&node, id)["Labels"]["io.cri-containerd.kind"].clone();
    assert_eq!(
        (kind(pod.id()), kind(&container)),
        ("sandbox".into(), "container".into())
    );
    let of =
        object(&node, &container)["Spec"]["annotations"]["io.kubernetes.cri.sandbox-id"].clone();
    assert_eq!(
        of,
        pod.id(),
        "what shims and cAdvisor find a container's pod by is the daemon's own"
    );

    assert_given_back(&node, [pod.id(), shared.id()], [&container, &earlier]);
    node.daemon().kill9();
    node.daemon().restart();
    assert_given_back(&node, [pod.id(), shared.id()], [&container, &earlier]);
    assert!(
        agent.plugin().exit(LIMIT).is_some(),
        "a plugin ends with the daemon that was there"
    );
    let driver = agent.dispense();
    task.end(&driver);
}

/// All labels and annotations are returned as they were given.
fn assert_given_back(node: &TestNode, pods: [&str; 2], containers: [&str; 2]) {
    for id in pods {
        let status = node.cri().pod_status(id).expect("it has a status");
        assert_eq!((status.labels, status.annotations), (mixed(), mixed()));
    }
    for id in containers {
        let status = node.cri().status(id).expect("it has a status");
        assert_eq!((status.labels, status.annotations), (mixed(), mixed()));
    }
    let pods = node.cri().pods().expect("they can be listed");
    assert!(
        pods.iter()
            .all(|pod| pod.labels == mixed() && pod.annotations == mixed()),
        "{pods:?}"
    );
}

fn update_annotations(node: &TestNode, container: &str) {
    let request = cri::UpdateContainerResourcesRequest {
        container_id: container.to_owned(),
        linux: Some(cri::LinuxContainerResources {
            cpu_shares: 300,
            ..Default::default()
        }),
        annotations: hostile(),
        ..Default::default()
    };
    let updated = node
        .cri()
        .runtime(async |mut client| client.update_container_resources(request).await);
    updated.expect("it can be changed");
}

/// Starts a container with such labels by the old version of CRI.
fn start_of_v1alpha2(node: &TestNode, pod: &str) -> String {
    let earlier = old::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: "earlier".to_owned(),
            attempt: 0,
        }),
        image: Some(image_spec(&node.image())),
        command: ["sleep", "1000"].map(str::to_owned).to_vec(),
        labels: mixed(),
        annotations: mixed(),
        ..Default::default()
    };
    let earlier = node
        .cri()
        .create_v1alpha2(pod, &earlier)
        .expect("it is well formed");
    node.cri().start(&earlier).expect("it starts");
    earlier
}

#[test]
fn processless_sandbox_has_a_valid_spec() {
    let node = TestNode::shared();
    let pod = node.pod("bare");
    let spec = object(&node, pod.id())["Spec"].clone();
    assert!(
        spec["ociVersion"].is_string() && spec["process"]["cwd"] == "/",
        "{spec}"
    );
    assert!(
        spec["process"]["args"]
            .as_array()
            .is_some_and(|args| !args.is_empty()),
        "{spec}"
    );
    assert!(
        spec["root"]["path"].is_string() && spec["linux"]["namespaces"].is_array(),
        "{spec}"
    );
}

/// A container that only containerd's restart monitor would start. It cannot be started, which containerd
/// logs.
struct RestartBait<'n> {
    node: &'n TestNode,
    id: &'static str,
}

impl<'n> RestartBait<'n> {
    fn set(node: &'n TestNode, id: &'static str) -> Self {
        let spec = json!({
            "ociVersion": "1.0.2",
            "process": { "user": { "uid": 0, "gid": 0 }, "args": ["/nothing"], "cwd": "/" },
            "root": { "path": "rootfs" },
            "linux": { "namespaces": [{ "type": "mount" }, { "type": "pid" }] },
        });
        let file = node.root().path().join(format!("{id}.json"));
        fs::write(&file, spec.to_string()).expect("the root can be written");
        let config = file.to_str().expect("it is UTF-8");
        let label = "containerd.io/restart.status=running";
        ctr_text(
            node,
            &[
                "containers",
                "create",
                "--label",
                label,
                "--config",
                config,
                id,
            ],
        );
        Self { node, id }
    }
}

impl Drop for RestartBait<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            ctr_text(self.node, &["containers", "rm", self.id]);
            // A round in progress would continue with it, and leave its directory behind.
            self.node
                .external_containerd()
                .expect("it is not the daemon's own")
                .restart();
            let tasks = self
                .node
                .root()
                .run()
                .join("containerd/state/io.containerd.runtime.v2.task");
            let _ = fs::remove_dir_all(tasks.join(NAMESPACE).join(self.id));
        }
    }
}

/// The log of containerd.
fn log(node: &TestNode) -> String {
    fs::read_to_string(node.root().state().join("containerd/containerd.log"))
        .expect("containerd writes a log")
}

/// With an external containerd whose restart monitor is enabled. In each round the monitor starts all
/// containers with its label.
#[test]
fn restart_monitor_labels_of_a_pod_have_no_effect() {
    let node = TestNode::start_external("");
    let pod = node.pod_with("restarted", |config| config.labels = mixed());
    let bait = RestartBait::set(&node, "bait");
    // Every container found in the monitor's previous round was started in it.
    let rounds = || {
        log(&node)
            .lines()
            .filter(|line| line.contains("bait"))
            .count()
    };
    let began = rounds();
    assert!(
        eventually(LIMIT, || rounds() > began + 4),
        "no restart monitor is at work: {}",
        log(&node)
    );
    drop(bait);
    let started: Vec<_> = log(&node)
        .lines()
        .filter(|line| line.contains(pod.id()))
        .map(str::to_owned)
        .collect();
    assert!(started.is_empty(), "{started:#?}");
    assert!(
        eventually(LIMIT, || node
            .cri()
            .condition("RuntimeReady")
            .is_ok_and(|condition| condition.status)),
        "{}",
        node.daemon().tail()
    );
    assert_eq!(pod.run_shell("echo works", |_| {}), "works");
}

#[test]
fn managed_containerd_has_no_restart_monitor() {
    let node = TestNode::shared();
    let plugins = ctr_text(&node, &["plugins", "ls"]);
    let on: Vec<_> = plugins
        .lines()
        .filter(|line| line.contains(" restart "))
        .collect();
    assert!(!plugins.is_empty() && on.is_empty(), "{on:?}");
}

/// An earlier version put all labels of clients on the object. One of its containers has a view of an image,
/// which must stay.
#[test]
fn recovery_removes_reserved_client_labels_of_earlier_versions() {
    let node = TestNode::start();
    let pod = node.pod_with("early", |config| config.labels = mixed());
    let container = pod.start_shell_with("main", "exec sleep 1000", |config| {
        config.labels = mixed();
        config.mounts = vec![cri::Mount {
            container_path: "/image".to_owned(),
            image: Some(image_spec(&node.image())),
            readonly: true,
            ..Default::default()
        }];
    });
    for id in [pod.id(), &container] {
        assert_unseen(&node, id);
    }
    let before = [pod.id(), &container].map(|id| object(&node, id)["Labels"].clone());
    assert!(
        before[1]
            .to_string()
            .contains("containerd.io/gc.ref.snapshot."),
        "{}",
        before[1]
    );
    node.daemon().kill9();
    for id in [pod.id(), &container] {
        let pairs: Vec<_> = hostile()
            .into_iter()
            .filter(|(key, _)| {
                !key.starts_with("switchyard.io/") && !key.starts_with("io.cri-containerd.")
            })
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let words: Vec<_> = ["containers", "label", id]
            .into_iter()
            .chain(pairs.iter().map(String::as_str))
            .collect();
        ctr_text(&node, &words);
        assert_eq!(
            object(&node, id)["Labels"]["containerd.io/restart.status"],
            "running"
        );
    }
    node.daemon().restart();
    for (id, before) in [pod.id(), &container].into_iter().zip(before) {
        let cleaned = eventually(LIMIT, || object(&node, id)["Labels"] == before);
        assert!(cleaned, "{before}\n{}", object(&node, id)["Labels"]);
    }
    assert_eq!(
        node.cri()
            .status(&container)
            .expect("it has a status")
            .labels,
        mixed()
    );
    assert_eq!(
        node.cri().sh(&container, "ls /image/bin/sh"),
        "/image/bin/sh"
    );
}
