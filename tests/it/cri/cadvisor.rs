//! Requirements of a kubelet's cAdvisor on our containers. It queries containerd itself for the containers
//! that it finds as cgroups: so these tests check containerd's objects and cgroups, and do not run cAdvisor.

use std::process::Command;

use serde_json::Value;
use switchyard_proto::cri::v1::NamespaceMode;
use switchyard_tests::cri::namespaces;
use switchyard_tests::host::cgroups;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::prereq;

/// The output of `ctr` in the one namespace that cAdvisor reads.
fn ctr(node: &TestNode, words: &[&str]) -> String {
    let socket = node
        .root()
        .containerd_socket()
        .expect("the daemon has started containerd");
    let mut command = Command::new(prereq::require("ctr", "containerd"));
    let output = command
        .arg("--address")
        .arg(socket)
        .args(["--namespace", "k8s.io"])
        .args(words)
        .output();
    let output = output.expect("it was just found");
    assert!(
        output.status.success(),
        "ctr {words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("it prints text")
}

fn object(node: &TestNode, id: &str) -> Value {
    serde_json::from_str(&ctr(node, &["containers", "info", id])).expect("it prints JSON")
}

/// Returns whether containerd has a process of this id.
fn has_task(node: &TestNode, id: &str) -> bool {
    ctr(node, &["tasks", "ls", "-q"])
        .lines()
        .any(|line| line == id)
}

/// A pod with the labels that kubelets set, and a container in it.
fn labelled<'n>(node: &'n TestNode, name: &str) -> (TestPod<'n>, String) {
    let labels = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    let pod = node.pod_with(name, |config| {
        config.labels = labels(&[
            ("io.kubernetes.pod.name", name),
            ("io.kubernetes.pod.namespace", "tests"),
        ]);
    });
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        config.labels = labels(&[
            ("io.kubernetes.container.name", "main"),
            ("io.kubernetes.pod.name", name),
            ("io.kubernetes.pod.namespace", "tests"),
        ]);
    });
    (pod, id)
}

#[test]
fn cadvisor_finds_container_by_cgroup_with_pod_name_and_image() {
    let node = TestNode::shared();
    let (pod, id) = labelled(&node, "seen");
    // The name of the group leads to the object: 64 hexadecimal digits, and nothing before that could be
    // taken for such.
    assert!(
        id.len() == 64
            && id
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
        "{id}"
    );
    let groups = cgroups::named(&id);
    assert!(!groups.is_empty());
    for group in groups {
        let name = group
            .file_name()
            .expect("it has a name")
            .to_string_lossy()
            .into_owned();
        assert!(
            name == id || name == format!("switchyard-{id}.scope"),
            "{name}"
        );
    }
    let object = object(&node, &id);
    let label = |name: &str| {
        object["Labels"][name]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(label("io.cri-containerd.kind"), "container");
    assert_eq!(label("io.kubernetes.pod.name"), "seen");
    assert_eq!(label("io.kubernetes.pod.namespace"), "tests");
    assert_eq!(label("io.kubernetes.container.name"), "main");
    assert_eq!(object["Image"].as_str(), Some(node.image().as_str()));
    assert!(
        has_task(&node, &id),
        "its processes are read by the id of the one that containerd names"
    );
    let annotation =
        |name: &str| object["Spec"]["annotations"][format!("io.kubernetes.cri.{name}")].clone();
    assert_eq!(annotation("container-type"), "container");
    assert_eq!(annotation("sandbox-id"), pod.id());
    assert_eq!(annotation("sandbox-name"), "seen");
    assert_eq!(annotation("image-name"), node.image());
}

#[test]
fn cadvisor_ignores_sandbox_without_a_process() {
    let node = TestNode::shared();
    let (pod, _) = labelled(&node, "bare");
    assert_eq!(
        object(&node, pod.id())["Labels"]["io.cri-containerd.kind"],
        "sandbox"
    );
    assert!(cgroups::named(pod.id()).is_empty() && !has_task(&node, pod.id()));
}

#[test]
fn infra_always_gives_every_pod_a_process_in_its_network() {
    let node = TestNode::start_with("[containerd]\ninfra = \"always\"\n", |_| {});
    let (pod, id) = labelled(&node, "infra");
    let object = object(&node, pod.id());
    let label = |name: &str| {
        object["Labels"][name]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    // cAdvisor finds the network traffic of a pod by this label, a cgroup and a process.
    assert_eq!(label("io.cri-containerd.kind"), "sandbox");
    assert_eq!(
        (
            label("io.kubernetes.pod.name"),
            label("io.kubernetes.pod.namespace")
        ),
        ("infra".into(), "tests".into())
    );
    assert!(has_task(&node, pod.id()));
    let [process] = *cgroups::members(pod.id()) else {
        panic!("it has one process")
    };
    let traffic = std::fs::read_to_string(format!("/proc/{process}/net/dev")).expect("it runs");
    assert!(traffic.contains("eth0:"), "{traffic}");
    // Its containers have process namespaces of their own all the same.
    assert_eq!(node.cri().sh(&id, "cat /proc/1/comm"), "sleep");
    let info = node.cri().pod_info(pod.id());
    let info: Value = serde_json::from_str(&info).expect("it is JSON");
    assert_eq!(info["pid"], process);
    drop(pod);
    let shared = node.pod_with("shared", |config| {
        namespaces(config).set_pid(NamespaceMode::Pod)
    });
    assert!(has_task(&node, shared.id()));
}
