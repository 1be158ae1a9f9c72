//! Cleanups of tasks: undos, and what is left to do after an exit.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use switchyard_core::state::Exit;
use switchyard_core::{ErrorKind, Result};

use super::TaskEntry;
use crate::backend::{Inner, upgrade};
use crate::cleanup::Cleanup;

/// What is left to do for a task.
#[derive(Debug)]
pub(crate) enum TaskCleanupKind {
    /// Removes a task whose creation failed or was interrupted.
    Creation,
    /// Removes the containerd task and the log after an exit, and persists the exit if it is not persisted yet.
    Exit,
    /// Undoes a failed start, whose exit is not persisted yet.
    FailedStart(Exit),
    /// Applies the limits on record, from which those in force may differ.
    Limits,
    /// Resumes the task after an unfinished checkpoint, and removes the checkpoint.
    Checkpoint,
}

/// A cleanup of a task.
#[derive(Debug)]
pub(crate) struct TaskCleanup {
    backend: Weak<Inner>,
    entry: Arc<TaskEntry>,
    kind: TaskCleanupKind,
}

impl TaskCleanup {
    pub(crate) fn new(backend: &Inner, entry: Arc<TaskEntry>, kind: TaskCleanupKind) -> Self {
        Self { backend: Weak::clone(&backend.weak), entry, kind }
    }
}

#[async_trait]
impl Cleanup for TaskCleanup {
    fn description(&self) -> String {
        let id = self.entry.id;
        match self.kind {
            TaskCleanupKind::Creation => format!("task {id}"),
            TaskCleanupKind::Exit => format!("process of task {id}"),
            TaskCleanupKind::FailedStart(_) => format!("failed start of task {id}"),
            TaskCleanupKind::Limits => format!("limits of task {id}"),
            TaskCleanupKind::Checkpoint => format!("checkpoint of task {id}"),
        }
    }

    async fn run(&self) -> Result<()> {
        let backend = upgrade(&self.backend)?;
        match &self.kind {
            TaskCleanupKind::Creation => backend.destroy_task(&self.entry).await,
            TaskCleanupKind::Exit => backend.clean_up_exit(&self.entry).await,
            TaskCleanupKind::Limits => backend.restore_limits(&self.entry).await,
            TaskCleanupKind::Checkpoint => backend.end_checkpoint(&self.entry).await,
            TaskCleanupKind::FailedStart(exit) => match backend.undo_start(&self.entry, exit).await {
                // The task was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                other => other,
            },
        }
    }
}
