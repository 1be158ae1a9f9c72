//! Starts that a predecessor was killed in.

use std::sync::Arc;
use std::time::SystemTime;

use switchyard_core::backend::Started;
use switchyard_core::id::TaskId;
use switchyard_core::{Error, Result};

use super::Recovery;
use crate::base::crash_points::CrashPoint;
use crate::base::fs::{create_private_dir, io_error, remove_tree};
use crate::predecessor_calls::outcome::CallOutcome;
use crate::task::TaskEntry;
use crate::task::storage::stage::clear_stage;

impl Recovery {
    /// Finishes a start that a predecessor was killed in: a started process is adopted, anything less is
    /// undone.
    ///
    /// # Errors
    /// If the predecessor call cannot be observed, or the start cannot be undone.
    pub(crate) async fn finish_predecessor_start(
        self: &Arc<Self>,
        id: TaskId,
    ) -> Result<Option<Started>> {
        let entry = self.tasks.table.get(id)?;
        let guard = entry.lock_process().await;
        match self
            .predecessor_calls
            .await_predecessor_call(&id.into())
            .await?
        {
            CallOutcome::Started { pid } if !entry.dirs.discarded().exists() => {
                let started = Started {
                    pid,
                    at: SystemTime::now(),
                };
                crate::task::start::mark_started(&entry, started).await?;
                self.adopt(&entry, started);
                self.resume_log(&entry).await;
                Ok(Some(started))
            }
            CallOutcome::NoEffect
            | CallOutcome::Incomplete
            | CallOutcome::Stuck
            | CallOutcome::Started { .. } => {
                let recovery = Arc::clone(self);
                let undo = self.exits.reapers.spawn(async move {
                    let _guard = guard;
                    recovery.discard_start(&entry).await
                });
                undo.await.map_err(|fault| {
                    Error::internal(format!(
                        "undoing the start of task {id} panicked or was aborted"
                    ))
                    .with_source(fault)
                })??;
                Ok(None)
            }
        }
    }

    /// Undoes a predecessor's start of a task, so that the task can be started again. The caller holds the
    /// process lock.
    async fn discard_start(&self, entry: &TaskEntry) -> Result<()> {
        // The marker file comes first: if this daemon is killed during the undo, the next one must not take a
        // process that is being terminated for a started one.
        let id = entry.id.to_string();
        let discarded = entry.dirs.discarded();
        create_private_dir(&entry.dirs.run).await?;
        tokio::fs::write(&discarded, [])
            .await
            .map_err(|fault| io_error("write", &discarded, fault))?;
        switchyard_crash_points::reach(CrashPoint::StartDiscarded);
        self.exits.end_task_process(entry, true).await?;
        self.shims.wait_containerd_cleanup(&id).await?;
        // A failure is not queued for a retry: by then the task may run again, and its start has the
        // logkeeper open the same log.
        if let Err(error) = self.exits.finish_log(entry).await {
            tracing::warn!(
                task = id,
                error = error.report(),
                "cannot close the log of an undone start: it stays open"
            );
        }
        clear_stage(&entry.dirs.stage).await?;
        remove_tree(&entry.dirs.run).await
    }
}
