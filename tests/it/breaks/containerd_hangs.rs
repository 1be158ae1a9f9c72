//! containerd hangs: the node reports it, calls wait, and in the end containerd is restarted.

use std::time::Duration;

use switchyard_proto::cri::v1::image_service_client::ImageServiceClient;
use switchyard_proto::cri::v1::{self as cri, ContainerState};
use switchyard_tests::cri::{Cri, image_spec};
use switchyard_tests::host::eventually;
use switchyard_tests::image::{busybox, digest, random_layer};
use switchyard_tests::node::{TestNode, TestPod, log_content};
use switchyard_tests::registry_proxy::RegistryFault;
use tokio::sync::oneshot;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::{
    FAST_CALL_LIMIT, LIMIT, SuspendedProcess, assert_no_leaks_since, assert_not_ready,
    assert_recovers, managed, refused, retry,
};

/// Prints a number about every hundredth of a second.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.01; done";

#[test]
fn hung_containerd_is_reported_and_node_recovers_after_it() {
    let conf = "[containerd]\nanswer_timeout_seconds = 1\n[managed]\nhang_timeout_seconds = 0\n";
    let node = TestNode::start_with(conf, |_| {});
    let pod = node.pod("hang");
    let id = pod.start_shell("main", "exec sleep 1000");
    let ending = pod.start_shell("ending", "exec sleep 1000");
    let waiting = pod.create(&node.container("waiting", &["sleep", "1000"]));
    let stopping = node.pod("stopping");
    node.registry().push(
        "hangs/new:1",
        &busybox().layer(random_layer(1000, 77_001)).build(),
    );
    let before = node.leak_scan();
    let pods = node.cri().pods().expect("it works");
    let containers = node.cri().containers().expect("it works");
    let begun = node.pod_config("begun");

    let frozen = SuspendedProcess::new(managed(&node, "containerd"));
    assert_outage_is_noticed(&node, &begun);

    let cri = node.cri().with_timeout(FAST_CALL_LIMIT);
    assert_eq!(
        cri.pods().expect("it is answered from the table").len(),
        pods.len()
    );
    assert_eq!(
        cri.containers().expect("it is answered from the table"),
        containers
    );
    assert_eq!(
        cri.status(&id).expect("it has a status").state(),
        ContainerState::ContainerRunning
    );
    cri.pod_status(pod.id()).expect("it has a status");
    assert_changes_are_refused(&node, &cri, &pod, &stopping, [&id, &waiting]);

    // The signal may reach the process all the same, but without containerd its exit is not reported.
    let unsure = &[Code::Unavailable, Code::DeadlineExceeded];
    refused("StopContainer", cri.stop(&ending, 0), unsure);
    refused("RemoveContainer", cri.remove(&ending), unsure);

    drop(frozen);
    assert_recovers(&node);
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    retry("StopContainer", || node.cri().stop(&ending, 0));
    assert_eq!(
        node.cri()
            .status(&ending)
            .expect("it has a status")
            .exit_code,
        137
    );
    retry("StopPodSandbox", || node.cri().stop_pod(stopping.id()));
    // Nothing was done for the start that was refused.
    node.cri()
        .start(&waiting)
        .expect("what was refused can be started");
    node.cri().remove(&waiting).expect("it can be removed");
    // The pod whose client gave up exists once, or not at all; in both cases the request can be repeated.
    let again = node.cri().run_pod(&begun).expect("it can be run");
    retry("StopPodSandbox", || node.cri().stop_pod(&again));
    retry("RemovePodSandbox", || node.cri().remove_pod(&again));
    assert_no_leaks_since(&node, &before);
    assert_eq!(
        pod.run_shell("echo more", |config| config.image =
            Some(image_spec(&node.image()))),
        "more"
    );
    node.cri().stop(&id, 0).expect("it can be stopped");
    assert_eq!(
        node.cri().status(&id).expect("it has a status").exit_code,
        137
    );
}

fn assert_changes_are_refused(
    node: &TestNode,
    cri: &Cri,
    pod: &TestPod<'_>,
    stopping: &TestPod<'_>,
    [running, created]: [&str; 2],
) {
    let container = node.container("more", &["true"]);
    let unavailable = &[Code::Unavailable];
    let statuses = [
        refused(
            "RunPodSandbox",
            cri.run_pod(&node.pod_config("new")),
            unavailable,
        ),
        refused(
            "CreateContainer",
            cri.create(pod.id(), &container, pod.config()),
            unavailable,
        ),
        refused("ExecSync", cri.exec(running, &["true"], 1), unavailable),
        refused("StopPodSandbox", cri.stop_pod(stopping.id()), unavailable),
        refused(
            "RemovePodSandbox",
            cri.remove_pod(stopping.id()),
            unavailable,
        ),
        refused(
            "PullImage",
            cri.pull(&node.registry().reference("hangs/new:1"), None),
            unavailable,
        ),
        refused("RemoveImage", cri.remove_image(&node.image()), unavailable),
        refused("StartContainer", cri.start(created), unavailable),
    ];
    for status in statuses {
        assert!(
            status.message().contains("did not answer within 1s"),
            "{status}"
        );
    }
}

fn assert_outage_is_noticed(node: &TestNode, begun: &cri::PodSandboxConfig) {
    // The daemon does not know yet that containerd hangs: this call waits for containerd until its client's
    // deadline.
    let status = refused(
        "RunPodSandbox",
        node.cri()
            .with_timeout(Duration::from_millis(500))
            .run_pod(begun),
        &[Code::DeadlineExceeded, Code::Cancelled],
    );
    assert!(!status.message().is_empty());
    assert_not_ready(
        node,
        "RuntimeReady",
        "ContainerdUnavailable",
        "did not answer within 1s",
    );
    let (status, body) = node.daemon().get("/readyz");
    assert_eq!(status, 503, "{body}");
    assert!(
        body.contains("[-]runtime failed: ContainerdUnavailable: "),
        "{body}"
    );
}

#[test]
fn cancelled_pull_during_containerd_hang_releases_its_lease_later() {
    let conf = "[containerd]\nanswer_timeout_seconds = 1\n[managed]\nhang_timeout_seconds = 0\n";
    let node = TestNode::start_with(conf, |_| {});
    let layer = random_layer(1000, 77_003);
    let digest = digest(&layer.bytes);
    node.registry()
        .push("hangs/held:1", &busybox().layer(layer).build());
    let before = node.leak_scan();
    let gate = node.registry().proxy();
    gate.add_fault(&digest, RegistryFault::Hold);
    let image = Some(image_spec(&node.registry().reference("hangs/held:1")));
    let request = cri::PullImageRequest {
        image,
        ..Default::default()
    };
    let (give_up, given_up) = oneshot::channel::<()>();
    let pull = async |mut images: ImageServiceClient<Channel>| {
        tokio::select! {
            answer = images.pull_image(request) => answer,
            _ = given_up => Err(Status::cancelled("the client has given it up")),
        }
    };
    std::thread::scope(|scope| {
        let pull = scope.spawn(|| node.cri().images(pull));
        assert!(
            eventually(LIMIT, || gate.count(&digest) > 0),
            "the pull comes to the layer"
        );
        let frozen = SuspendedProcess::new(managed(&node, "containerd"));
        assert_not_ready(
            &node,
            "RuntimeReady",
            "ContainerdUnavailable",
            "did not answer within 1s",
        );
        give_up.send(()).expect("the pull waits");
        refused(
            "PullImage",
            pull.join().expect("a call does not panic"),
            &[Code::Cancelled],
        );
        drop(frozen);
    });
    gate.release();
    assert_recovers(&node);
    assert_no_leaks_since(&node, &before);
}

#[test]
fn hung_managed_containerd_is_replaced_and_containers_keep_running() {
    let conf = "[containerd]\nanswer_timeout_seconds = 1\n[managed]\nhang_timeout_seconds = 2\n";
    let node = TestNode::start_with(conf, |_| {});
    let pod = node.pod("replaced");
    let id = pod.start_shell("counting", COUNT);
    let before = node.cri().status(&id).expect("it has a status");
    let hung = managed(&node, "containerd");
    let _frozen = SuspendedProcess::new(hung);
    assert_not_ready(&node, "RuntimeReady", "ContainerdUnavailable", "containerd");
    let replaced = eventually(LIMIT, || managed(&node, "containerd") != hung);
    assert!(replaced, "it is not replaced\n{}", node.daemon().tail());
    assert_recovers(&node);
    assert_eq!(node.cri().status(&id).expect("it has a status"), before);
    assert_eq!(
        retry("ExecSync", || node.cri().exec(&id, &["true"], 5)).exit_code,
        0
    );
    let so_far = pod.log("counting").len();
    let lines = pod.wait_log("counting", |lines| lines.len() > so_far + 20);
    let numbers: Vec<_> = lines[..lines.len() - 1]
        .iter()
        .map(|line| log_content(line).to_owned())
        .collect();
    let expected: Vec<_> = (1..=numbers.len())
        .map(|number| number.to_string())
        .collect();
    assert_eq!(numbers, expected, "lines are lost or doubled");
    node.cri().stop(&id, 0).expect("it can be stopped");
    assert_eq!(
        node.cri().status(&id).expect("it has a status").exit_code,
        137
    );
}
