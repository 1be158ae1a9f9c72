//! Exits of containers: exit codes, reasons, grace periods, and processes that an exec leaves behind.

use std::time::{Duration, Instant};

use switchyard_proto::cri::v1::{ContainerState, Signal};
use switchyard_tests::cri::limits;
use switchyard_tests::host::cgroups::{self, ForeignProcess};
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::node::TestNode;
use tonic::Code;

/// Memory that a shell needs, and a hog has not enough of.
const LITTLE: i64 = 20 << 20;

/// Time for a cleanup that no call waits for.
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn exit_has_code_and_reason() {
    let node = TestNode::shared();
    let pod = node.pod("ends");
    for (name, script, code, reason) in [
        ("well", "exit 0", 0, "Completed"),
        ("badly", "exit 7", 7, "Error"),
        ("crashed", "sh -c 'kill -11 $$'; exit $?", 139, "Error"),
    ] {
        let status = node.cri().wait_exit(&pod.start_shell(name, script));
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (code, reason),
            "{name}"
        );
        assert!(status.created_at <= status.started_at, "{status:?}");
        assert!(status.started_at <= status.finished_at, "{status:?}");
    }
}

#[test]
fn memory_limit_violation_is_reported_as_oom_killed() {
    let node = TestNode::shared();
    let pod = node.pod("oom");
    let hog = "exec dd if=/dev/zero of=/dev/null bs=100M count=10";
    let id = pod.start_shell_with("hog", hog, |config| {
        limits(config).memory_limit_in_bytes = LITTLE
    });
    let status = node.cri().wait_exit(&id);
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (137, "OOMKilled")
    );
    // The kernel may kill a child instead: then the container exits with its own code, and the reason is the
    // same.
    let child = "dd if=/dev/zero of=/dev/null bs=100M count=10; exit 9";
    let id = pod.start_shell_with("parent", child, |config| {
        limits(config).memory_limit_in_bytes = LITTLE
    });
    let status = node.cri().wait_exit(&id);
    assert_eq!((status.exit_code, status.reason.as_str()), (9, "OOMKilled"));
    let id = pod.start_shell_with("modest", "exit 137", |config| {
        limits(config).memory_limit_in_bytes = LITTLE
    });
    assert_eq!(node.cri().wait_exit(&id).reason, "Error");
}

#[test]
fn busy_cgroup_is_removed_when_empty() {
    let node = TestNode::shared();
    let pod = node.pod("stray");
    let id = pod.start_shell("main", "exec sleep 1000");
    let group = cgroups::named(&id).pop().expect("it has a control group");
    let stray = ForeignProcess::begin(&group);
    // The runtime may say once that it is not empty.
    let removed = eventually(LIMIT, || {
        node.cri()
            .stop(&id, 0)
            .and_then(|()| node.cri().remove(&id))
            .is_ok()
    });
    let stays = group.exists();
    drop(stray);
    assert!(
        removed && stays,
        "removed: {removed}, its group stays: {stays}"
    );
    assert!(
        eventually(LIMIT, || cgroups::named(&id).is_empty()),
        "{:?}",
        cgroups::named(&id)
    );
}

#[test]
fn missing_program_fails_the_start() {
    let node = TestNode::shared();
    let pod = node.pod("missing");
    let id = pod.create(&node.container("main", &["/no/such/program"]));
    let error = node.cri().start(&id).expect_err("it is not there");
    assert!(error.message().contains("/no/such/program"), "{error}");
    let status = node.cri().status(&id).expect("it has a status");
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (128, "StartError")
    );
    assert!(status.message.contains("/no/such/program"), "{status:?}");
    assert!(
        status.started_at > 0 && status.finished_at > 0,
        "{status:?}"
    );
    node.cri().start(&id).expect_err("it has ended");
    node.cri()
        .stop(&id, 1)
        .expect("what has ended can be stopped");
}

#[test]
fn stop_waits_for_its_grace_period_then_kills() {
    let node = TestNode::shared();
    let pod = node.pod("grace");
    let deaf = pod.start_shell(
        "deaf",
        "trap 'echo heard' TERM; while :; do sleep 0.1; done",
    );
    let begin = Instant::now();
    node.cri().stop(&deaf, 1).expect("it can be stopped");
    let took = begin.elapsed();
    assert!(
        took >= Duration::from_secs(1) && took < Duration::from_secs(8),
        "{took:?}"
    );
    let status = node.cri().status(&deaf).expect("it has a status");
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "Error"));
    assert_eq!(pod.log_text("deaf"), "heard");
    node.cri().stop(&deaf, 1).expect("a stop can be repeated");

    let obedient = pod.start_shell(
        "obedient",
        "trap 'exit 5' TERM; while :; do sleep 0.1; done",
    );
    let begin = Instant::now();
    node.cri().stop(&obedient, 60).expect("it can be stopped");
    assert!(
        begin.elapsed() < Duration::from_secs(8),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(
        node.cri()
            .status(&obedient)
            .expect("it has a status")
            .exit_code,
        5
    );
}

#[test]
fn later_stop_with_shorter_grace_period_wins() {
    let node = TestNode::shared();
    let pod = node.pod("shorter");
    let id = pod.start_shell(
        "deaf",
        "trap 'echo heard' TERM; echo ready; while :; do sleep 0.1; done",
    );
    // Until the trap is set the kernel drops the signal.
    pod.wait_log("deaf", |lines| !lines.is_empty());
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| node.cri().stop(&id, 60));
        pod.wait_log("deaf", |lines| lines.len() > 1);
        node.cri().stop(&id, 1).expect("it can be stopped");
        patient
            .join()
            .expect("a call does not panic")
            .expect("the first stop ends as well");
    });
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(
        pod.log_text("deaf"),
        "ready\nheard",
        "the signal was sent again"
    );
}

#[test]
fn container_is_stopped_with_its_stop_signal() {
    let node = TestNode::shared();
    let pod = node.pod("signal");
    let script = "trap 'exit 3' USR1; echo ready; while :; do sleep 0.1; done";
    let id = pod.start_shell_with("main", script, |config| {
        config.set_stop_signal(Signal::Sigusr1)
    });
    pod.wait_log("main", |lines| !lines.is_empty());
    node.cri().stop(&id, 30).expect("it can be stopped");
    let status = node.cri().status(&id).expect("it has a status");
    assert_eq!(
        (status.exit_code, status.stop_signal()),
        (3, Signal::Sigusr1)
    );
}

#[test]
fn exec_is_killed_at_its_timeout() {
    let node = TestNode::shared();
    let pod = node.pod("exec");
    let id = pod.start_shell("main", "exec sleep 1000");
    let begin = Instant::now();
    let status = node
        .cri()
        .exec(&id, &["sleep", "31337"], 1)
        .expect_err("it takes too long");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
    let runs = || processes::running(node.root().path(), "sleep 31337").is_some();
    let gone = eventually(Duration::from_secs(5), || !runs());
    assert!(gone, "it still runs");
    assert_eq!(node.cri().sh(&id, "echo alive"), "alive");
}

#[test]
fn exec_returns_all_output_and_needs_a_running_container() {
    let node = TestNode::shared();
    let pod = node.pod("output");
    let id = pod.start_shell("main", "exec sleep 1000");
    let answer = node.cri().exec(
        &id,
        &[
            "sh",
            "-c",
            "head -c 1000000 /dev/zero; head -c 5 /dev/zero >&2",
        ],
        20,
    );
    let answer = answer.expect("it can be asked");
    assert_eq!(
        (answer.stdout.len(), answer.stderr.len(), answer.exit_code),
        (1_000_000, 5, 0)
    );
    let status = node
        .cri()
        .exec(&id, &["/no/such/program"], 5)
        .expect_err("it is not there");
    assert!(status.message().contains("/no/such/program"), "{status}");
    node.cri().stop(&id, 0).expect("it can be stopped");
    let status = node
        .cri()
        .exec(&id, &["true"], 5)
        .expect_err("it has ended");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
}

#[test]
fn running_container_is_removed_forcibly() {
    let node = TestNode::shared();
    let pod = node.pod("forced");
    let id = pod.start_shell("main", "trap '' TERM; while :; do sleep 1; done");
    node.cri().remove(&id).expect("it can be removed");
    assert_eq!(
        node.cri().status(&id).expect_err("it is gone").code(),
        Code::NotFound
    );
    node.cri().remove(&id).expect("a removal can be repeated");
    node.assert_gone(&[&id]);
}
