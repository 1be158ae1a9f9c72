//! Tasks that the gateway has lost sight of: told once when it begins and once when it is over, however many they are.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Gateway;
use crate::backend::Condition;
use crate::error::Error;
use crate::id::TaskId;

/// The tasks that were lost sight of since the backend went away.
#[derive(Debug, Default)]
pub(super) struct LostTasks {
    tasks: Mutex<HashSet<TaskId>>,
}

impl LostTasks {
    fn tasks(&self) -> MutexGuard<'_, HashSet<TaskId>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a task; whether it is the first.
    fn insert(&self, id: TaskId) -> bool {
        let mut tasks = self.tasks();
        let first = tasks.is_empty();
        tasks.insert(id);
        first
    }

    /// Forgets them all; how many they were.
    fn drain_count(&self) -> usize {
        std::mem::take(&mut *self.tasks()).len()
    }
}

impl Gateway {
    /// Tells that a task is lost sight of and looked for again. Those that follow it before the backend is back are counted.
    pub(super) fn report_lost(&self, id: TaskId, error: &Error) {
        if !self.shared.lost_tasks.insert(id) {
            tracing::debug!(task.id = %id, error = error.report(), "lost sight of another task");
            return;
        }
        tracing::warn!(task.id = %id, error = error.report(), "lost sight of a task: looking again, for it and any that follow");
        let gateway = self.clone();
        self.shared.watchers.spawn(async move {
            let shared = &gateway.shared;
            tokio::select! {
                () = gateway.wait_backend_healthy(shared.limits.retry_max) => {}
                () = shared.unwatched.cancelled() => return,
            }
            tracing::info!(
                tasks = shared.lost_tasks.drain_count(),
                "the runtime answers: tasks that were lost sight of are watched again"
            );
        });
    }

    /// Returns once the backend is well, looking each `pause`. Cancel-safe.
    async fn wait_backend_healthy(&self, pause: Duration) {
        loop {
            tokio::time::sleep(pause).await;
            match self.shared.backend.status().runtime {
                Condition::True => return,
                Condition::False { reason: _, message: _ } => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_of_an_outage_is_told_and_each_task_counts_once() {
        let lost = LostTasks::default();
        let tasks = [TaskId::random(), TaskId::random()];
        assert!(lost.insert(tasks[0]));
        assert!(!lost.insert(tasks[1]) && !lost.insert(tasks[0]));
        assert_eq!(lost.drain_count(), 2);
        assert!(lost.insert(tasks[1]));
        assert_eq!(lost.drain_count(), 1);
    }
}
