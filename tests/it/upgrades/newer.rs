//! This version between a newer one: what that has written and this one cannot read is held, what it has added is kept, and
//! all is as before when it is back. The newer program is this source with the feature `newer`
//! (`record/newer.rs` of the containerd backend says what it changes).

mod allocations;
mod services;

use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::daemon::binary;
use switchyard_tests::host::free_port;
use switchyard_tests::leak_scan::{NAMESPACE, extension};
use switchyard_tests::node::{Containerd, TestNode};
use switchyard_tests::nomad::{Agent, TaskRunner};
use switchyard_tests::versions::newer;

use super::Counter;
use super::kubelet::{KubeletView, container_labels, label_pod};
use super::unreadable::{
    assert_pod_is_held, assert_refused, assert_reported, container_of_task, end_task,
    exclusive_owners, pinned_task, start_unready, two_devices, with_device, with_port,
};

/// The label that says what the newer version changes.
const CHANGE: &str = "newer";

fn start(containerd: Containerd) -> TestNode {
    TestNode::start_version(&newer(), containerd, two_devices)
}

/// Replaces the newer program by this one, which does not become ready.
#[track_caller]
fn roll_back(node: &TestNode) {
    node.daemon().terminate();
    node.root().put_program(&binary());
    start_unready(node);
}

#[track_caller]
fn install_newer(node: &TestNode) {
    node.root().put_program(&newer());
    node.daemon().restart();
}

/// The value of a sample without labels.
#[track_caller]
fn sample(node: &TestNode, name: &str) -> String {
    let (_, metrics) = node.daemon().get("/metrics");
    let begin = format!("{name} ");
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(&begin))
        .unwrap_or_else(|| panic!("there is no {name}"));
    line.to_owned()
}

#[track_caller]
fn newer_version_comes_back(containerd: Containerd) {
    let node = start(containerd);
    let port = free_port();
    let pod = node.pod_with("web", |config| {
        with_port(config, port);
        label_pod(config);
    });
    let labels = container_labels(&pod, "counting");
    let web = Counter::start_in(pod, |config| {
        config.labels.extend(labels);
        config.devices = with_device(&node, "counting", "acme0").devices;
    });
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    let task = pinned_task(&node, &agent, free_port(), "exec sleep 1000");
    let started = agent.driver().start(&task.config).expect("it starts");
    let runner = TaskRunner::start(&agent, started.handle.expect("it has a handle"));
    let of_task = container_of_task(&node);
    let pods = node.cri().pods().expect("they can be listed");
    web.assert_runs("under the newer version");
    let kubelet = KubeletView::of(&node);

    roll_back(&node);
    kubelet.assert_nothing_changed("under this version");
    runner.wait_recovered(1);
    // Nomad's sandbox is of the newer version too.
    assert_reported(&node, &[web.pod.id(), &web.id, &of_task], 1, "v2");
    assert_pod_is_held(&node, &web.pod, port);
    assert_eq!(exclusive_owners(&node), ["nomad"]);
    // All that they hold is known, so the other device is not withheld.
    let beside = node.pod("beside");
    let _ = beside.start(&with_device(&node, "main", "acme1"));
    drop(beside);
    let meanwhile = Counter::start(&node, "meanwhile");
    meanwhile.assert_runs("beside what is held");

    runner.wait_recovery_over();
    install_newer(&node);
    runner.wait_recovered(2);
    assert_eq!(sample(&node, "switchyard_unreadable_objects"), "0");
    kubelet.assert_nothing_changed("under the newer version again");
    web.assert_runs("under the newer version again");
    meanwhile.assert_runs("under the newer version");
    let listed = node.cri().pods().expect("they can be listed");
    assert!(pods.iter().all(|pod| listed.contains(pod)), "{listed:?}");
    assert_eq!(exclusive_owners(&node), ["nomad"]);
    end_task(&agent, runner, task);
    meanwhile.end("under the newer version");
    web.end("under the newer version again");
    // The device was free for nobody, and is when its container has gone.
    let next = node.pod("next");
    let _ = next.start(&with_device(&node, "main", "acme0"));
}

#[test]
fn what_the_newer_version_wrote_is_held_and_as_before_when_it_is_back() {
    newer_version_comes_back(Containerd::Managed);
}

#[test]
fn what_the_newer_version_wrote_is_held_beside_an_external_containerd() {
    newer_version_comes_back(Containerd::External);
}

#[test]
fn objects_of_this_version_outlive_the_newer_one() {
    let node = TestNode::start_version(&binary(), Containerd::Managed, two_devices);
    let counter = start_readable(&node);
    counter.assert_runs("before the upgrade");
    install_newer(&node);
    counter.assert_runs("after the upgrade");
    node.cri()
        .update(&counter.id, cpu_shares(512))
        .expect("it is updated");
    let [record, _] = extensions(&node, &counter.id);
    assert_eq!(record["fabric"], json!({ "link": 3 }), "{record}");
    node.root().put_program(&binary());
    node.daemon().restart();
    counter.assert_runs("after the rollback");
    counter.end("after the rollback");
}

#[test]
fn no_device_is_given_out_beside_a_claim_of_a_kind_that_only_the_newer_version_knows() {
    let node = start(Containerd::Managed);
    let web = Counter::start_in(node.pod("web"), |config| {
        config.labels.insert(CHANGE.to_owned(), "claim".to_owned());
    });
    roll_back(&node);
    assert_reported(&node, &[web.pod.id(), &web.id], 0, "v2");
    let plain = node.pod("plain");
    let refused = plain.try_create(&with_device(&node, "thief", "acme1"));
    assert_refused(refused, &["cannot be read"]);
    assert_eq!(plain.run_shell("echo works", |_| {}), "works");
    drop(plain);
    install_newer(&node);
    let plain = node.pod("plain");
    let _ = plain.start(&with_device(&node, "main", "acme1"));
    web.end("under the newer version again");
}

/// A container that this version can read, although the newer one has added fields.
#[track_caller]
fn start_readable(node: &TestNode) -> Counter<'_> {
    let pod = node.pod_with("web", |config| {
        config.labels.insert(CHANGE.to_owned(), "fields".to_owned());
    });
    Counter::start_in(pod, |config| {
        config.labels.insert(CHANGE.to_owned(), "fields".to_owned());
    })
}

fn cpu_shares(shares: i64) -> cri::LinuxContainerResources {
    cri::LinuxContainerResources {
        cpu_shares: shares,
        ..Default::default()
    }
}

/// The record and the identity of an object, as they are in containerd.
#[track_caller]
fn extensions(node: &TestNode, id: &str) -> [Value; 2] {
    let socket = node.root().containerd_socket().expect("containerd runs");
    ["switchyard.io/record", "switchyard.io/identity"].map(|key| {
        let value = extension(&socket, NAMESPACE, (id, key));
        serde_json::from_slice(&value).expect("it is JSON")
    })
}

#[test]
fn fields_of_the_newer_version_are_kept_by_updates_of_this_one() {
    let node = start(Containerd::Managed);
    let web = start_readable(&node);
    node.root().put_program(&binary());
    node.daemon().restart();
    web.assert_runs("after the rollback");
    assert_eq!(sample(&node, "switchyard_unreadable_objects"), "0");
    node.cri()
        .update(&web.id, cpu_shares(512))
        .expect("it is updated");
    let [record, identity] = extensions(&node, &web.id);
    assert_eq!(record["resources"]["cpu_shares"], 512, "{record}");
    assert_eq!(record["fabric"], json!({ "link": 3 }), "{record}");
    assert_eq!(identity["region"], "north", "{identity}");
    install_newer(&node);
    web.assert_runs("under the newer version again");
    node.root().put_program(&binary());
    node.daemon().restart();
    // Its new phase is written with the record of the pod.
    node.cri()
        .stop_pod(web.pod.id())
        .expect("it can be stopped");
    let [record, identity] = extensions(&node, web.pod.id());
    assert_eq!(record["fabric"], json!({ "link": 3 }), "{record}");
    assert_eq!(identity["region"], "north", "{identity}");
}

#[test]
fn pod_in_a_phase_of_the_newer_version_is_held_until_it_is_back() {
    let node = start(Containerd::Managed);
    let pod = node.pod_with("web", |config| {
        config.labels.insert(CHANGE.to_owned(), "phase".to_owned());
    });
    node.cri().stop_pod(pod.id()).expect("it can be stopped");
    let before = pod.status();
    let kubelet = KubeletView::of(&node);
    roll_back(&node);
    kubelet.assert_nothing_changed("under this version");
    assert_reported(&node, &[pod.id()], 0, "halted");
    assert_refused(node.cri().run_pod(pod.config()), &["cannot read"]);
    install_newer(&node);
    assert_eq!(pod.status(), before);
    assert_eq!(before.state(), cri::PodSandboxState::SandboxNotready);
}

#[test]
fn pod_with_a_request_of_the_newer_version_is_held_until_it_is_back() {
    let node = start(Containerd::Managed);
    let pod = node.pod_with("web", |config| {
        config
            .labels
            .insert(CHANGE.to_owned(), "request".to_owned());
    });
    let web = Counter::start_in(pod, |config| {
        config
            .labels
            .insert(CHANGE.to_owned(), "request".to_owned());
    });
    roll_back(&node);
    assert_reported(&node, &[web.pod.id(), &web.id], 0, "it is of version 2");
    assert_refused(node.cri().run_pod(web.pod.config()), &["cannot read"]);
    install_newer(&node);
    web.assert_runs("under the newer version again");
    web.end("under the newer version again");
}

#[test]
fn start_ignores_a_key_and_a_value_that_only_the_newer_version_knows() {
    let node = TestNode::start_version(&newer(), Containerd::Managed, |_| {
        "[log]\nformat = \"plain\"\ncolour = true\n".to_owned()
    });
    let ignored = || sample(&node, "switchyard_config_ignored_keys");
    assert_eq!(ignored(), "0");
    let counter = start_readable(&node);
    node.root().put_program(&binary());
    node.daemon().restart();
    assert_eq!(ignored(), "2");
    counter.assert_runs("after the rollback");
    let status = node.output(&["status"]);
    assert!(status.contains("colour"), "{status}");
    let checked = Command::new(binary())
        .args(["config", "check"])
        .arg(node.root().config())
        .output()
        .expect("the program is there");
    let complaint = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert_eq!(checked.status.code(), Some(78), "{complaint}");
    install_newer(&node);
    assert_eq!(ignored(), "0");
    counter.end("under the newer version again");
}
