//! Checks of the node as a worker of a Docker swarm.

use std::path::Path;
use std::time::SystemTime;

use jiff::Timestamp;
use switchyard_operator_api::SwarmView;

use super::codes::orchestrators::{
    CERTIFICATE_ENDS, CLOCK_BESIDE_CERTIFICATE, DOCKERD_BESIDE, NO_SESSION, NOT_JOINED, PROMOTED,
    SAME_NODE, WORKER_ENDED,
};
use super::facts::Facts;
use super::finding::Finding;
use super::nomad::DOCKER_SOCKET;

/// A certificate is renewed between half and four fifths of its time: with less of it left, that has failed. Of one that
/// lives long, it is no worry until a week before its end.
const LEFT_PARTS: i64 = 7;
const LEFT_MAX_SECONDS: i64 = 7 * 24 * 3600;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let Some(swarm) = facts.swarm.as_ref().filter(|_| facts.config.swarm.enabled) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    found.extend(membership(facts, swarm));
    if swarm.state == "member" {
        found.extend(swarm.is_promoted.then(|| {
            let text = format!("node {} was promoted to a manager", node_of(swarm));
            Finding::new(&PROMOTED, text).command("switchyard swarm status")
        }));
        found.extend(certificate(swarm, SystemTime::now()));
        if facts.view.connect(Path::new(DOCKER_SOCKET)).is_ok() {
            found.push(Finding::new(
                &DOCKERD_BESIDE,
                format!("dockerd listens on {DOCKER_SOCKET}"),
            ));
        }
    }
    found
}

/// Checks the membership as the daemon reports it.
fn membership(facts: &Facts, swarm: &SwarmView) -> Option<Finding> {
    let problems = swarm.problems.join("; ");
    let or = |otherwise: String| {
        if problems.is_empty() {
            otherwise
        } else {
            problems.clone()
        }
    };
    let status = "switchyard swarm status";
    match swarm.state.as_str() {
        "not_joined" => {
            let file = facts.config.swarm.join_token_file.as_ref()?;
            let text = or(format!(
                "the node is in no swarm, and swarm.join_token_file is {}",
                file.display()
            ));
            Some(Finding::new(&NOT_JOINED, text).command(status))
        }
        // While it is tried for the first time, there is no reason yet.
        "joining" if problems.is_empty() => None,
        "joining" => Some(Finding::new(&NOT_JOINED, problems).command(status)),
        "ended" => {
            let text = or("it is no working member".to_owned());
            Some(Finding::new(&WORKER_ENDED, text).command(status))
        }
        // Each of the two has a session in turn.
        "member" if swarm.is_duplicate => {
            let session = match &swarm.manager {
                Some(_) => "this machine has its session now",
                None => "the other machine has its session now",
            };
            let text = format!(
                "another machine is node {} too: {session}, and {} of this one have failed",
                node_of(swarm),
                swarm.session_failures
            );
            Some(Finding::new(&SAME_NODE, text).command(status))
        }
        "member" if swarm.manager.is_none() => {
            let since = swarm.session_since.clone().unwrap_or_default();
            Some(Finding::new(&NO_SESSION, or(format!("no session since {since}"))).command(status))
        }
        _ => None,
    }
}

fn node_of(swarm: &SwarmView) -> &str {
    swarm.node.as_deref().unwrap_or_default()
}

/// The certificate of a member at this time.
fn certificate(swarm: &SwarmView, now: SystemTime) -> Option<Finding> {
    let seconds = |text: &Option<String>| {
        let at: Timestamp = text.as_ref()?.parse().ok()?;
        Some(at.as_second())
    };
    let begins = seconds(&swarm.certificate_begins)?;
    let ends = seconds(&swarm.certificate_ends)?;
    let now_seconds = Timestamp::try_from(now).ok()?.as_second();
    let valid = format!(
        "the certificate is valid from {} until {}",
        swarm.certificate_begins.as_deref().unwrap_or_default(),
        swarm.certificate_ends.as_deref().unwrap_or_default()
    );
    if now_seconds < begins || now_seconds >= ends {
        let clock = switchyard_operator_api::text::rfc3339(now);
        return Some(Finding::new(
            &CLOCK_BESIDE_CERTIFICATE,
            format!("{valid}, and the clock shows {clock}"),
        ));
    }
    let left = LEFT_MAX_SECONDS.min(ends.saturating_sub(begins) / LEFT_PARTS);
    (ends - now_seconds < left).then(|| {
        let problems: String = swarm
            .problems
            .iter()
            .map(|problem| format!("; {problem}"))
            .collect();
        Finding::new(&CERTIFICATE_ENDS, format!("{valid}{problems}"))
            .command("switchyard swarm status")
    })
}
