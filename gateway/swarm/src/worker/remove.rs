//! The release of what an ended task held, and the removal of a task.

use std::path::Path;

use switchyard_core::logged_texts::LoggedTexts;
use switchyard_core::stop_request::StopReason;
use switchyard_core::{Error, Result};
use switchyard_linux::blocking;
use switchyard_linux::files::if_present;

use super::Worker;
use crate::record::Record;

/// The most reasons for which a removal fails that are logged.
const REASONS_MAX: usize = 16;

impl Worker {
    /// Frees what a task held that does not run any more: its network, its ports, its devices, its secrets. Its log and its
    /// exit stay until the manager removes it. Idempotent.
    pub(super) async fn release(&self) -> Result<()> {
        if let Some(sandbox) = self.sandbox_object()? {
            self.shared
                .scope
                .sandboxes()
                .stop(&sandbox.id.to_string())
                .await?;
        }
        self.give_up_leases();
        let files = self.shared.files.clone();
        let id = self.id.clone();
        blocking("removal of secrets", move || files.remove(&id)).await
    }

    /// Removes the task with everything that was created for it, until that succeeds.
    pub(super) async fn remove(&mut self) {
        let mut logged = LoggedTexts::at_most(REASONS_MAX);
        loop {
            let removed = match self.stop(StopReason::Requested).await {
                Ok(()) => self.remove_objects().await,
                Err(error) => Err(error),
            };
            match removed {
                Ok(()) => return,
                Err(error) => {
                    let error = error.report();
                    if logged.is_new(&error) {
                        tracing::warn!(
                            swarm_task = self.id,
                            error,
                            "removing a task fails: retrying"
                        );
                    } else {
                        tracing::debug!(swarm_task = self.id, error, "removing a task still fails");
                    }
                }
            }
            self.backoff.wait().await;
        }
    }

    /// Removes the objects of a task that does not run, and what is named after it. The sandbox goes last: as
    /// long as anything is left, it is the record of that. Idempotent.
    pub(super) async fn remove_objects(&self) -> Result<()> {
        self.release().await?;
        let scope = &self.shared.scope;
        let sandbox = self.sandbox_object()?;
        if let Some(task) = self.task_object()? {
            scope.tasks().remove(&task.id.to_string()).await?;
        }
        if let Some(sandbox) = &sandbox {
            // After the task, which has them mounted.
            for volume in Record::of(&sandbox.meta).anonymous_volumes {
                scope.volumes().remove(volume).await?;
            }
        }
        let logs = self.shared.settings.log_dir.join(&self.id);
        blocking("removal of a log", move || remove_dir(&logs)).await?;
        match sandbox {
            Some(sandbox) => scope.sandboxes().remove(&sandbox.id.to_string()).await,
            None => Ok(()),
        }
    }
}

/// Removes a directory that only the gateway writes to. Idempotent.
fn remove_dir(dir: &Path) -> Result<()> {
    if_present(std::fs::remove_dir_all(dir))
        .map(drop)
        .map_err(|fault| {
            let message = format!("remove the log {}", dir.display());
            Error::unavailable(message).with_source(fault)
        })
}
