//! Background work for single tasks: waiting for their exit, for a predecessor's start, and for a removal to
//! succeed.

use std::sync::Arc;
use std::time::SystemTime;

use super::Tasks;
use crate::error::ErrorKind;
use crate::id::TaskId;
use crate::keyed_lock::KeyedLockGuard;
use crate::state::{Exit, TaskEvent};

impl Tasks {
    /// Waits for the outcome of a start that a predecessor began; later operations on the task wait for it. To be
    /// called before requests are served, when nobody else has the lock of the task.
    pub(in crate::gateway) async fn recover_start(self: &Arc<Self>, id: TaskId) {
        self.resume_start(id, self.task_locks.lock(id).await);
    }

    /// Waits for the outcome of a start that a predecessor began. `guard` makes other operations on the task
    /// wait for it. A program that was started runs on, although nobody waits for that start: its
    /// orchestrator finds the task running, and has not seen it as created meanwhile.
    fn resume_start(self: &Arc<Self>, id: TaskId, guard: KeyedLockGuard) {
        let tasks = Arc::clone(self);
        self.context.watchers.spawn(async move {
            let context = &tasks.context;
            let _guard = guard;
            let mut backoff = context.limits.get().backoff();
            let mut warned = false;
            let event = loop {
                let outcome = tokio::select! {
                    outcome = context.backend.resolve_start(id) => outcome,
                    () = context.unwatched.cancelled() => return,
                };
                match outcome {
                    Ok(Some(started)) => break TaskEvent::Started { pid: started.pid, at: started.at },
                    Ok(None) => break TaskEvent::StartRefused,
                    Err(error) if error.kind() == ErrorKind::NotFound => break TaskEvent::StartRefused,
                    Err(error) if warned => {
                        tracing::debug!(task = %id, error = error.report(), "the outcome of a predecessor's start is still unknown");
                    }
                    Err(error) => {
                        tracing::warn!(task = %id, error = error.report(), "the outcome of a predecessor's start is unknown: retrying until it is known");
                        warned = true;
                    }
                }
                if !backoff.wait_unless(&context.unwatched).await {
                    return;
                }
            };
            match tasks.apply(id, event) {
                Ok((_, after)) if after.state.is_running() => tasks.watch_exit(id),
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(task = %id, error = error.report(), "cannot record the outcome of a predecessor's start");
                }
            }
        });
    }

    /// Retries the removal of a task that is not in the table, until it succeeds or the gateway shuts down;
    /// then the next recovery finds the task.
    pub(super) fn discard(self: &Arc<Self>, id: TaskId) {
        let tasks = Arc::clone(self);
        self.context.operations.spawn(async move {
            let context = &tasks.context;
            let mut backoff = context.limits.get().backoff();
            loop {
                if !backoff.wait_unless(&context.shutdown).await {
                    return;
                }
                match context.backend.remove_task(id).await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::debug!(task = %id, error = error.report(), "removing a task that is not in the table still fails");
                    }
                }
            }
        });
    }

    /// Watches a running task until it exits, is removed, or the gateway shuts down. While the backend is
    /// unavailable the wait is retried, at growing intervals.
    pub(in crate::gateway) fn watch_exit(self: &Arc<Self>, id: TaskId) {
        let tasks = Arc::clone(self);
        self.context.watchers.spawn(async move {
            let context = &tasks.context;
            let mut backoff = context.limits.get().backoff();
            loop {
                let waited = tokio::select! {
                    waited = context.backend.wait_task(id) => waited,
                    () = context.unwatched.cancelled() => return,
                };
                let exit = match waited {
                    Ok(exit) => exit,
                    Err(error) if error.kind() == ErrorKind::NotFound => Exit::lost(SystemTime::now()),
                    Err(error) => {
                        tasks.report_lost(id, &error);
                        if !backoff.wait_unless(&context.unwatched).await {
                            return;
                        }
                        if context.table.task(id).is_none_or(|task| !task.state.may_run()) {
                            return;
                        }
                        continue;
                    }
                };
                if let Err(error) = tasks.apply(id, TaskEvent::Exited(exit)) {
                    tracing::debug!(task = %id, error = error.report(), "cannot record the exit of a task");
                }
                return;
            }
        });
    }
}
