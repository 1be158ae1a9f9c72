//! Malformed requests: each is refused by the name of the field that is wrong, and leaves nothing behind.

use switchyard_proto::cri::v1::security_profile::ProfileType;
use switchyard_proto::cri::v1::{
    Capability, CdiDevice, ContainerConfig, Device, DnsConfig, HugepageLimit, IdMapping,
    Int64Value, KeyValue, LinuxContainerResources, Mount, PodSandboxConfig, PortMapping,
    SeLinuxOption, SecurityProfile, UserNamespace,
};
use switchyard_tests::cri::{context, image_spec, limits, namespaces, security};
use switchyard_tests::node::TestNode;
use tonic::{Code, Status};

mod tables;

use tables::{CONTAINERS, PODS};

/// The fault of the answer to a malformed request, if there is one.
fn wrong<T>(field: &str, answer: Result<T, Status>) -> Option<String> {
    let Err(status) = answer else {
        return Some(format!("{field}: accepted"));
    };
    let known = matches!(status.code(), Code::InvalidArgument | Code::NotFound);
    (!known || !status.message().contains(field)).then(|| format!("{field}: {status}"))
}

#[test]
fn malformed_pod_is_rejected_by_field_and_leaves_nothing_behind() {
    let node = TestNode::start();
    let mut faults = Vec::new();
    for (index, (field, spoil)) in PODS.iter().enumerate() {
        let mut config = node.pod_config(&format!("bad-{index}"));
        spoil(&mut config);
        faults.extend(wrong(field, node.cri().run_pod(&config)));
        let sweep = node.leak_scan();
        faults.extend(
            sweep
                .findings
                .iter()
                .map(|finding| format!("{field} left {finding}")),
        );
        for pod in node.cri().pods().expect("pods can be listed") {
            node.cri().remove_pod(&pod.id).expect("it can be removed");
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn malformed_container_is_rejected_by_field_and_leaves_nothing_behind() {
    let node = TestNode::start();
    let pod = node.pod("good");
    let before = node.leak_scan();
    let mut faults = Vec::new();
    for (index, (field, spoil)) in CONTAINERS.iter().enumerate() {
        let mut config = node.container(&format!("bad-{index}"), &["true"]);
        spoil(&mut config);
        faults.extend(wrong(field, pod.try_create(&config)));
        faults.extend(
            node.leak_scan()
                .new_since(&before)
                .iter()
                .map(|finding| format!("{field} left {finding}")),
        );
        for container in node.cri().containers().expect("containers can be listed") {
            node.cri().remove(&container.id).expect("it can be removed");
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn malformed_calls_do_not_affect_a_running_container() {
    let node = TestNode::shared();
    let pod = node.pod("good");
    let id = pod.start_shell("main", "exec sleep 1000");
    let client = node.cri();
    let change = |change: fn(&mut LinuxContainerResources)| {
        let mut limits = LinuxContainerResources::default();
        change(&mut limits);
        client.update(&id, limits)
    };
    let faults: Vec<_> = [
        wrong("cmd", client.exec(&id, &[], 1)),
        wrong(
            "linux.memory_limit_in_bytes",
            change(|limits| limits.memory_limit_in_bytes = -7),
        ),
        wrong(
            "linux.cpuset_cpus",
            change(|limits| limits.cpuset_cpus = "none".into()),
        ),
        wrong(
            "linux.oom_score_adj",
            change(|limits| limits.oom_score_adj = -4000),
        ),
        wrong("image.image", client.pull("", None)),
        wrong("UPPER", client.pull("registry.example/UPPER:1", None)),
        wrong("image.image", client.remove_image("")),
    ]
    .into_iter()
    .flatten()
    .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(client.sh(&id, "echo alive"), "alive");
}
