//! Looks at a node as operators do: alerts, and the commands of the command line.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::incident::{Incident, Sign};
use super::node::DrillNode;
use super::row::{
    DoctorFinding, Row, alerts_since, doctor_line, findings, line_about, reported_line, shortened,
    status_line, waits,
};
use crate::host::eventually;
use crate::prometheus::shipped;

/// Time for an incident to show.
const SIGN_LIMIT: Duration = Duration::from_secs(180);
/// Time for which the node is watched then: more than the longest window of the shipped rules, fifteen minutes, which
/// are half a minute here.
const WATCH: Duration = Duration::from_secs(40);
/// Time for the answer of a command.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// The status with which the command line ends if it does not know a command.
const USAGE: i32 = 2;

/// Words of the lines of a history that name a cause.
const CAUSES: [&str; 7] = [
    "task_exited",
    "sandbox_failed",
    "clock_jumped",
    "runtime_interrupted",
    "runtime_unavailable",
    "_ended",
    "_hangs",
];

/// The alerts and findings before an incident.
#[derive(Debug)]
pub(super) struct Baseline {
    alerts: BTreeSet<String>,
    findings: Vec<DoctorFinding>,
}

// === impl Baseline ===

impl Baseline {
    /// Looks at a node.
    pub(super) fn of(node: &DrillNode) -> Self {
        Self {
            alerts: node.prometheus().fired(),
            findings: ask_doctor(node),
        }
    }

    /// Waits until an incident shows, watches the node, and fills the cells of the incident's row.
    pub(super) fn row(&self, node: &DrillNode, incident: &Incident) -> Row {
        let is_seen = wait_for(node, incident.sign);
        let made = if is_seen {
            thread::sleep(WATCH);
            "here".to_owned()
        } else {
            format!(
                "here, but {:?} was not seen within {SIGN_LIMIT:?}",
                incident.sign
            )
        };
        let rules = fs::read_to_string(shipped().join("alerts.yaml")).expect("the rules are there");
        Row {
            made,
            is_seen,
            alerts: alerts_since(&self.alerts, &node.prometheus().fired(), &waits(&rules)),
            status: ask_status(node),
            doctor: doctor_line(&self.findings, &ask_doctor(node)),
            history: ask_history(node, &incident.object),
            orchestrator: reported_line(&node.report().lines()),
            ..Row::default()
        }
    }
}

/// Waits until the sign of an incident is seen; `false` if it is not.
pub(super) fn wait_for(node: &DrillNode, sign: Sign) -> bool {
    match sign {
        Sign::Alert(alert) => eventually(SIGN_LIMIT, || {
            // Not each poll is a query.
            thread::sleep(Duration::from_millis(200));
            !node.prometheus().firing(alert).is_empty()
        }),
        Sign::Reported(count) => eventually(SIGN_LIMIT, || node.report().lines().len() >= count),
        Sign::Lasts(time) => {
            thread::sleep(time);
            true
        }
    }
}

/// The output of a command, or nothing if it does not end in time.
fn output(mut command: Command) -> Option<Output> {
    let (sender, receiver) = mpsc::channel();
    // It ends with the node at the latest.
    thread::spawn(move || sender.send(command.output()));
    let output = receiver.recv_timeout(ANSWER_LIMIT).ok()?;
    Some(output.expect("the binary exists"))
}

/// The text of a command: its output, or else its error.
fn text(output: &Output) -> String {
    let printed = if output.stdout.is_empty() {
        &output.stderr
    } else {
        &output.stdout
    };
    String::from_utf8_lossy(printed).into_owned()
}

fn no_answer() -> String {
    format!("no answer within {} s", ANSWER_LIMIT.as_secs())
}

fn ask_status(node: &DrillNode) -> String {
    let answer = output(node.test_node().command(&["status"]));
    answer.map_or_else(no_answer, |answer| status_line(&text(&answer)))
}

/// The findings of the doctor; one that says so if it does not answer.
fn ask_doctor(node: &DrillNode) -> Vec<DoctorFinding> {
    let mut command = node.test_node().command(&["doctor", "--output", "json"]);
    command.arg("--config").arg(node.root().config());
    let report = output(command).map(|answer| serde_json::from_slice::<Value>(&answer.stdout));
    match report {
        Some(Ok(report)) => findings(&report),
        Some(Err(error)) => vec![finding(error.to_string())],
        None => vec![finding(no_answer())],
    }
}

/// A fault of the doctor itself.
fn finding(found: String) -> DoctorFinding {
    DoctorFinding {
        code: "doctor".to_owned(),
        found,
    }
}

fn ask_history(node: &DrillNode, object: &str) -> String {
    let Some(history) = output(node.test_node().command(&["history", object])) else {
        return no_answer();
    };
    if history.status.code() != Some(USAGE) {
        let text = text(&history);
        let names_cause = |line: &&str| CAUSES.iter().any(|word| line.contains(word));
        let last = text.lines().rfind(names_cause);
        return shortened(last.or(text.lines().next_back()).unwrap_or_default(), 300);
    }
    let events = output(node.test_node().command(&["events"]));
    events.map_or_else(no_answer, |answer| line_about(&text(&answer), object))
}
