//! The logkeeper is down: containers run on until their pipes are full, new ones are refused, and the node
//! reports it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_proto::cri::v1::{ContainerState, NamespaceMode};
use switchyard_tests::cri::namespaces;
use switchyard_tests::host::eventually;
use switchyard_tests::node::{TestNode, log_content};
use tonic::Code;

use super::{
    FAST_CALL_LIMIT, LIMIT, SuspendedProcess, assert_no_leaks_since, assert_not_ready,
    assert_recovers, managed, refused,
};

/// Prints a number about every hundredth of a second.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n; echo $n > /n; sleep 0.01; done";

/// Time for which the logkeeper is silent: half of the limit of a call to it, which is ten seconds, because a
/// busy machine needs time for the calls after it.
const SILENCE: Duration = Duration::from_secs(5);

/// The last number that a container has printed.
fn last_number(node: &TestNode, id: &str) -> u64 {
    node.cri().sh(id, "cat /n").parse().unwrap_or_default()
}

#[track_caller]
fn assert_complete(lines: &[String]) {
    let numbers: Vec<_> = lines[..lines.len() - 1]
        .iter()
        .map(|line| log_content(line).to_owned())
        .collect();
    let expected: Vec<_> = (1..=numbers.len())
        .map(|number| number.to_string())
        .collect();
    assert_eq!(numbers, expected, "lines are lost or doubled");
}

#[test]
fn hung_logkeeper_blocks_starts_and_running_containers_continue() {
    let conf = "[containerd]\nanswer_timeout_seconds = 1\n[managed]\nhang_timeout_seconds = 0\n";
    let node = TestNode::start_with(conf, |_| {});
    let pod = node.pod("silent");
    let id = pod.start_shell("counting", COUNT);
    pod.wait_log("counting", |lines| !lines.is_empty());
    let created = pod.create(&node.container("refused", &["sleep", "1000"]));
    let silent = pod.create(&{
        let mut config = node.container("silent", &["sleep", "1000"]);
        config.log_path.clear();
        config
    });
    let before = node.leak_scan();
    let frozen = SuspendedProcess::new(managed(&node, "logkeeper"));
    assert_not_ready(&node, "RuntimeReady", "LogkeeperUnavailable", "logkeeper");
    let (status, body) = node.daemon().get("/readyz");
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("LogkeeperUnavailable"), "{body}");
    let cri = node.cri().with_timeout(FAST_CALL_LIMIT);
    let status = refused("StartContainer", cri.start(&created), &[Code::Unavailable]);
    assert!(status.message().contains("logkeeper"), "{status}");
    let status = cri.status(&created).expect("it has a status");
    assert_eq!(
        status.state(),
        ContainerState::ContainerCreated,
        "{status:?}"
    );
    let so_far = last_number(&node, &id);
    assert!(
        eventually(LIMIT, || last_number(&node, &id) > so_far + 20),
        "the container is held up"
    );
    node.cri()
        .start(&silent)
        .expect("a container without a log needs no logkeeper");
    assert_eq!(
        node.cri().sh(&id, "echo reached"),
        "reached",
        "a command needs none"
    );
    drop(frozen);
    assert_recovers(&node);
    let so_far = pod.log("counting").len();
    assert_complete(&pod.wait_log("counting", |lines| lines.len() > so_far + 20));
    assert_eq!(pod.run_shell("echo more", |_| {}), "more");
    node.cri()
        .start(&created)
        .expect("what was refused can be started");
    node.cri().remove(&created).expect("it can be removed");
    node.cri().remove(&silent).expect("it can be removed");
    assert!(
        node.leak_scan()
            .new_since(&before)
            .iter()
            .all(|found| !found.contains(&created))
    );
}

/// As on a node under load: it answers, but late.
#[test]
fn start_waits_for_a_busy_logkeeper() {
    let conf = "[containerd]\nanswer_timeout_seconds = 1\n[managed]\nhang_timeout_seconds = 0\n";
    let node = TestNode::start_with(conf, |_| {});
    let pod = node.pod("busy");
    let id = pod.create(&node.container("main", &["sleep", "1000"]));
    let frozen = SuspendedProcess::new(managed(&node, "logkeeper"));
    let log = || fs::read_to_string(node.root().daemon_log()).expect("the daemon writes a log");
    let is_late = || log().contains("the logkeeper is late for its check");
    assert!(eventually(LIMIT, is_late), "{}", node.daemon().tail());
    thread::scope(|scope| {
        let start = scope.spawn(|| node.cri().start(&id));
        let operations = || node.output(&["status", "--verbose"]);
        assert!(
            eventually(LIMIT, || operations().contains("wait_for_logkeeper")),
            "{}",
            operations()
        );
        let status = node.cri().status(&id).expect("it has a status");
        assert_eq!(
            status.state(),
            ContainerState::ContainerCreated,
            "{status:?}"
        );
        assert_eq!(node.daemon().get("/readyz").0, 200, "busy is not down");
        drop(frozen);
        start
            .join()
            .expect("a call does not panic")
            .expect("the logkeeper answers");
    });
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
}

/// As on a node that starts all its pods while the logkeeper gets no processor for a while.
#[test]
fn many_starts_at_once_outlive_a_silence_of_the_logkeeper() {
    let node = TestNode::start_with("[containerd]\nanswer_timeout_seconds = 2\n", |_| {});
    let pods: Vec<_> = (0..4)
        .map(|number| {
            node.pod_with(&format!("load-{number}"), |config| {
                namespaces(config).set_network(NamespaceMode::Node);
            })
        })
        .collect();
    let mut ids = Vec::new();
    for pod in &pods {
        let container = |number| {
            node.container(
                &format!("c{number}"),
                &["sh", "-c", "echo on; exec sleep 1000"],
            )
        };
        ids.extend((0..10).map(|number| pod.create(&container(number))));
    }
    let frozen = SuspendedProcess::new(managed(&node, "logkeeper"));
    thread::scope(|scope| {
        let starts: Vec<_> = ids
            .iter()
            .map(|id| scope.spawn(|| node.cri().start(id)))
            .collect();
        let begun = Instant::now();
        let log = || fs::read_to_string(node.root().daemon_log()).expect("the daemon writes a log");
        let is_late = || log().contains("the logkeeper is late for its check");
        assert!(eventually(LIMIT, is_late), "{}", node.daemon().tail());
        thread::sleep(SILENCE.saturating_sub(begun.elapsed()));
        drop(frozen);
        for start in starts {
            let started = start.join().expect("a call does not panic");
            assert!(started.is_ok(), "{started:?}: {}", node.daemon().tail());
        }
    });
    for container in node.cri().containers().expect("they can be listed") {
        assert_eq!(
            container.state(),
            ContainerState::ContainerRunning,
            "{container:?}"
        );
    }
    for pod in &pods {
        for number in 0..10 {
            pod.wait_log(&format!("c{number}"), |lines| lines.len() == 1);
        }
    }
}

#[test]
fn hung_logkeeper_is_replaced_and_no_line_is_lost() {
    let conf = "[containerd]\nanswer_timeout_seconds = 1\n[managed]\nhang_timeout_seconds = 2\n";
    let node = TestNode::start_with(conf, |_| {});
    let pod = node.pod("replaced");
    let id = pod.start_shell("counting", COUNT);
    pod.wait_log("counting", |lines| !lines.is_empty());
    let hung = managed(&node, "logkeeper");
    let _frozen = SuspendedProcess::new(hung);
    let replaced = eventually(LIMIT, || managed(&node, "logkeeper") != hung);
    assert!(replaced, "it is not replaced\n{}", node.daemon().tail());
    assert_recovers(&node);
    let so_far = last_number(&node, &id);
    assert_complete(&pod.wait_log("counting", |lines| {
        u64::try_from(lines.len()).is_ok_and(|lines| lines > so_far)
    }));
}

#[test]
fn logkeeper_restart_failure_is_reported_until_it_succeeds() {
    // The daemon starts the logkeeper from its own binary, which is removed and put back.
    let node = TestNode::start_with_copied_binary();
    let binary = node.daemon().program();
    let pod = node.pod("gone");
    let id = pod.start_shell("counting", COUNT);
    let before = node.leak_scan();
    let kept = binary.with_extension("kept");
    fs::rename(&binary, &kept).expect("the root can be written");
    fs::write(&binary, "#!/bin/sh\nexit 9\n").expect("the root can be written");
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).expect("it is ours");
    kill(Pid::from_raw(managed(&node, "logkeeper")), Signal::SIGKILL).expect("it runs");
    assert_not_ready(&node, "RuntimeReady", "LogkeeperUnavailable", "logkeeper");
    assert!(
        eventually(LIMIT, || {
            let (status, body) = node.daemon().get("/readyz");
            status == 503 && body.contains("[-]logkeeper failed: ended")
        }),
        "{}",
        node.daemon().get("/readyz").1
    );
    let created = pod.create(&node.container("refused", &["sleep", "1000"]));
    let cri = node.cri().with_timeout(FAST_CALL_LIMIT);
    let status = refused("StartContainer", cri.start(&created), &[Code::Unavailable]);
    assert!(status.message().contains("logkeeper"), "{status}");
    let so_far = last_number(&node, &id);
    assert!(
        eventually(LIMIT, || last_number(&node, &id) > so_far + 20),
        "the container is held up"
    );
    fs::rename(&kept, &binary).expect("the root can be written");
    assert_recovers(&node);
    let so_far = pod.log("counting").len();
    assert_complete(&pod.wait_log("counting", |lines| lines.len() > so_far + 20));
    node.cri().remove(&created).expect("it can be removed");
    assert_no_leaks_since(&node, &before);
}
