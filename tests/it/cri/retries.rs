//! Requests that are repeated after an answer was lost, by the same client or another: they join the
//! operation in progress, or get its result.

use std::collections::BTreeSet;
use std::time::Duration;

use switchyard_crash_points::CrashPoint;
use switchyard_proto::cri::v1::{
    ContainerState, CreateContainerRequest, RunPodSandboxRequest, StopContainerRequest,
};
use switchyard_tests::cri::Cri;
use switchyard_tests::host::eventually;
use switchyard_tests::leak_scan::{NAMESPACE, copy_container};
use switchyard_tests::node::{TestNode, TestPod};
use tonic::{Code, Request};

/// Calls concurrently, each with its own client; returns all answers.
fn at_once<T: Send>(node: &TestNode, count: usize, call: impl Fn(&Cri) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..count)
            .map(|_| scope.spawn(|| call(&Cri::new(&node.root().cri_socket()))))
            .collect();
        calls
            .into_iter()
            .map(|call| call.join().expect("a call does not panic"))
            .collect()
    })
}

#[test]
fn container_of_a_cancelled_create_is_returned_to_the_next_client() {
    let node = TestNode::start();
    let pod = node.pod("hasty");
    for (index, milliseconds) in [1, 4, 8, 16].into_iter().enumerate() {
        let config = node.container(&format!("main{index}"), &["sleep", "1000"]);
        let mut request = Request::new(CreateContainerRequest {
            pod_sandbox_id: pod.id().to_owned(),
            config: Some(config.clone()),
            sandbox_config: Some(pod.config().clone()),
        });
        request.set_timeout(Duration::from_millis(milliseconds));
        let cut_off = node
            .cri()
            .runtime(async |mut client| client.create_container(request).await);
        let ids = at_once(&node, 2, |client| {
            client.create(pod.id(), &config, pod.config())
        });
        let ids: Vec<_> = ids
            .into_iter()
            .map(|id| id.expect("it is sent again"))
            .collect();
        assert_eq!(ids[0], ids[1], "after {milliseconds} ms");
        if let Ok(answer) = cut_off {
            assert_eq!(answer.container_id, ids[0], "it was made in time");
        }
        let containers = node.cri().containers().expect("they can be listed");
        assert_eq!(
            containers.len(),
            index + 1,
            "after {milliseconds} ms: {containers:#?}"
        );
    }
    drop(pod);
    node.assert_clean();
}

#[test]
fn pod_of_a_cancelled_run_is_run_once_after_daemon_kill() {
    let node = TestNode::start();
    let config = node.pod_config("left");
    node.daemon().kill_at(&[(CrashPoint::SandboxAttached, 1)]);
    // The first that reaches the daemon in time is given up long before the step: on a busy machine the time may pass
    // before the request is sent.
    for patience in [5, 20, 80, 320, 1280, 5120] {
        let request = RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: String::new(),
        };
        let mut request = Request::new(request);
        request.set_timeout(Duration::from_millis(patience));
        let status = node
            .cri()
            .runtime(async |mut client| client.run_pod_sandbox(request).await);
        status.expect_err("the daemon dies before the pod is up");
        if eventually(Duration::from_secs(2), || {
            node.daemon().pending_kills().is_empty()
        }) {
            break;
        }
    }
    node.daemon().wait_killed();
    node.daemon().restart();
    let ids = at_once(&node, 3, |client| {
        client.run_pod(&config).expect("it is sent again")
    });
    let pod = TestPod::adopt(&node, ids[0].clone(), config);
    assert!(ids.iter().all(|id| id == pod.id()), "{ids:?}");
    assert_eq!(node.cri().pods().expect("they can be listed").len(), 1);
    drop(pod);
    node.assert_clean();
}

#[test]
fn concurrent_starts_run_once_and_a_later_one_is_rejected() {
    let node = TestNode::shared();
    let pod = node.pod("starts");
    let id = pod.create(&node.container("main", &["sh", "-c", "echo started; exec sleep 1000"]));
    for answer in at_once(&node, 4, |client| client.start(&id)) {
        // One that came when the first was done is refused, and has started nothing.
        assert!(
            matches!(code(&answer), Code::Ok | Code::FailedPrecondition),
            "{answer:?}"
        );
    }
    let again = node.cri().start(&id);
    assert_eq!(code(&again), Code::FailedPrecondition, "{again:?}");
    let status = node.cri().status(&id).expect("it has a status");
    assert_eq!(status.state(), ContainerState::ContainerRunning);
    pod.wait_log("main", |lines| !lines.is_empty());
    assert_eq!(pod.log_text("main"), "started");
}

fn code<T: std::fmt::Debug>(answer: &Result<T, tonic::Status>) -> Code {
    answer
        .as_ref()
        .map_or_else(tonic::Status::code, |_| Code::Ok)
}

#[test]
fn identical_execs_each_run() {
    let node = TestNode::shared();
    let pod = node.pod("execs");
    let id = pod.start_shell("main", "exec sleep 1000");
    let seen = at_once(&node, 5, |client| {
        client.sh(&id, "echo x >> /tmp/runs; sleep 0.2; echo done")
    });
    assert_eq!(seen, ["done"; 5]);
    assert_eq!(node.cri().sh(&id, "wc -l < /tmp/runs"), "5");
}

#[test]
fn concurrent_stops_and_removals_all_complete() {
    let node = TestNode::shared();
    let pod = node.pod("ends");
    let id = pod.start_shell("main", "trap 'exit 5' TERM; while :; do sleep 0.02; done");
    let mut request = Request::new(StopContainerRequest {
        container_id: id.clone(),
        timeout: 20,
    });
    request.set_timeout(Duration::from_millis(1));
    let _ = node
        .cri()
        .runtime(async |mut client| client.stop_container(request).await);
    for answer in at_once(&node, 3, |client| client.stop(&id, 20)) {
        answer.expect("a stop joins the one in flight, or finds it done");
    }
    assert_eq!(node.cri().wait_exit(&id).exit_code, 5);
    for answer in at_once(&node, 3, |client| client.remove(&id)) {
        answer.expect("a removal joins the one in flight, or finds it done");
    }
    assert_eq!(
        node.cri().status(&id).expect_err("it is gone").code(),
        Code::NotFound
    );
    for answer in at_once(&node, 3, |client| client.stop_pod(pod.id())) {
        answer.expect("a stop joins the one in flight, or finds it done");
    }
    for answer in at_once(&node, 3, |client| client.remove_pod(pod.id())) {
        answer.expect("a removal joins the one in flight, or finds it done");
    }
    node.assert_gone(&[pod.id(), &id]);
}

/// containerd has ended during a creation and carried out its last call, and the daemon is killed when the creation was repeated and
/// before what it has given up was removed. So there are two objects with one name, of which its client knows the later one.
#[test]
fn of_two_objects_with_one_name_the_one_that_was_given_up_is_removed() {
    let node = TestNode::start();
    let client = node.cri();
    let socket = node.root().containerd_socket().expect("containerd runs");
    let give_up = |id: &str| copy_container(&socket, NAMESPACE, id);
    let pod = node.pod("containers");
    let config = node.container("created", &["sleep", "1000"]);
    let first = pod.create(&config);
    let of_created = give_up(&first);
    client.remove(&first).expect("it can be removed");
    let created = pod.create(&config);
    let mut given_up = vec![of_created, give_up(pod.id())];
    let mut start = |name: &str, script: &str| {
        let id = pod.create(&node.container(name, &["sh", "-c", script]));
        given_up.push(give_up(&id));
        client.start(&id).expect("it can be started");
        id
    };
    let running = start("running", "exec sleep 1000");
    let exited = start("exited", "exit 3");
    let _ = client.wait_exit(&exited);
    let config = node.pod_config("empty");
    let first = client.run_pod(&config).expect("it can be made");
    given_up.push(give_up(&first));
    client.stop_pod(&first).expect("it can be stopped");
    client.remove_pod(&first).expect("it can be removed");
    let empty = node.run(config);
    let stopped = node.pod("stopped");
    given_up.push(give_up(stopped.id()));
    client.stop_pod(stopped.id()).expect("it can be stopped");

    node.daemon().kill9();
    node.daemon().restart();
    let listed = client.containers().expect("they can be listed").into_iter();
    let containers: BTreeSet<_> = listed.map(|found| found.id).collect();
    let known = [&created, &running, &exited].map(String::clone);
    assert_eq!(containers, BTreeSet::from(known));
    let listed = client.pods().expect("they can be listed").into_iter();
    let pods: BTreeSet<_> = listed.map(|found| found.id).collect();
    let known = [pod.id(), empty.id(), stopped.id()].map(str::to_owned);
    assert_eq!(pods, BTreeSet::from(known));
    for id in &given_up {
        node.wait_gone(id);
    }
    client.start(&created).expect("it can be started");
    let running = client.status(&running).expect("it has a status");
    assert_eq!(running.state(), ContainerState::ContainerRunning);
    let exited = client.status(&exited).expect("it has a status");
    assert_eq!(exited.exit_code, 3);
    let again = empty.start_shell("main", "exec sleep 1000");
    let again = client.status(&again).expect("it has a status");
    assert_eq!(again.state(), ContainerState::ContainerRunning);
}
