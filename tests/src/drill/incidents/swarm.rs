//! Docker swarm.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::drill::incident::{Incident, Sign};
use crate::drill::load::Load;
use crate::drill::node::DrillNode;
use crate::host::eventually;
use crate::prereq;
use crate::swarm::AGREE_LIMIT;
use crate::swarm::agent::{TestAgent, state};
use crate::swarm::node::facts;

/// The node as `docker node ls` shows it: its state alone.
const STATE: [&str; 6] = [
    "node",
    "ls",
    "--filter",
    "role=worker",
    "--format",
    "{{.Status}}",
];

/// Another machine has a copy of the membership: both open sessions, and each ends that of the other.
///
/// # Panics
/// When the node is beside no swarm, or cannot join it.
pub(crate) fn has_a_clone(node: &DrillNode) -> Incident {
    let cluster = node.cluster().expect("it is beside a swarm");
    let (token, manager) = {
        let cluster = cluster.lock();
        (cluster.token("worker"), cluster.address(0))
    };
    let file = node.root().path().join("token");
    fs::write(&file, format!("{token}\n")).expect("the root can be written");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("it is ours");
    let file = file.display().to_string();
    node.test_node()
        .output(&["swarm", "join", "--token-file", &file, &manager]);
    let is_open = || {
        let (_, page) = node.test_node().daemon().get("/metrics");
        page.contains("\nswitchyard_swarm_session_open 1\n")
    };
    assert!(eventually(AGREE_LIMIT, is_open), "there is no session");
    let clone = state(&cluster.lock(), "standby");
    fs::create_dir_all(clone.parent().expect("it is in a directory")).expect("it can be written");
    let copied = Command::new(prereq::require("cp", "coreutils"))
        .arg("-a")
        .arg(node.root().state().join("swarm"))
        .arg(&clone)
        .status();
    assert!(
        copied.is_ok_and(|status| status.success()),
        "the membership cannot be copied"
    );
    let agent = TestAgent::start(&cluster.lock(), &clone, facts("worker-b"));
    let swarm = Arc::clone(cluster);
    let report = node.report().clone();
    let mut last = String::new();
    let looks = Load::start(Duration::from_secs(1), move || {
        let state = swarm.lock().try_docker(0, &STATE).unwrap_or_default();
        let state = state.trim();
        if state != last {
            report.say("docker node ls", &format!("the node is {state}"));
            last = state.to_owned();
        }
    });
    Incident::new("web-1", Sign::Lasts(Duration::from_secs(60)))
        .with(looks)
        .with(agent)
}
