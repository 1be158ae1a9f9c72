//! What Nomad agents run on: the plugins and the real daemon, with real containers.

mod bad_input;
mod crashes;
pub(crate) mod devices;
mod exec;
mod go_host;
mod images;
mod kills;
mod launchers;
mod lives;
mod networks;
mod numbers;
mod resources;
mod starts;

use switchyard_tests::node::Node;
use switchyard_tests::nomad::{Agent, Setup};

/// A task that runs `sh -c script` from busybox.
#[track_caller]
fn shell(node: &Node, agent: &Agent, script: &str) -> Setup {
    let config = serde_json::json!({
        "image": node.image(), "command": "sh", "args": ["-c", script], "network_mode": "host"
    });
    Setup::new(node.root(), agent, "task", &config)
}
