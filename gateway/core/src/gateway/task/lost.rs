//! Tasks whose exit the gateway cannot wait for because the backend is unavailable. One log line reports the
//! beginning and one the end of an outage, however many tasks are affected.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::Tasks;
use crate::backend::Condition;
use crate::error::Error;
use crate::id::TaskId;

/// The tasks affected since the backend became unavailable.
#[derive(Debug, Default)]
pub(super) struct LostTasks {
    tasks: Mutex<HashSet<TaskId>>,
}

impl LostTasks {
    fn tasks(&self) -> MutexGuard<'_, HashSet<TaskId>> {
        self.tasks.lock()
    }

    /// Adds a task; returns whether it is the first.
    fn insert(&self, id: TaskId) -> bool {
        let mut tasks = self.tasks();
        let first = tasks.is_empty();
        tasks.insert(id);
        first
    }

    /// Removes all tasks and returns their number.
    fn drain_count(&self) -> usize {
        std::mem::take(&mut *self.tasks()).len()
    }
}

impl Tasks {
    /// Logs that waiting for a task failed and is retried. Further tasks before the backend is available
    /// again are only counted.
    pub(super) fn report_lost(self: &Arc<Self>, id: TaskId, error: &Error) {
        if !self.lost_tasks.insert(id) {
            tracing::debug!(task = %id, error = error.report(), "waiting for another task failed: it is retried");
            return;
        }
        tracing::warn!(task = %id, error = error.report(), "waiting for the exit of a task failed: it is retried for this and all further tasks until the runtime answers");
        let tasks = Arc::clone(self);
        self.context.watchers.spawn(async move {
            let context = &tasks.context;
            tokio::select! {
                () = tasks.wait_backend_healthy(context.limits.get().retry_max) => {}
                () = context.unwatched.cancelled() => return,
            }
            tracing::info!(
                tasks = tasks.lost_tasks.drain_count(),
                "the runtime answers: the affected tasks are watched again"
            );
        });
    }

    /// Waits until the backend is healthy, checking at intervals of `pause`. Cancel-safe.
    async fn wait_backend_healthy(&self, pause: Duration) {
        loop {
            tokio::time::sleep(pause).await;
            match self.context.backend.status().runtime {
                Condition::True => return,
                Condition::False {
                    reason: _,
                    message: _,
                } => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_task_of_an_outage_is_logged_and_each_task_counts_once() {
        let lost = LostTasks::default();
        let tasks = [TaskId::random(), TaskId::random()];
        assert!(lost.insert(tasks[0]));
        assert!(!lost.insert(tasks[1]) && !lost.insert(tasks[0]));
        assert_eq!(lost.drain_count(), 2);
        assert!(lost.insert(tasks[1]));
        assert_eq!(lost.drain_count(), 1);
    }
}
