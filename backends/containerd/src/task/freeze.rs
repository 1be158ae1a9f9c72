//! A task stands still, or processes are made in it: never both.
//!
//! A runtime that just puts a process into a task that comes to a standstill is caught half way: what it has made is frozen too. The shim
//! waits for that runtime, and whatever other child of it ends meanwhile, as the runtime that has frozen the task, has it wait with a lock
//! that all its calls need (containerd 1.6.20: the number of the new process is asked for under it). Nobody can have it resume then. So a
//! checkpoint waits until what is being made is there, and what comes later waits for the checkpoint, in the order of asking.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use switchyard_core::{Error, Result};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use super::TaskEntry;

/// More than will ever be made at once in one task.
pub(super) const MAX_EXEC_PERMITS: u32 = 1 << 20;

/// While this is held, the task does not come to a standstill.
#[derive(Debug)]
pub(crate) struct ExecPermit {
    _permit: OwnedSemaphorePermit,
}

impl TaskEntry {
    /// Waits until it does not stand still for a checkpoint, and has it move while what this gives is held. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if it still does after `limit`.
    pub(crate) async fn acquire_exec_permit(&self, limit: Duration) -> Result<ExecPermit> {
        match timeout(limit, Arc::clone(&self.exec_permits).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(ExecPermit { _permit: permit }),
            // Nobody closes it.
            Ok(Err(_)) | Err(_) => Err(self.frozen_error()),
        }
    }

    /// Why no process can be made in it now, if that is so.
    pub(crate) fn exec_blocked(&self) -> Option<Error> {
        (self.exec_permits.available_permits() == 0).then(|| self.frozen_error())
    }

    fn frozen_error(&self) -> Error {
        Error::unavailable(format!(
            "task {} stands still, or is about to, while a checkpoint of it is made: try again when that is over",
            self.id
        ))
    }

    /// Waits until what is being made in it is there, and notes that it stands still from now on. Cancel-safe.
    ///
    /// # Errors
    /// `DeadlineExceeded` if something is still being made at `deadline`.
    pub(super) async fn freeze(&self, deadline: Instant) -> Result<()> {
        match timeout_at(deadline, Arc::clone(&self.exec_permits).acquire_many_owned(MAX_EXEC_PERMITS)).await
        {
            Ok(Ok(all)) => {
                self.set_freeze_permits(Some(all));
                Ok(())
            }
            // Nobody closes it.
            Ok(Err(_)) | Err(_) => {
                Err(Error::deadline(format!("a process was still being made in task {}", self.id)))
            }
        }
    }

    /// Notes that it was left standing still: of a new entry, in which nothing is being made.
    pub(crate) fn adopt_frozen(&self) {
        let all = Arc::clone(&self.exec_permits).try_acquire_many_owned(MAX_EXEC_PERMITS);
        self.set_freeze_permits(all.ok());
    }

    /// Notes that it stands still no more. Idempotent.
    pub(super) fn thaw(&self) {
        self.set_freeze_permits(None);
    }

    fn set_freeze_permits(&self, all: Option<OwnedSemaphorePermit>) {
        *self.freeze_permits.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }
}
