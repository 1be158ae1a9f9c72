//! The lines of the log and the events about operations that failed: one for each, with its cause.
//!
//! What is repeated on the same object and fails in the same way, as a removal is while containerd is away, is one
//! trouble: it has a line when it begins, one each hour while it lasts, and one at its end.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::operation::{EndedOperation, OperationKind, Outcome, Subject};
use switchyard_core::{ErrorKind, STATUS_TEXT_MAX};

/// Time after which a failure that is repeated is logged again.
const REMINDER: Duration = Duration::from_secs(3600);

/// The most objects whose failures are remembered; beyond them all are forgotten, and logged again.
const OBJECTS_MAX: usize = 1024;

/// The lines about failed operations.
#[derive(Debug, Default)]
pub(super) struct FailureLog(Mutex<Failures>);

/// The operations that failed the last time, by what they are about.
#[derive(Debug, Default)]
struct Failures(HashMap<About, (ErrorKind, Instant)>);

/// An operation on certain objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct About {
    kind: OperationKind,
    owner: Option<Owner>,
    sandbox: Option<SandboxId>,
    task: Option<TaskId>,
    /// The name of what is to be created: each attempt makes an id of its own.
    name: Option<String>,
    argument: Option<String>,
}

/// The line about the end of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Note {
    Nothing,
    /// It failed for a fault of the node.
    NodeFailed,
    /// It failed for something in the request.
    RequestFailed,
    /// It failed as the last time.
    FailedAgain,
    /// It succeeded after it had failed.
    Recovered,
}

impl FailureLog {
    /// Logs the end of an operation if it failed, or succeeded after it had failed. The commands of probes are in metrics
    /// alone, and operations that log their failures themselves are left out. Returns whether it failed and that is no
    /// repetition.
    pub(super) fn ended(&self, operation: &EndedOperation<'_>) -> bool {
        if logs_itself(operation.kind) {
            return false;
        }
        let failure = match operation.outcome {
            Outcome::Succeeded => None,
            Outcome::Failed(error) => Some(error),
            // It did not fail: it panicked, which is logged, or its client went away.
            Outcome::Dropped => return false,
        };
        let kind = failure.map(|error| error.kind());
        let note = self.0.lock().note(operation, kind, Instant::now());
        let seconds = operation.took.as_secs_f64();
        let error_kind = kind.map(ErrorKind::as_str);
        let error = operation.error_text(STATUS_TEXT_MAX);
        let error = error.as_deref();
        match note {
            Note::Nothing => {}
            Note::NodeFailed => {
                tracing::warn!(error, error_kind, seconds, "an operation failed");
            }
            Note::RequestFailed => {
                tracing::info!(error, error_kind, seconds, "an operation failed");
            }
            Note::FailedAgain => {
                tracing::debug!(error, error_kind, seconds, "an operation failed again");
            }
            Note::Recovered => tracing::info!(seconds, "an operation that had failed succeeded"),
        }
        matches!(note, Note::NodeFailed | Note::RequestFailed)
    }
}

impl Failures {
    /// Notes the end of an operation, with the kind of its error.
    fn note(
        &mut self,
        operation: &EndedOperation<'_>,
        failure: Option<ErrorKind>,
        now: Instant,
    ) -> Note {
        if failure.is_none() && self.0.is_empty() {
            return Note::Nothing;
        }
        let about = About::of(operation);
        let Some(kind) = failure else {
            return match self.0.remove(&about) {
                Some(_) => Note::Recovered,
                None => Note::Nothing,
            };
        };
        let known = self.0.get(&about);
        if known.is_some_and(|(last, logged)| {
            *last == kind && now.saturating_duration_since(*logged) < REMINDER
        }) {
            return Note::FailedAgain;
        }
        if self.0.len() >= OBJECTS_MAX {
            self.0.clear();
        }
        self.0.insert(about, (kind, now));
        if kind.is_of_node() {
            Note::NodeFailed
        } else {
            Note::RequestFailed
        }
    }
}

impl About {
    fn of(operation: &EndedOperation<'_>) -> Self {
        let Subject {
            sandbox,
            task,
            sandbox_meta,
            task_meta,
            argument,
        } = operation.subject;
        let (sandbox, task, created) = if operation.kind == OperationKind::CreateSandbox {
            (None, None, sandbox_meta.as_deref())
        } else if operation.kind == OperationKind::CreateTask {
            (*sandbox, None, task_meta.as_deref())
        } else {
            (*sandbox, *task, None)
        };
        Self {
            kind: operation.kind,
            owner: operation.owner,
            sandbox,
            task,
            name: created.map(|meta| meta.name.clone()),
            argument: argument.clone(),
        }
    }
}

/// Returns whether failures of such operations are logged where they are made, or are probes' of which there are many.
const fn logs_itself(kind: OperationKind) -> bool {
    matches!(
        kind,
        OperationKind::ExecSync
            | OperationKind::ReloadConfig
            | OperationKind::JoinSwarm
            | OperationKind::LeaveSwarm
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::SystemTime;

    use switchyard_core::Error;
    use switchyard_core::operation::OperationId;
    use switchyard_core::spec::Meta;

    use super::*;

    fn note(
        failures: &mut Failures,
        subject: &Subject,
        failure: Option<ErrorKind>,
        now: Instant,
    ) -> Note {
        note_of(OperationKind::StopSandbox, failures, subject, failure, now)
    }

    fn note_of(
        kind: OperationKind,
        failures: &mut Failures,
        subject: &Subject,
        failure: Option<ErrorKind>,
        now: Instant,
    ) -> Note {
        let operation = EndedOperation {
            id: OperationId::default(),
            trace: None,
            kind,
            owner: None,
            subject,
            caller: None,
            began_at: SystemTime::UNIX_EPOCH,
            took: Duration::ZERO,
            outcome: Outcome::Succeeded,
        };
        failures.note(&operation, failure, now)
    }

    fn sandbox(byte: u8) -> Subject {
        Subject {
            sandbox: Some(SandboxId::from_bytes([byte; 32])),
            ..Subject::default()
        }
    }

    #[test]
    fn failure_is_logged_once_for_each_outage_and_object() {
        let mut failures = Failures::default();
        let begin = Instant::now();
        let away = Some(ErrorKind::Unavailable);
        let late = Some(ErrorKind::DeadlineExceeded);
        let minute = |minutes: u64| begin + Duration::from_secs(60 * minutes);
        let steps = [
            (1, None, 0, Note::Nothing),
            (1, away, 1, Note::NodeFailed),
            (2, away, 1, Note::NodeFailed),
            (1, away, 2, Note::FailedAgain),
            // Another fault is another line, and so is the same an hour later.
            (1, late, 3, Note::NodeFailed),
            (1, late, 62, Note::FailedAgain),
            (1, late, 63, Note::NodeFailed),
            (1, None, 64, Note::Recovered),
            (1, None, 65, Note::Nothing),
            (1, away, 66, Note::NodeFailed),
            (3, Some(ErrorKind::NotFound), 66, Note::RequestFailed),
        ];
        for (step, (object, failure, minutes, expected)) in steps.into_iter().enumerate() {
            let noted = note(&mut failures, &sandbox(object), failure, minute(minutes));
            assert_eq!(noted, expected, "step {step}");
        }
    }

    #[test]
    fn attempts_to_create_the_same_pod_or_container_are_one_trouble() {
        let mut failures = Failures::default();
        let now = Instant::now();
        let away = Some(ErrorKind::Unavailable);
        let meta = |name: &str| {
            Arc::new(Meta {
                owner: Owner::Kubernetes,
                name: name.to_owned(),
                labels: BTreeMap::new(),
                created_at: SystemTime::UNIX_EPOCH,
                record: Vec::new(),
            })
        };
        let within = SandboxId::from_bytes([9; 32]);
        for (id, name, failure, expected) in [
            (1, "web", away, Note::NodeFailed),
            (2, "web", away, Note::FailedAgain),
            (3, "db", away, Note::NodeFailed),
            (4, "web", None, Note::Recovered),
        ] {
            let pod = Subject::new_sandbox(SandboxId::from_bytes([id; 32]), meta(name));
            let kind = OperationKind::CreateSandbox;
            let noted = note_of(kind, &mut failures, &pod, failure, now);
            assert_eq!(noted, expected, "pod {id}");
            let container =
                Subject::new_task(TaskId::from_bytes([id; 32]), meta(name), within, None);
            let kind = OperationKind::CreateTask;
            let noted = note_of(kind, &mut failures, &container, failure, now);
            assert_eq!(noted, expected, "container {id}");
        }
    }

    #[test]
    fn failures_that_are_remembered_are_bounded() {
        let mut failures = Failures::default();
        let now = Instant::now();
        for number in 0..3 * OBJECTS_MAX {
            let subject = Subject::argument(&number.to_string());
            note(&mut failures, &subject, Some(ErrorKind::Internal), now);
        }
        assert!(failures.0.len() <= OBJECTS_MAX);
    }

    #[test]
    fn faults_of_the_node_are_distinguished_from_those_of_a_request() {
        let of_node = |error: Error| error.kind().is_of_node();
        assert!(of_node(Error::unavailable("away")) && of_node(Error::internal("bug")));
        assert!(of_node(Error::deadline("late")) && of_node(Error::exhausted("full")));
        assert!(!of_node(Error::not_found("no task")));
    }
}
