//! The Nomad frontend: the plugins and the real daemon, with real containers.

mod bad_input;
mod crashes;
pub(crate) mod devices;
mod exec;
mod go_host;
mod images;
mod kills;
mod launchers;
mod network_defaults;
mod networks;
mod options;
mod pins;
mod recoveries;
mod repeated_starts;
mod resources;
mod stats_and_events;
mod task_lifecycle;

use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};

/// A task that runs `sh -c script` from busybox.
#[track_caller]
fn shell(node: &TestNode, agent: &Agent, script: &str) -> TaskSetup {
    let config = serde_json::json!({
        "image": node.image(), "command": "sh", "args": ["-c", script], "network_mode": "host"
    });
    TaskSetup::new(node.root(), agent, "task", &config)
}
