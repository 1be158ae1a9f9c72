//! One line of the audit log.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use switchyard_core::operation::{ERROR_TEXT_MAX, EndedOperation, Outcome};
use switchyard_operator_api::text::rfc3339;
use switchyard_operator_api::{EventView, ExitView};

use crate::owners::Owners;

/// The record of one operation, or of the exit of a task. Unknown fields are left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditLine {
    /// Start of the operation, or time of the exit, as RFC 3339.
    pub at: String,
    /// Name of the operation, for example `create_task`, or `task_exited`.
    pub operation: String,
    /// The id of the operation, which is also in the log and in traces; of an exit that of the operation that ended the
    /// task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation_id: Option<String>,
    /// The trace that the operation belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Owner of the objects that it changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The id of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The id of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The names under which the orchestrator knows them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, String>,
    /// Further identification: an image, the program of a command (never its arguments), a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argument: Option<String>,
    /// The listener that received the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// The user of the process that sent the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The process that sent the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The exit code of a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// `ok`, the kind of the error, or `dropped`; of an exit its cause.
    pub result: String,
    /// The error; of an exit what there is to say about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Duration of the operation in seconds, or for how long the task ran; 0 if that is not known.
    pub seconds: f64,
}

impl AuditLine {
    /// The line of an operation.
    #[must_use]
    pub fn of(operation: &EndedOperation<'_>, owners: &Owners) -> Self {
        let EndedOperation {
            id,
            trace,
            kind,
            owner,
            subject,
            caller,
            began_at,
            took,
            outcome,
        } = operation;
        let names = subject.sandbox_meta.as_deref().map(|sandbox| {
            owners
                .names_in_record(sandbox, subject.task_meta.as_deref())
                .to_map()
        });
        let result = match outcome {
            Outcome::Succeeded => "ok",
            Outcome::Failed(error) => error.kind().as_str(),
            Outcome::Dropped => "dropped",
        };
        Self {
            at: rfc3339(*began_at),
            operation: kind.as_str().to_owned(),
            operation_id: Some(id.to_string()),
            trace: trace.map(|trace| trace.to_string()),
            owner: owner.map(|owner| owner.to_string()),
            sandbox: subject.sandbox.map(|id| id.to_string()),
            task: subject.task.map(|id| id.to_string()),
            names: names.unwrap_or_default(),
            argument: subject.argument.clone(),
            listener: caller.map(|caller| caller.listener.to_owned()),
            uid: caller.and_then(|caller| caller.uid),
            pid: caller.and_then(|caller| caller.pid),
            code: None,
            result: result.to_owned(),
            error: operation.error_text(ERROR_TEXT_MAX),
            seconds: took.as_secs_f64(),
        }
    }

    /// The line of an exit, which is that of the event. Who requested it is who asked for the end of the task.
    #[must_use]
    pub fn of_exit(event: &EventView, exit: &ExitView) -> Self {
        let ran = Duration::from_millis(exit.ran_ms.unwrap_or_default());
        Self {
            at: event.at.clone(),
            operation: event.event.clone(),
            operation_id: exit.operation_id.clone(),
            trace: None,
            owner: Some(event.owner.clone()),
            sandbox: event.sandbox.clone(),
            task: event.task.clone(),
            names: event.names.clone(),
            argument: None,
            listener: exit.listener.clone(),
            uid: exit.uid,
            pid: exit.pid,
            code: Some(exit.code),
            result: exit.cause.clone(),
            error: Some(bounded(event.detail.clone())),
            seconds: ran.as_secs_f64(),
        }
    }

    /// Its objects and ids, by the names that fields of the log have.
    pub(super) fn log_fields(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = [
            ("operation", Some(&self.operation)),
            ("operation_id", self.operation_id.as_ref()),
            ("owner", self.owner.as_ref()),
            ("sandbox", self.sandbox.as_ref()),
            ("task", self.task.as_ref()),
            ("trace", self.trace.as_ref()),
        ];
        let own = own
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?.as_str())));
        let names = self
            .names
            .iter()
            .map(|(label, value)| (log_name(label), value.as_str()));
        own.chain(names)
    }

    /// The line as JSON, without the newline.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("the fields are texts and finite numbers")
    }
}

/// The name that a field of the log has for a label of an orchestrator's.
pub(crate) fn log_name(label: &str) -> &str {
    match label {
        // In lines of the log it is the user of a process.
        "uid" => "pod_uid",
        label => label,
    }
}

fn bounded(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(ERROR_TEXT_MAX));
    text
}
