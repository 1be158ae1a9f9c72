//! Bounds on waiting while the backend is unavailable, or the daemon ends: an exit is then not reported, and an
//! operation does not finish.

use std::future::Future;

use tokio::time::Instant;

use super::Tasks;
use crate::backend::{Blocker, Condition};
use crate::error::{Error, Reason, Result};
use crate::id::TaskId;
use crate::keyed_lock::{KeyedLockGuard, LockInUse};
use crate::operation::step;
use crate::state::TaskState;

impl Tasks {
    /// Locks a task, unless the backend stays unavailable: the operation that holds the lock may then never
    /// finish.
    ///
    /// # Errors
    /// `Unavailable` with the reason; with [`Reason::DaemonEnds`] if the lock is free because the daemon ends, and not
    /// because the earlier operation has finished.
    pub(super) async fn lock(&self, id: TaskId) -> Result<KeyedLockGuard> {
        let locked = self.unless_outage(id, self.task_locks.lock(id));
        let guard = step("wait_for_earlier_operation", locked).await?;
        self.check_attended(id)?;
        Ok(guard)
    }

    /// The tasks whose locks are held.
    pub(in crate::gateway) fn locks_in_use(&self) -> Vec<LockInUse> {
        self.task_locks.in_use("task_locks")
    }

    /// Checks that the watcher of a predecessor's start has not left it without its outcome, as it does when the daemon
    /// ends. The caller holds the lock of the task, which the watcher held.
    fn check_attended(&self, id: TaskId) -> Result<()> {
        let task = self.context.table.task(id);
        let is_left = task.is_some_and(|task| task.state == TaskState::Unattended);
        if is_left && self.context.unwatched.is_cancelled() {
            return Err(Error::unavailable(format!(
                "the daemon ends before it knows whether the start of task {id} by its predecessor has succeeded: try \
                 again, the next daemon finds it"
            ))
            .with_reason(Reason::DaemonEnds));
        }
        Ok(())
    }

    /// Waits for an earlier operation on a task, unless the backend stays unavailable: the operation cannot
    /// finish then.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(super) async fn unless_outage<T>(
        &self,
        id: TaskId,
        before: impl Future<Output = T>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            done = before => Ok(done),
            reason = self.backend_outage() => Err(Error::unavailable(format!(
                "an earlier operation on task {id} does not finish: {reason}"
            ))),
        }
    }

    /// Waits for the exit of a killed task, up to the kill limit, unless the backend stays unavailable: it
    /// cannot report the exit then.
    pub(super) async fn within_kill_limit(
        &self,
        id: TaskId,
        ended: impl Future<Output = ()>,
    ) -> Result<()> {
        tokio::select! {
            ended = tokio::time::timeout(self.context.limits.get().kill, ended) => match ended {
                Ok(()) => Ok(()),
                Err(_) => Err(self.kill_timeout_error(id).await),
            },
            reason = self.backend_outage() => Err(Error::unavailable(format!(
                "task {id} was sent SIGKILL, but its exit cannot be observed: {reason}"
            ))),
        }
    }

    /// Returns the reason once the backend has been unavailable without interruption for the outage limit.
    async fn backend_outage(&self) -> String {
        let limits = self.context.limits.get();
        let mut since = None;
        loop {
            // Most tasks have exited before the first check.
            tokio::time::sleep(limits.retry_min).await;
            match self.context.backend.status().runtime {
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

    /// Names the processes that are left of the task, and what they wait for.
    async fn kill_timeout_error(&self, id: TaskId) -> Error {
        let limit = self.context.limits.get().kill;
        let text = format!("task {id} was sent SIGKILL, but no exit was reported within {limit:?}");
        // Noted first: the caller may go away.
        self.unended_tasks.note(id, None);
        let blockers = self.context.backend.task_blockers(id).await;
        let blockers = blockers.unwrap_or_else(|error| {
            tracing::debug!(task = %id, error = error.report(), "what is left of a task cannot be looked at");
            Vec::new()
        });
        match Blocker::explain(&blockers) {
            Some(why) => {
                let error = Error::deadline(format!("{text}: {why}"));
                self.unended_tasks.note(id, Some(why));
                error
            }
            None => Error::deadline(text),
        }
    }
}
