//! Nomad's agent.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use switchyard_proto::nomad::drivers::proto::fingerprint_response::HealthState;

use crate::drill::incident::{Incident, Sign};
use crate::drill::load::Load;
use crate::drill::node::DrillNode;
use crate::nomad::Agent;

/// Time for a plugin to end, or for an answer of it.
const SOON: Duration = Duration::from_secs(20);

/// The socket of the daemon was deleted: the plugin of an agent that starts again cannot reach it.
///
/// # Panics
/// When the agent does not start.
pub(crate) fn socket_is_gone(node: &DrillNode) -> Incident {
    let agent = Agent::start(node.root(), &json!({}));
    // The session is open once the daemon answers.
    agent
        .driver()
        .stop("none/such/12345678", Duration::ZERO, "")
        .expect("what is not there is stopped");
    node.wait_scraped("switchyard_nomad_launchers > 0");
    let socket = node.root().run().join("nomad.sock");
    fs::remove_file(&socket).expect("the daemon has made it");
    let pid = i32::try_from(agent.plugin().pid()).expect("Linux keeps process ids below 2^22");
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("the plugin runs");
    let has_ended = agent.plugin().exit(SOON).is_some();
    assert!(has_ended, "the plugin ends with SIGTERM");
    let driver = agent.dispense();
    let report = node.report().clone();
    let fingerprints = Load::start(Duration::from_secs(5), move || {
        let Ok(mut stream) = driver.fingerprint() else {
            return;
        };
        if let Some(Ok(first)) = stream.next(SOON)
            && first.health() != HealthState::Healthy
        {
            let health = first.health().as_str_name().to_lowercase();
            let text = format!(
                "driver switchyard is {health}: {}",
                first.health_description
            );
            report.say("client.driver_mgr", &text);
        }
    });
    Incident::new("nightly", Sign::Reported(1))
        .with(fingerprints)
        .with(agent)
}
