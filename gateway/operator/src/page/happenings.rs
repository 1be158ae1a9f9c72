//! Events, operations in flight, and the health of parts, as rows.

use jiff::Timestamp;
use switchyard_operator_api::text::age;
use switchyard_operator_api::{EventView, ExitView, OperationView, PartView, PullView};

use super::text;
use super::work::Tone;

/// An event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventRow {
    pub(super) at: String,
    pub(super) age: String,
    pub(super) owner: String,
    pub(super) event: String,
    pub(super) tone: Tone,
    /// The page of its object; empty if it is about none.
    pub(super) href: String,
    pub(super) name: String,
    pub(super) detail: String,
}

/// An operation in flight.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OperationRow {
    pub(super) operation: String,
    pub(super) owner: String,
    pub(super) subject: String,
    pub(super) caller: String,
    pub(super) began_at: String,
    pub(super) since: String,
    pub(super) steps: String,
}

/// A part of the daemon.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PartRow {
    pub(super) name: String,
    pub(super) state: &'static str,
    pub(super) tone: Tone,
    pub(super) detail: String,
}

// === impl EventRow ===

impl EventRow {
    pub(super) fn of(event: &EventView, now: Timestamp) -> Self {
        let tone = match event.event.as_str() {
            "refused" | "conflict" | "sandbox_failed" | "operation_failed" | "task_rejected" => {
                Tone::Bad
            }
            "task_waits" => Tone::Busy,
            "task_exited" if event.exit.as_deref().is_none_or(is_failure) => Tone::Bad,
            "task_started" | "sandbox_ready" => Tone::Good,
            _ => Tone::Quiet,
        };
        let href = match (&event.task, &event.sandbox) {
            (Some(task), _) => format!("/tasks/{task}"),
            (None, Some(sandbox)) => format!("/sandboxes/{sandbox}"),
            (None, None) => String::new(),
        };
        Self {
            at: event.at.clone(),
            age: age(&event.at, now),
            owner: event.owner.clone(),
            event: text::words(&event.event),
            tone,
            href,
            name: text::name(&event.name),
            detail: text::sentence(&event.detail),
        }
    }
}

/// Returns whether a task has failed: one that was asked to end has not.
fn is_failure(exit: &ExitView) -> bool {
    exit.cause != "stopped" && (exit.cause != "exited" || exit.code != 0)
}

// === impl OperationRow ===

impl OperationRow {
    pub(super) fn of(operation: &OperationView) -> Self {
        let mut steps: Vec<_> = operation
            .steps
            .iter()
            .map(|step| {
                format!(
                    "{} ({})",
                    text::words(&step.step),
                    text::seconds(step.seconds)
                )
            })
            .collect();
        steps.extend(operation.pull.as_ref().map(PullView::summary));
        Self {
            operation: text::words(&operation.operation),
            owner: operation.owner.clone(),
            subject: text::name(&operation.subject),
            caller: text::name(&operation.caller),
            began_at: operation.began_at.clone(),
            since: text::seconds(operation.seconds),
            steps: steps.join(", "),
        }
    }
}

// === impl PartRow ===

impl PartRow {
    pub(super) fn of(part: &PartView) -> Self {
        let (state, tone) = match (part.up, part.needed) {
            (true, _) => ("ok", Tone::Good),
            (false, true) => ("failed", Tone::Bad),
            (false, false) => ("failed, the node stays ready", Tone::Busy),
        };
        Self {
            name: text::name(&part.name),
            state,
            tone,
            detail: text::sentence(&part.detail),
        }
    }
}
