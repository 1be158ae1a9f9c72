//! Metrics that gate a roll-out: recovery, versions, and what still runs as it was before.

use std::fs;

use serde_json::json;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::Agent;

use super::{LIMIT, scrape, value};

/// The versions of the processes of a part.
fn versions(text: &str, part: &str) -> Vec<String> {
    let of_part = format!("switchyard_program_versions{{part=\"{part}\",version=\"");
    text.lines()
        .filter_map(|line| line.strip_prefix(&of_part)?.split_once('"'))
        .map(|(version, _)| version.to_owned())
        .collect()
}

#[test]
fn recovery_is_timed_and_each_process_has_its_version() {
    let node = TestNode::start();
    let text = scrape(&node);
    let seconds = value(&text, "switchyard_recovery_duration_seconds", &[]);
    assert!(
        seconds.is_some_and(|seconds| (0.001..60.0).contains(&seconds)),
        "{text}"
    );
    assert_eq!(
        value(&text, "switchyard_recovery_failures_total", &[]),
        Some(0.0)
    );
    let own = versions(&text, "daemon");
    assert_eq!(own.len(), 1, "{text}");
    assert_eq!(versions(&text, "logkeeper"), own, "{text}");
    assert_eq!(versions(&text, "containerd").len(), 1, "{text}");
    assert_eq!(versions(&text, "nomad-launcher"), Vec::<String>::new());
    let _agent = Agent::start(node.root(), &json!({}));
    assert!(
        eventually(LIMIT, || versions(&scrape(&node), "nomad-launcher") == own),
        "{}",
        scrape(&node)
    );
}

#[test]
fn task_that_ended_unseen_is_counted_as_lost_by_the_next_daemon_alone() {
    let node = TestNode::start();
    let pod = node.pod("lost");
    let id = pod.start_shell("main", "exec sleep 31998");
    node.daemon().kill9();
    node.kill_unseen(&id, "sleep 31998");
    let lost = || {
        let labels = [("kind", "task"), ("result", "lost")];
        value(&scrape(&node), "switchyard_recovery_objects_total", &labels)
    };
    node.daemon().restart();
    assert_eq!(lost(), Some(1.0), "{}", scrape(&node));
    node.daemon().restart();
    assert_eq!(lost(), None, "{}", scrape(&node));
    node.cri().remove(&id).expect("it can be removed");
    node.wait_gone(&id);
}

#[test]
fn former_configuration_of_an_adopted_containerd_is_reported_until_its_restart() {
    let node = TestNode::start();
    let pod = node.pod("configured");
    let id = pod.start(&node.container("main", &["sleep", "1000"]));
    let former = || {
        value(
            &scrape(&node),
            "switchyard_former_configurations",
            &[("part", "containerd")],
        )
    };
    assert_eq!(former(), Some(0.0));
    node.daemon().kill9();
    // As an earlier version wrote it, and its containerd has read it.
    let file = node.root().state().join("containerd/config.toml");
    let present = fs::read_to_string(&file).expect("a start of containerd has written it");
    let earlier = present.replace("io.containerd.internal.v1.restart", "of.an.earlier.version");
    assert_ne!(earlier, present, "{present}");
    fs::write(&file, &earlier).expect("the root can be written");
    let before = node.containerd_pid();
    node.daemon().restart();
    assert_eq!(node.containerd_pid(), before, "it is adopted");
    assert_eq!(former(), Some(1.0), "{}", scrape(&node));
    let expected =
        "has read a former configuration: `switchyard restart containerd` puts the present one";
    let text = node.output(&["status"]);
    assert!(text.contains(expected), "{text}");

    let _ = node.output(&["restart", "containerd"]);
    assert_ne!(node.containerd_pid(), before);
    assert_eq!(former(), Some(0.0), "{}", scrape(&node));
    assert!(
        !node
            .output(&["status", "--wait", "ready=60s"])
            .contains(expected)
    );
    let now = fs::read_to_string(&file).expect("it is there");
    assert_eq!(now, present);
    assert_eq!(node.cri().sh(&id, "echo still"), "still");
}

#[test]
fn status_waits_for_a_daemon_that_is_replaced() {
    let node = TestNode::start();
    node.daemon().kill9();
    let late = node.call(&["status", "--wait", "ready=1s"]);
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| node.output(&["status", "--wait", "ready=60s"]));
        node.daemon().restart();
        let text = waiting.join().expect("it succeeds");
        assert!(text.contains(" is ready, process "), "{text}");
    });
}
