//! Cleanups of tasks: undos, and limits that are not in force.

use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use switchyard_core::state::Exit;
use switchyard_core::{ErrorKind, Result};

use super::{TaskEntry, Tasks};
use crate::cleanup::{Cleanup, upgrade};

/// The remaining cleanup of a task.
#[derive(Debug)]
pub(crate) enum TaskCleanupKind {
    /// Removes a task whose creation failed or was interrupted.
    Creation,
    /// Undoes a failed start, whose exit is not persisted yet.
    FailedStart(Exit),
    /// Applies the limits on record, from which those in force may differ.
    Limits,
}

/// A cleanup of a task.
#[derive(Debug)]
pub(crate) struct TaskCleanup {
    tasks: Weak<Tasks>,
    entry: Arc<TaskEntry>,
    kind: TaskCleanupKind,
}

impl TaskCleanup {
    pub(crate) fn new(tasks: &Tasks, entry: Arc<TaskEntry>, kind: TaskCleanupKind) -> Self {
        Self {
            tasks: Weak::clone(&tasks.weak),
            entry,
            kind,
        }
    }
}

impl Cleanup for TaskCleanup {
    fn description(&self) -> String {
        let id = self.entry.id;
        match self.kind {
            TaskCleanupKind::Creation => format!("task {id}"),
            TaskCleanupKind::FailedStart(_) => format!("failed start of task {id}"),
            TaskCleanupKind::Limits => format!("limits of task {id}"),
        }
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let tasks = upgrade(&self.tasks)?;
            match &self.kind {
                TaskCleanupKind::Creation => tasks.destroy_task(&self.entry).await,
                TaskCleanupKind::Limits => tasks.restore_limits(&self.entry).await,
                TaskCleanupKind::FailedStart(exit) => {
                    match tasks.undo_start(&self.entry, exit).await {
                        // The task was removed meanwhile.
                        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                        other => other,
                    }
                }
            }
        })
    }
}
