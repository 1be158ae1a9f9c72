//! Keeps a task from being frozen for a checkpoint while processes are started in it, and the reverse.
//!
//! If a task is frozen while a runtime starts a process in it, the half-created process is frozen too. The
//! shim waits for that runtime. If another child of the shim exits meanwhile, such as the runtime that has
//! frozen the task, the shim handles that exit under a lock that all its calls need, and waits there too
//! (containerd 1.6.20 requests the pid of the new process under that lock). Then nobody can have the shim
//! resume the task. So a checkpoint waits until the processes that are being started exist, and later starts
//! wait for the checkpoint, in the order of the calls.

use std::sync::Arc;
use std::time::Duration;

use switchyard_core::{Error, Result};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use super::TaskEntry;
use super::entry::MAX_EXEC_PERMITS;

/// While this is held, the task is not frozen.
#[derive(Debug)]
pub(crate) struct ExecPermit {
    _permit: OwnedSemaphorePermit,
}

impl TaskEntry {
    /// Waits until the task is not frozen for a checkpoint; it is not frozen while the permit is held.
    /// Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the task is still frozen after `limit`.
    pub(crate) async fn acquire_exec_permit(&self, limit: Duration) -> Result<ExecPermit> {
        match timeout(limit, Arc::clone(&self.exec_permits).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(ExecPermit { _permit: permit }),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(self.frozen_error()),
        }
    }

    /// Why no process can be started in the task now; `None` if one can.
    pub(crate) fn exec_blocked(&self) -> Option<Error> {
        (self.exec_permits.available_permits() == 0).then(|| self.frozen_error())
    }

    fn frozen_error(&self) -> Error {
        Error::unavailable(format!(
            "task {} is frozen, or is about to be, for a checkpoint: try again when that is finished",
            self.id
        ))
    }

    /// Waits until the processes that are being started in the task exist, and blocks further starts.
    /// Cancel-safe.
    ///
    /// # Errors
    /// `DeadlineExceeded` if a process is still being started at `deadline`.
    pub(super) async fn freeze(&self, deadline: Instant) -> Result<()> {
        match timeout_at(deadline, Arc::clone(&self.exec_permits).acquire_many_owned(MAX_EXEC_PERMITS)).await
        {
            Ok(Ok(all)) => {
                self.set_freeze_permits(Some(all));
                Ok(())
            }
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => {
                Err(Error::deadline(format!("a process was still being started in task {}", self.id)))
            }
        }
    }

    /// Blocks starts in a task that a predecessor has left frozen. For a new entry, where no process is being
    /// started.
    pub(crate) fn adopt_frozen(&self) {
        let all = Arc::clone(&self.exec_permits).try_acquire_many_owned(MAX_EXEC_PERMITS);
        self.set_freeze_permits(all.ok());
    }

    /// Allows processes to be started again. Idempotent.
    pub(super) fn thaw(&self) {
        self.set_freeze_permits(None);
    }

    fn set_freeze_permits(&self, all: Option<OwnedSemaphorePermit>) {
        *self.freeze_permits.lock() = all;
    }
}
