//! The daemon's own metrics: their names, what is documented of them, and what they say of a real node.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::json;
use switchyard_crash_points::CrashPoint;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use switchyard_tests::prereq;

use crate::architecture::repository;

mod containers;
mod failures;
mod node;
mod series;
mod upgrades;

/// Time for the daemon to notice.
const LIMIT: Duration = Duration::from_secs(40);

/// Maximum running time of a test's task.
const RUN: Duration = Duration::from_secs(60);

fn scrape(node: &TestNode) -> String {
    let (status, text) = node.daemon().get("/metrics");
    assert_eq!(status, 200, "{text}");
    text
}

/// The sum of the series of this name that have all of these labels; `None` if there is none.
fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels: Vec<String> = labels
        .iter()
        .map(|(label, value)| format!("{label}=\"{value}\""))
        .collect();
    let series = text.lines().filter_map(|line| line.strip_prefix(name));
    let values = series.filter_map(|rest| {
        let (with, value) = rest.rsplit_once(' ')?;
        let is_asked = (with.is_empty() || with.starts_with('{'))
            && labels.iter().all(|label| with.contains(label.as_str()));
        is_asked.then(|| value.parse::<f64>().expect("it is a number"))
    });
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

/// The names of metrics between these marks.
fn names<'a>(text: &'a str, begin: &'a str, end: char) -> impl Iterator<Item = String> + 'a {
    text.split(begin).skip(1).filter_map(move |rest| {
        let name = rest.split(end).next()?;
        let is_name = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let is_ours = name.starts_with("switchyard_") || name.starts_with("process_");
        (is_name && is_ours).then(|| name.to_owned())
    })
}

#[test]
fn every_metric_is_documented_and_every_documented_one_exists() {
    let source = repository().join("gateway/operator/src");
    let mut files = vec![source.join("metrics.rs")];
    files.extend(
        fs::read_dir(source.join("metrics"))
            .expect("it exists")
            .flatten()
            .map(|file| file.path()),
    );
    let mut registered = BTreeSet::new();
    for file in files {
        let text =
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        registered.extend(names(&text, "\"", '"'));
    }
    let page = fs::read_to_string(repository().join("docs/metrics.md")).expect("it exists");
    let documented: BTreeSet<_> = names(&page, "\n| `", '`').collect();
    assert!(registered.len() > 40, "{registered:?}");
    let missing: Vec<_> = registered.difference(&documented).collect();
    let invented: Vec<_> = documented.difference(&registered).collect();
    assert!(
        missing.is_empty() && invented.is_empty(),
        "not documented: {missing:?}; not there: {invented:?}"
    );
}

/// The faults that promtool finds in a scrape; empty if there are none.
fn promtool(text: &str) -> String {
    let mut check = Command::new(prereq::require("promtool", "prometheus"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be run");
    check
        .stdin
        .take()
        .expect("it is piped")
        .write_all(text.as_bytes())
        .expect("it reads");
    let done = check.wait_with_output().expect("it ends");
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(
        done.status.success(),
        said.is_empty(),
        "{}: {said}",
        done.status
    );
    said
}

#[test]
fn promtool_has_no_complaint_about_a_node_with_pods_and_jobs() {
    let node = TestNode::start();
    let pod = node.pod("measured");
    let id = pod.start(&node.container("main", &["sleep", "1000"]));
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let config = json!({
        "image": node.image(), "command": "sh", "args": ["-c", "exit 3"], "network_mode": "host"
    });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    driver.start(&task.config).expect("it starts");
    assert_eq!(driver.wait(task.id(), RUN).expect("it ends").exit_code, 3);
    node.cri()
        .status("no-such-container")
        .expect_err("it does not exist");

    let text = scrape(&node);
    assert_eq!(promtool(&text), "");
    assert_ne!(
        promtool("# TYPE wrong counter\nwrong 1\n"),
        "",
        "promtool finds what is wrong"
    );

    assert_calls_of_containerd_are_counted(&text);

    assert_calls_of_nomad_and_the_runtime_are_counted(&text);
    assert!(
        !text.contains(&id) && !text.contains("no-such-container"),
        "a label holds an id: {text}"
    );

    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
    drop(task);
    agent.stop();
}

fn assert_calls_of_containerd_are_counted(text: &str) {
    let calls = |method: &str| {
        value(
            text,
            "switchyard_containerd_calls_total",
            &[("method", method)],
        )
    };
    let timed = |method: &str| {
        value(
            text,
            "switchyard_containerd_call_duration_seconds_count",
            &[("method", method)],
        )
    };
    let create = "containerd.services.tasks.v1.Tasks/Create";
    assert!(
        calls(create) >= Some(2.0) && timed(create) == calls(create),
        "{text}"
    );
    let ok = [("method", create), ("code", "OK")];
    assert_eq!(
        value(text, "switchyard_containerd_calls_total", &ok),
        calls(create),
        "{text}"
    );
    let wait = "containerd.services.tasks.v1.Tasks/Wait";
    assert!(calls(wait) >= Some(1.0) && timed(wait).is_none(), "{text}");
    assert!(
        calls("containerd.services.version.v1.Version/Version") >= Some(1.0),
        "{text}"
    );
    // Shims of containerd 2.x serve version 3 of their API.
    let of_shim = |method: &str| {
        ["v2", "v3"]
            .map(|version| format!("containerd.task.{version}.Task/{method}"))
            .into_iter()
            .find(|method| calls(method).is_some())
            .unwrap_or_else(|| panic!("no {method} of a shim was counted: {text}"))
    };
    let exec = of_shim("Exec");
    assert!(
        calls(&exec) == Some(1.0) && timed(&exec) == Some(1.0),
        "{text}"
    );
    assert_eq!(timed(&of_shim("Wait")), None, "{text}");
}

fn assert_calls_of_nomad_and_the_runtime_are_counted(text: &str) {
    let wait = [(
        "method",
        "hashicorp.nomad.plugins.drivers.proto.Driver/WaitTask",
    )];
    assert_eq!(
        value(text, "switchyard_rpc_requests_total", &wait),
        Some(1.0),
        "{text}"
    );
    assert_eq!(
        value(text, "switchyard_rpc_duration_seconds_count", &wait),
        None,
        "{text}"
    );
    // The streams of the agent and of its launcher are open.
    assert_eq!(
        value(text, "switchyard_rpc_in_flight", &[("protocol", "nomad")]),
        Some(0.0),
        "{text}"
    );
    for name in [
        "switchyard_runtime_workers",
        "switchyard_runtime_alive_tasks",
    ] {
        assert!(value(text, name, &[]) >= Some(1.0), "{name}: {text}");
    }
    assert!(
        value(text, "switchyard_runtime_busy_seconds_total", &[]) > Some(0.0),
        "{text}"
    );
}

#[test]
fn restarts_and_reconnections_are_counted() {
    let node = TestNode::start();
    let restarts = |part: &str| {
        value(
            &scrape(&node),
            "switchyard_managed_restarts_total",
            &[("part", part), ("cause", "failure")],
        )
    };
    let reconnects = || {
        value(
            &scrape(&node),
            "switchyard_containerd_reconnects_total",
            &[],
        )
    };
    assert_eq!(
        (restarts("containerd"), restarts("logkeeper")),
        (Some(0.0), Some(0.0))
    );
    assert_eq!(reconnects(), Some(0.0));
    kill(node.containerd_pid(), Signal::SIGKILL).expect("it runs");
    assert!(
        eventually(LIMIT, || restarts("containerd") == Some(1.0)),
        "{}",
        scrape(&node)
    );
    assert!(
        eventually(LIMIT, || reconnects() >= Some(1.0)),
        "{}",
        scrape(&node)
    );
    node.kill_managed("logkeeper");
    assert!(
        eventually(LIMIT, || restarts("logkeeper") == Some(1.0)),
        "{}",
        scrape(&node)
    );
    assert_eq!(restarts("containerd"), Some(1.0));
    node.daemon().wait_ready();
    node.daemon().restart();
    assert_eq!(
        (restarts("containerd"), restarts("logkeeper")),
        (Some(0.0), Some(0.0)),
        "both were adopted"
    );
}

#[test]
fn recovered_adopted_and_cleaned_objects_are_counted() {
    let node = TestNode::start();
    let objects = |kind: &str, result: &str| {
        let labels = [("kind", kind), ("result", result)];
        value(&scrape(&node), "switchyard_recovery_objects_total", &labels)
    };
    let pod = node.pod("taken-over");
    let running = pod.start(&node.container("running", &["sleep", "1000"]));
    let ended = pod.start(&node.container("ended", &["true"]));
    assert_eq!(node.cri().wait_exit(&ended).exit_code, 0);
    assert_eq!(objects("sandbox", "adopted"), None);

    node.daemon().kill_at(&[(CrashPoint::SandboxAttached, 1)]);
    node.cri()
        .run_pod(&node.pod_config("cut-off"))
        .expect_err("nobody answers");
    node.daemon().wait_killed();
    node.daemon().restart();
    assert_eq!(
        (
            objects("sandbox", "adopted"),
            objects("sandbox", "recovered")
        ),
        (Some(1.0), None)
    );
    assert_eq!(
        (objects("task", "adopted"), objects("task", "recovered")),
        (Some(1.0), Some(1.0))
    );
    assert_eq!(node.cri().sh(&running, "echo still"), "still");
    assert!(
        eventually(LIMIT, || objects("sandbox", "cleaned") == Some(1.0)),
        "{}",
        scrape(&node)
    );
    let queued = || value(&scrape(&node), "switchyard_cleanup_queue", &[]);
    assert!(
        eventually(LIMIT, || queued() == Some(0.0)),
        "{}",
        scrape(&node)
    );
}
