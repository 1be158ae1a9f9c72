//! Reloads of the configuration of a running daemon: what takes effect, what is refused, what waits.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use switchyard_tests::node::TestNode;

mod containers;
mod devices;
mod images;
mod refusals;
mod signals;

/// Writes the configuration of the node with `extra`, and reloads it; what the command line reports.
#[track_caller]
fn reload(node: &TestNode, extra: &str) -> Value {
    node.root().write_config(extra);
    let text = node.output(&["config", "reload", "--output", "json"]);
    serde_json::from_str(&text).expect("it is JSON")
}

/// The keys in a list of changes.
fn keys(report: &Value, list: &str) -> Vec<String> {
    let changes = report[list]
        .as_array()
        .unwrap_or_else(|| panic!("there is no {list}: {report}"));
    changes
        .iter()
        .map(|change| change["key"].as_str().expect("it has a key").to_owned())
        .collect()
}

/// Reloads a configuration in which these keys differ from the former one, all of them reloadable.
#[track_caller]
fn apply(node: &TestNode, extra: &str, changed: &[&str]) {
    let report = reload(node, extra);
    assert_eq!(keys(&report, "applied"), changed, "{report:#}");
    assert_eq!(keys(&report, "pending"), [""; 0], "{report:#}");
}

fn hang_up(node: &TestNode) {
    kill(Pid::from_raw(node.daemon().pid()), Signal::SIGHUP).expect("it runs");
}

/// A value of the metrics without labels, or with exactly these.
#[track_caller]
fn metric(node: &TestNode, name: &str) -> f64 {
    let (_, text) = node.daemon().get("/metrics");
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value
        .unwrap_or_else(|| panic!("there is no {name} in {text}"))
        .parse()
        .expect("it is a number")
}
