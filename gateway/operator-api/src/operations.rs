//! Operations in flight, as `/v1/operations` shows them.

use serde::{Deserialize, Serialize};
use switchyard_core::names::Names;
use switchyard_core::operation::OperationInFlight;
use switchyard_core::spec::Meta;

use crate::text::rfc3339;

/// An operation in flight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationView {
    /// Its number in this run of the daemon.
    pub number: u64,
    /// Name of the operation, for example `create_task`.
    pub operation: String,
    /// Owner of the objects that it changes; empty for the daemon's own operations.
    pub owner: String,
    /// The id of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The id of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The name of the object for people, and what else identifies the change.
    pub subject: String,
    /// Its caller: the listener, and the process if it is known.
    pub caller: String,
    /// Its start, as RFC 3339.
    pub began_at: String,
    /// For how long it has run, in seconds.
    pub seconds: f64,
    /// Its current work and waits, in the order of their beginning.
    pub steps: Vec<StepView>,
}

/// A step of an operation in flight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepView {
    /// Description of the work or wait.
    pub step: String,
    /// For how long, in seconds.
    pub seconds: f64,
}

impl OperationView {
    /// The view of an operation; `name` gives what people call the object that it changes.
    #[must_use]
    pub fn of(operation: OperationInFlight, name: impl Fn(&Meta, Option<&Meta>) -> Names) -> Self {
        let OperationInFlight {
            number,
            kind,
            owner,
            subject,
            caller,
            began_at,
            age,
            steps,
        } = operation;
        let sandbox = subject.sandbox_meta.as_deref();
        let name = sandbox.map(|sandbox| name(sandbox, subject.task_meta.as_deref()).to_string());
        let words: Vec<_> = [name, subject.argument].into_iter().flatten().collect();
        let caller = caller.map(|caller| match caller.pid {
            Some(pid) => format!("{} ({pid})", caller.listener),
            None => caller.listener.to_owned(),
        });
        Self {
            number,
            operation: kind.as_str().to_owned(),
            owner: owner.map(|owner| owner.to_string()).unwrap_or_default(),
            sandbox: subject.sandbox.map(|id| id.to_string()),
            task: subject.task.map(|id| id.to_string()),
            subject: words.join(" "),
            caller: caller.unwrap_or_default(),
            began_at: rfc3339(began_at),
            seconds: age.as_secs_f64(),
            steps: steps
                .into_iter()
                .map(|(step, time)| StepView {
                    step: step.to_owned(),
                    seconds: time.as_secs_f64(),
                })
                .collect(),
        }
    }
}
