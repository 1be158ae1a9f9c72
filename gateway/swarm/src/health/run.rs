//! Runs single checks: each is a command in a task, with the environment, directory and user of the task.

use std::time::Duration;

use switchyard_core::gateway::Scope;
use switchyard_core::spec::ExecSpec;
use switchyard_core::{Error, ErrorKind, Reason};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::CheckResult;
use super::resolve::ResolvedCheck;

/// Maximum number of checks that run on the node at a time.
const AT_A_TIME: usize = 16;

/// Longest time for which a check occupies a place: hanging commands must not delay other tasks' checks.
const PLACE_LIMIT: Duration = Duration::from_secs(5);

/// The part of each output stream that is kept, as with docker.
const OUTPUT_BYTES: usize = 4 << 10;

/// The part of it that is logged.
const SHOWN_BYTES: usize = 256;

/// Limit for output that children keep open after the command has exited.
const DRAIN: Duration = Duration::from_secs(2);

/// Runs the checks of all tasks.
#[derive(Debug)]
pub(crate) struct CheckRunner {
    scope: Scope,
    places: Semaphore,
}

/// The place of a check among those that run.
#[derive(Debug)]
pub(crate) struct CheckPlace<'a> {
    _permit: SemaphorePermit<'a>,
}

/// The outcome of a check.
#[derive(Debug, Clone)]
pub(crate) enum Finding {
    Passed,
    /// The reason for the failure.
    Failed(String),
    /// The reason why there is no result.
    Unknown(Error),
}

// === impl CheckRunner ===

impl CheckRunner {
    pub(crate) fn new(scope: Scope) -> Self {
        Self {
            scope,
            places: Semaphore::new(AT_A_TIME),
        }
    }

    /// Waits until one more check may run; places are given in the order of the calls. Cancel-safe.
    pub(crate) async fn place(&self) -> CheckPlace<'_> {
        CheckPlace {
            _permit: self.places.acquire().await.expect("it is never closed"),
        }
    }

    /// Runs a check in the task with this id of the core. Cancel-safe: the command is killed.
    pub(crate) async fn run(
        &self,
        task: &str,
        check: &ResolvedCheck,
        place: CheckPlace<'_>,
    ) -> Finding {
        let ResolvedCheck {
            command,
            timeout,
            schedule: _,
        } = check;
        let spec = ExecSpec {
            command: command.clone(),
            tty: false,
            size: None,
            stdin: false,
            env: Vec::new(),
            cwd: None,
            drain: DRAIN,
        };
        let mut ended = Box::pin(self.scope.commands().exec_tail(
            task,
            &spec,
            Some(*timeout),
            OUTPUT_BYTES,
        ));
        let output = tokio::select! {
            biased;
            output = &mut ended => output,
            () = tokio::time::sleep(PLACE_LIMIT) => {
                drop(place);
                ended.await
            }
        };
        match output {
            Ok(output) if output.code == 0 => Finding::Passed,
            Ok(output) => {
                let [stdout, stderr] =
                    [&output.stdout, &output.stderr].map(|stream| last_part(stream));
                Finding::Failed(format!("exit code {}: \"{stdout}{stderr}\"", output.code))
            }
            Err(error) => of_error(error, *timeout),
        }
    }
}

/// Makes a finding of a command that did not exit by itself. It counts as a failure of the task only if the
/// command was at fault.
fn of_error(error: Error, timeout: Duration) -> Finding {
    if error.reason() == Some(Reason::CommandTimeout) {
        return Finding::Failed(format!("Health check exceeded timeout ({timeout:?})"));
    }
    match error.kind() {
        // The image has no such program.
        ErrorKind::InvalidArgument => Finding::Failed(error.report()),
        ErrorKind::NotFound
        | ErrorKind::AlreadyExists
        | ErrorKind::FailedPrecondition
        | ErrorKind::Unavailable
        | ErrorKind::ResourceExhausted
        | ErrorKind::Unauthenticated
        | ErrorKind::DeadlineExceeded
        | ErrorKind::Cancelled
        | ErrorKind::Unimplemented
        | ErrorKind::Internal => Finding::Unknown(error),
    }
}

/// The end of an output stream for the log.
fn last_part(output: &[u8]) -> String {
    let shown = &output[output.len().saturating_sub(SHOWN_BYTES)..];
    shown.escape_ascii().to_string()
}

// === impl Finding ===

impl Finding {
    /// Returns the result that counts for the health of the task.
    pub(crate) const fn result(&self) -> CheckResult {
        match self {
            Self::Passed => CheckResult::Passed,
            Self::Failed(_) => CheckResult::Failed,
            Self::Unknown(_) => CheckResult::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_command_did_is_a_failure() {
        let limit = Duration::from_secs(3);
        let failed = |error: Error| match of_error(error, limit) {
            Finding::Failed(why) => Some(why),
            Finding::Passed | Finding::Unknown(_) => None,
        };
        let late = || Error::deadline("late");
        assert_eq!(
            failed(late().with_reason(Reason::CommandTimeout)).unwrap(),
            "Health check exceeded timeout (3s)"
        );
        assert!(failed(Error::invalid("command", "it is missing")).is_some());
        for other in [
            late(),
            Error::unavailable("containerd is away"),
            Error::cancelled("the connection broke"),
            Error::internal("transport"),
            Error::not_found("task"),
            Error::failed_precondition("it has exited"),
            Error::exhausted("too many commands"),
        ] {
            assert_eq!(failed(other.clone()), None, "{other:?}");
        }
    }

    #[test]
    fn output_is_shown_in_part_and_without_control_characters() {
        let shown = last_part(&[b"x".repeat(10_000), b"\x1b[2Jlast\n".to_vec()].concat());
        assert!(
            shown.ends_with("\\x1b[2Jlast\\n") && shown.len() < 300,
            "{shown}"
        );
    }
}
