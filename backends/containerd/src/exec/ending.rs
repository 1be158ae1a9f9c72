//! The end of an exec whose client is gone, and the places that it takes until then.

use std::time::Duration;

use switchyard_core::backend::ExecPlace;
use switchyard_core::spec::Signal;
use switchyard_core::{Error, ErrorKind, Result};
use tokio::time::timeout;

use super::process::Exec;
use crate::client::ignore_not_found;
use crate::client::retries::Retries;
use crate::task::StartPlace;

/// Limit for an abandoned process to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a process that is still being created is killed again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The places that an exec takes, as long as anything of it may be left.
#[derive(Debug, Default)]
pub(super) struct ExecPlaces {
    _held: Option<ExecPlace>,
    /// Its place for the start: kept if the start has failed, so that no more starts are requested of a hung shim.
    start: Option<StartPlace>,
}

/// Ends and deletes a process whose client is gone, however often that fails, unless its task has ended. Of the processes
/// of one task for which that has failed, one is tried at a time, so that those of a hung shim cause no more calls
/// the more of them there are.
pub(super) async fn end_abandoned(exec: &Exec) {
    let Err(mut error) = exec.abandon().await else {
        return;
    };
    while !has_ended_with_task(exec, &error) {
        let mut tries = exec.ending_turn.lock().await;
        // While this one waited for its turn its task may have ended, with all that wait for it: without a pause for each.
        if has_ended_with_task(exec, &error) {
            return;
        }
        tries
            .log_and_wait(&exec.execs.health, &exec.task, "cannot end an exec", &error)
            .await;
        error = match exec.abandon().await {
            Ok(()) => {
                *tries = Retries::default();
                return;
            }
            Err(error) => error,
        };
    }
}

/// Returns whether the task of an exec that could not be ended has ended, and the exec with it.
fn has_ended_with_task(exec: &Exec, error: &Error) -> bool {
    let has_ended = !exec.is_in_running_task();
    if has_ended {
        tracing::debug!(
            task = exec.task,
            error = error.report(),
            "an exec has ended with its task"
        );
    }
    has_ended
}

// === impl ExecPlaces ===

impl ExecPlaces {
    pub(super) const fn new(held: ExecPlace, start: StartPlace) -> Self {
        Self {
            _held: Some(held),
            start: Some(start),
        }
    }

    /// The start has succeeded.
    pub(super) fn started(&mut self) {
        self.start = None;
    }
}

// === impl Exec ===

impl Exec {
    /// Ends and deletes a process whose client is gone.
    async fn abandon(&self) -> Result<()> {
        if self.has_exited() {
            return self.delete().await;
        }
        // The waiting caller is gone, perhaps because the shim does not answer on this connection: containerd
        // has one of its own.
        drop(self.take_connection());
        let ended = async {
            loop {
                match self.signal(Signal::KILL).await {
                    // The shim is still creating the process, or has created it and was never asked to start
                    // it.
                    Err(error) if error.kind() == ErrorKind::FailedPrecondition => {
                        if self.delete().await.is_ok() {
                            return Ok(());
                        }
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                    other => break other?,
                }
            }
            ignore_not_found(self.wait().await)
        };
        match timeout(END_TIMEOUT, ended).await {
            Ok(ended) => ended?,
            Err(_) => {
                return Err(Error::deadline(format!(
                    "exec in task {} has not exited after SIGKILL",
                    self.task
                )));
            }
        }
        self.delete().await
    }
}
