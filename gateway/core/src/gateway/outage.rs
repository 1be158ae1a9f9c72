//! How long is waited for what a backend that is away could not tell, or could not let come to its end.

use std::future::Future;

use tokio::time::Instant;

use super::Gateway;
use crate::backend::Condition;
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::keyed_lock::KeyedLockGuard;

impl Gateway {
    /// A turn at a task, unless the backend stays away: whoever has the turn then may never be done with it.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(super) async fn lock_task(&self, id: TaskId) -> Result<KeyedLockGuard> {
        self.unless_outage(id, self.shared.task_locks.lock(id)).await
    }

    /// Waits for what was asked about a task before, unless the backend stays away: it cannot come to an end then.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(super) async fn unless_outage<T>(&self, id: TaskId, before: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            done = before => Ok(done),
            reason = self.backend_outage() => Err(Error::unavailable(format!(
                "what was asked about task {id} before does not come to its end: {reason}"
            ))),
        }
    }

    /// Waits for the end of a killed task, but not for a backend that stays away: nobody can tell of the end then.
    pub(super) async fn within_kill_limit(&self, id: TaskId, ended: impl Future<Output = ()>) -> Result<()> {
        tokio::select! {
            ended = tokio::time::timeout(self.shared.limits.kill, ended) => ended.map_err(|_| self.kill_timeout_error(id)),
            reason = self.backend_outage() => Err(Error::unavailable(format!(
                "task {id} was killed, but its end cannot be told: {reason}"
            ))),
        }
    }

    /// Returns, with the reason, once the backend has been away for a while without a break.
    async fn backend_outage(&self) -> String {
        let limits = &self.shared.limits;
        let mut since = None;
        loop {
            // Most tasks are gone before the first look.
            tokio::time::sleep(limits.retry_min).await;
            match self.shared.backend.status().runtime {
                Condition::True => since = None,
                Condition::False { message, reason: _ } => {
                    let since = *since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= limits.outage {
                        return message;
                    }
                }
            }
        }
    }

    fn kill_timeout_error(&self, id: TaskId) -> Error {
        let limit = self.shared.limits.kill;
        Error::deadline(format!(
            "task {id} was sent SIGKILL, and nobody has told of its end within {limit:?}"
        ))
    }
}
