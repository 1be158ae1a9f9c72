//! Reports of the real daemon to operators while the processes it depends on run, hang, die and come back.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::stub_programs::runc_of_version;
use tonic::Code;

/// Time for the daemon to notice.
const LIMIT: Duration = Duration::from_secs(40);

/// A version of runc with known vulnerabilities.
const VULNERABLE: &str = "1.1.5";

fn containerd(node: &TestNode) -> Pid {
    node.root()
        .managed("containerd")
        .expect("the daemon writes down whom it started")
}

fn readiness(node: &TestNode) -> u16 {
    node.daemon().get("/readyz").0
}

#[test]
fn readiness_follows_containerd() {
    let node = TestNode::start();
    assert_eq!(
        (readiness(&node), node.daemon().get("/livez").0),
        (200, 200)
    );
    let pid = containerd(&node);
    kill(pid, Signal::SIGSTOP).expect("it runs");
    assert!(
        eventually(LIMIT, || readiness(&node) == 503),
        "a containerd that hangs is not noticed"
    );
    let (status, body) = node.daemon().get("/readyz");
    assert!(
        status == 503 && body.contains("containerd"),
        "{status} {body}"
    );
    assert_eq!(node.daemon().get("/livez").0, 200);
    // It may have been replaced by now: a process that hangs is not worth waiting for.
    let _ = kill(pid, Signal::SIGCONT);
    assert!(
        eventually(LIMIT, || readiness(&node) == 200),
        "{}",
        node.daemon().tail()
    );

    kill(containerd(&node), Signal::SIGKILL).expect("it runs");
    assert!(
        eventually(LIMIT, || readiness(&node) == 503),
        "a dead containerd is not noticed"
    );
    assert!(
        eventually(LIMIT, || readiness(&node) == 200),
        "{}",
        node.daemon().tail()
    );
    assert_eq!(node.pod("after").run_shell("echo works", |_| {}), "works");
}

/// The advisories in `/statusz`, as programs with their versions, once the versions of the runtimes are
/// known.
fn advisories(node: &TestNode) -> Vec<String> {
    assert!(
        eventually(LIMIT, || readiness(node) == 200),
        "{}",
        node.daemon().tail()
    );
    let status: Value = serde_json::from_str(&node.daemon().get("/statusz").1).expect("it is JSON");
    let list = status["advisories"].as_array().expect("there is a list");
    list.iter()
        .filter_map(|entry| {
            Some(format!(
                "{} {}",
                entry["program"].as_str()?,
                entry["version"].as_str()?
            ))
        })
        .collect()
}

#[test]
fn hangup_ends_neither_the_daemon_nor_the_logkeeper() {
    let node = TestNode::start();
    let daemon = node.daemon().pid();
    let logkeeper = node
        .root()
        .managed("logkeeper")
        .expect("the daemon writes down whom it started");
    let pod = node.pod("logs-on");
    let id = pod.start_shell(
        "counting",
        "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done",
    );
    for pid in [Pid::from_raw(daemon), logkeeper] {
        kill(pid, Signal::SIGHUP).expect("it runs");
    }
    assert!(
        eventually(LIMIT, || node
            .daemon()
            .tail()
            .contains("the configuration was reloaded")),
        "{}",
        node.daemon().tail()
    );
    let so_far = pod.log("counting").len();
    pod.wait_log("counting", |lines| lines.len() > so_far + 5);
    assert_eq!((readiness(&node), node.daemon().pid()), (200, daemon));
    assert_eq!(node.root().managed("logkeeper"), Some(logkeeper));
    node.cri().stop(&id, 0).expect("it can be stopped");
}

#[test]
fn advisories_are_reported_unless_ignored_and_keep_readiness() {
    let node = TestNode::start_configured(|root| runc_of_version(root, VULNERABLE));
    // With what containerd has: Debian 12 does not change the number when it backports fixes.
    let named = advisories(&node);
    assert!(named.contains(&format!("runc {VULNERABLE}")), "{named:?}");
    let status = node.daemon().get("/statusz").1;
    assert!(
        status.contains("CVE-2025-31133") && !status.contains("CVE-2019-5736"),
        "{status}"
    );
    let log = || std::fs::read_to_string(node.root().daemon_log()).expect("it has one");
    let lines = || {
        log()
            .lines()
            .filter(|line| line.contains("has known vulnerabilities"))
            .count()
    };
    assert!(eventually(LIMIT, || lines() == named.len()), "{}", log());
    // The runtimes' versions are queried again when containerd has restarted.
    kill(containerd(&node), Signal::SIGKILL).expect("it runs");
    assert!(eventually(LIMIT, || readiness(&node) == 503) && advisories(&node) == named);
    assert_eq!(node.pod("fine").run_shell("echo works", |_| {}), "works");
    assert_eq!(lines(), named.len(), "and not again");
    drop(node);

    let node = TestNode::start_configured(|root| {
        let runc = runc_of_version(root, VULNERABLE);
        format!("{runc}[advisories]\nignore = {named:?}\n")
    });
    assert_eq!(advisories(&node), Vec::<String>::new());
}

#[test]
fn calls_blocked_by_recovery_fail_with_a_retry_hint() {
    let node = TestNode::start_with("[recovery]\nwait_seconds = 1\n", |_| {});
    let pod = node.pod("early");
    node.daemon().terminate();
    let pid = containerd(&node);
    kill(pid, Signal::SIGSTOP).expect("it outlives the daemon");
    node.daemon().spawn();
    let mut answer = None;
    let reported = eventually(LIMIT, || {
        answer = node.cri().pod_status(pod.id()).err();
        answer
            .as_ref()
            .is_some_and(|status| status.message().contains("recover"))
    });
    let status = answer.expect("it cannot know yet");
    assert!(reported && status.code() == Code::Unavailable, "{status}");
    for status in [
        node.cri().run_pod(&node.pod_config("new")).map(drop),
        node.cri().stop_pod(pod.id()),
        node.cri().containers().map(drop),
        node.cri().list_images().map(drop),
    ] {
        let status = status.expect_err("it cannot know yet");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
    // It may have been replaced by now.
    let _ = kill(pid, Signal::SIGCONT);
    node.daemon().wait_ready();
    assert_eq!(pod.run_shell("echo works", |_| {}), "works");
}

#[test]
fn stop_in_flight_is_answered_during_shutdown() {
    let node = TestNode::start();
    let pod = node.pod("ending");
    let script =
        "trap 'echo asked; sleep 0.1; exit 3' TERM; echo hello; while :; do sleep 0.02; done";
    let id = pod.start_shell("main", script);
    pod.wait_log("main", |lines| lines.len() == 1);
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| node.cri().stop(&id, 20));
        pod.wait_log("main", |lines| lines.len() == 2);
        let status = node.daemon().terminate();
        assert!(status.success(), "{status}");
        stop.join()
            .expect("a call does not panic")
            .expect("it is answered");
    });
    node.daemon().restart();
    assert_eq!(
        node.cri().status(&id).expect("it has a status").exit_code,
        3
    );
}

#[test]
fn metrics_count_calls_by_method_without_object_names() {
    let node = TestNode::start();
    let pod = node.pod("counted");
    let id = pod.start_shell("main", "exec sleep 1000");
    node.cri()
        .status(&"0".repeat(64))
        .expect_err("there is none");
    let (status, text) = node.daemon().get("/metrics");
    assert_eq!(status, 200);
    for (method, code) in [
        ("RuntimeService/RunPodSandbox", "OK"),
        ("RuntimeService/StartContainer", "OK"),
        ("RuntimeService/ContainerStatus", "NOT_FOUND"),
        ("ImageService/PullImage", "OK"),
    ] {
        let found = text.lines().any(|line| {
            line.starts_with("switchyard_rpc_requests_total{")
                && line.contains(&format!("method=\"runtime.v1.{method}\""))
                && line.contains(&format!("code=\"{code}\""))
                && line.ends_with(" 1")
        });
        assert!(found, "{method} {code} is missing in {text}");
    }
    let pulled = text.lines().any(|line| {
        line.starts_with("switchyard_image_pulls_total{registry=\"")
            && !line.contains("\"other\"")
            && line.ends_with(",result=\"ok\"} 1")
    });
    assert!(pulled, "{text}");
    assert!(
        text.contains("switchyard_streaming_sessions{kind=\"exec\"} 0"),
        "{text}"
    );
    let long_hex = text
        .split(|c: char| !c.is_ascii_hexdigit())
        .any(|word| word.len() >= 32);
    assert!(
        !long_hex && !text.contains(pod.id()) && !text.contains(&id),
        "an id is in {text}"
    );
}
