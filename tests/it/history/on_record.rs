//! The history on record: what it says of exits, and after the end of the daemon that has recorded them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::node::TestNode;

use super::{LIMIT, audited, audited_node, lines};

/// The records that `switchyard history` has with these options.
fn history(node: &TestNode, options: &[&str]) -> Vec<Value> {
    let words = [&["history", "--output", "json"][..], options].concat();
    lines(&node.output(&words))
}

/// The exits in them.
fn exits(node: &TestNode, options: &[&str]) -> Vec<Value> {
    let mut records = history(node, options);
    records.retain(|record| record["event"] == "task_exited");
    records
}

/// The words of the events about the node itself.
fn of_node(node: &TestNode) -> Vec<String> {
    let records = history(node, &[]);
    let of_node = records.iter().filter(|record| record["owner"] == "node");
    of_node
        .map(|record| record["event"].as_str().expect("it is a word").to_owned())
        .collect()
}

/// Kills the process with this command line, and waits until it is gone.
fn kill_command(node: &TestNode, command: &str) {
    let running = || {
        let all = processes::belonging_to(node.root().path());
        all.into_iter()
            .find(|process| process.command == command)
            .map(|process| Pid::from_raw(process.pid))
    };
    let process = running().expect("it runs");
    kill(process, Signal::SIGKILL).expect("it runs");
    assert!(eventually(LIMIT, || running().is_none()), "it does not end");
}

#[test]
fn exits_are_on_record_with_their_cause_also_for_the_next_daemon() {
    let (node, file) = audited_node();
    let pod = node.pod("recorded");
    let failed = pod.start_shell("failed", "exit 3");
    assert_eq!(node.cri().wait_exit(&failed).exit_code, 3);
    let stopped = pod.start(&node.container("stopped", &["sleep", "31000"]));
    node.cri().stop(&stopped, 1).expect("it can be stopped");
    let unseen = pod.start(&node.container("unseen", &["sleep", "31001"]));
    let expected = |exits: &[Value]| {
        let found = |id: &str| exits.iter().find(|exit| exit["task"] == id);
        let failed = found(&failed)
            .is_some_and(|exit| exit["exit"]["cause"] == "exited" && exit["exit"]["code"] == 3);
        let stopped = found(&stopped).is_some_and(|exit| {
            exit["exit"]["cause"] == "stopped"
                && exit["exit"]["listener"] == "cri"
                && exit["exit"]["operation"] == "stop_task"
                && exit["exit"]["pid"] == json!(std::process::id())
        });
        failed && stopped
    };
    let by_pod = || exits(&node, &["recorded"]);
    assert!(eventually(LIMIT, || expected(&by_pod())), "{:#?}", by_pod());
    let audit = audited(&file);
    let line = audit
        .iter()
        .find(|line| line["operation"] == "task_exited" && line["task"] == *stopped)
        .expect("an exit is audited");
    assert_eq!(line["result"], "stopped");
    assert_eq!(line["listener"], "cri");
    let (_, metrics) = node.daemon().get("/metrics");
    let counted = "switchyard_task_exits_total{cause=\"stopped\",owner=\"kubernetes\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    assert!(
        metrics.contains("switchyard_history_events_total{result=\"lost\"} 0"),
        "{metrics}"
    );

    let mut daemon = node.daemon();
    daemon.kill9();
    kill_command(&node, "sleep 31001");
    daemon.restart();
    drop(daemon);

    let found = || exits(&node, &[&unseen[..8]]);
    assert!(eventually(LIMIT, || found().len() == 1), "{:#?}", found());
    let found = &found()[0];
    assert_eq!(found["exit"]["code"], 137, "{found}");
    assert_eq!(found["exit"]["is_found"], true, "{found}");
    let detail = found["detail"].as_str().expect("it has one");
    assert!(
        detail.contains("found at the start of the daemon"),
        "{detail}"
    );
    assert!(expected(&by_pod()), "{:#?}", by_pod());
    // None of those before is there twice.
    assert_eq!(by_pod().len(), 3, "{:#?}", by_pod());
    let started = |records: &[Value]| -> Vec<String> {
        let of_daemon = records
            .iter()
            .filter(|record| record["event"] == "daemon_started");
        of_daemon
            .map(|record| record["detail"].to_string())
            .collect()
    };
    let starts = started(&history(&node, &["--owner", "nomad"]));
    assert_eq!(starts.len(), 2, "{starts:?}");
    assert!(
        starts[1].contains("left no record of its end"),
        "{starts:?}"
    );
    // The list of events has them too.
    assert!(node.output(&["events"]).contains("code 3"));
}

#[test]
fn end_of_the_daemon_and_restarts_of_its_processes_are_on_record() {
    let node = TestNode::start();
    let dead = node.kill_managed("containerd");
    let is_back = || {
        let running = node.root().managed("containerd");
        running.is_some_and(|pid| pid != dead)
    };
    assert!(eventually(LIMIT, is_back), "containerd does not come back");
    let recorded = || {
        let words = of_node(&node);
        let at = |word: &str| words.iter().rposition(|event| event == word);
        at("containerd_ended") < at("containerd_started") && at("containerd_ended").is_some()
    };
    assert!(eventually(LIMIT, recorded), "{:?}", of_node(&node));
    node.daemon().restart();
    let words = of_node(&node);
    let ends = words.iter().filter(|word| *word == "daemon_ended").count();
    assert_eq!(ends, 1, "{words:?}");
    let records = history(&node, &["--since", "1h"]);
    let last = records
        .iter()
        .rfind(|record| record["event"] == "daemon_started")
        .expect("it has started");
    let detail = last["detail"].as_str().expect("it has one");
    assert!(!detail.contains("left no record"), "{detail}");
    assert_eq!(
        history(&node, &["--until", "2020-01-01"]),
        Vec::<Value>::new()
    );
}

#[test]
fn quick_restarts_of_an_external_containerd_are_on_record() {
    let node = TestNode::start_external("");
    // Those about containerd, each as whether it was lost, and whether it is there again.
    let changes = || -> Vec<(bool, bool)> {
        let words = of_node(&node);
        let changes = words.iter().filter_map(|word| match word.as_str() {
            "runtime_interrupted" => Some((true, true)),
            "runtime_unavailable" => Some((true, false)),
            "runtime_answers" => Some((false, true)),
            _ => None,
        });
        changes.collect()
    };
    for restarts in 1..=2 {
        let containerd = node.external_containerd();
        containerd.expect("it is external").restart();
        let is_recorded = || {
            let changes = changes();
            let losses = changes.iter().filter(|(is_lost, _)| *is_lost).count();
            losses >= restarts && changes.last().is_some_and(|(_, is_back)| *is_back)
        };
        assert!(eventually(LIMIT, is_recorded), "{:?}", of_node(&node));
    }
    // The list of events has them too.
    let shown = node.output(&["events"]);
    assert!(shown.contains("runtime_"), "{shown}");
}

#[test]
fn damaged_and_foreign_files_of_the_history_are_reported_or_left_alone() {
    let node = TestNode::start();
    let pod = node.pod("damaged");
    let id = pod.start_shell("main", "exit 3");
    assert_eq!(node.cri().wait_exit(&id).exit_code, 3);
    assert!(eventually(LIMIT, || exits(&node, &[]).len() == 1));
    let dir = node.root().state().join("history");
    let mut daemon = node.daemon();
    daemon.terminate();
    let segment = dir.join("events-1-0000000001.jsonl");
    let mode = fs::metadata(&segment).expect("it is there").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let mut text = fs::read(&segment).expect("it can be read");
    text.extend_from_slice(b"\xff\xff\n{\"at\":\"2026");
    fs::write(&segment, text).expect("the root can be written");
    let later = dir.join("events-2-0000000001.jsonl");
    fs::write(&later, "of a later version\n").expect("the root can be written");
    daemon.restart();
    drop(daemon);

    assert_eq!(exits(&node, &[]).len(), 1);
    let shown = node.call(&["history"]);
    let errors = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(shown.status.success(), "{errors}");
    assert!(errors.contains("2 records cannot be read"), "{errors}");
    let kept = fs::read_to_string(&later).expect("it is there");
    assert_eq!(kept, "of a later version\n");
}
