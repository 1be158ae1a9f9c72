//! Keeps a task from being frozen for a checkpoint while processes are started in it, and the reverse.
//!
//! If a task is frozen while a runtime starts a process in it, the half-created process is frozen too. The
//! shim waits for that runtime. If another child of the shim exits meanwhile, such as the runtime that has
//! frozen the task, the shim handles that exit under a lock that all its calls need, and waits there too
//! (containerd 1.6.20 requests the pid of the new process under that lock). Then nobody can have the shim
//! resume the task. So a checkpoint waits until the processes that are being started exist, and later starts
//! wait for the checkpoint, in the order of the calls.
//!
//! Few processes are started in a task at a time: a shim takes starts one after the other, so that more of them would only wait there,
//! where they cannot be withdrawn when their callers give up.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_core::id::TaskId;
use switchyard_core::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::client::retries::Retries;

/// More processes than are ever started at the same time in one task.
const MAX_EXEC_PERMITS: u32 = 1 << 20;

/// Maximum number of concurrent process starts in one task.
const STARTS: usize = 4;

/// The permits of one task: starting a process in it takes one, and freezing it takes all of them.
#[derive(Debug)]
pub(crate) struct ExecPermits {
    task: TaskId,
    /// The places for starts.
    places: Arc<Semaphore>,
    /// The turn to try again to end one of the processes that could not be ended.
    ending_turn: Arc<tokio::sync::Mutex<Retries>>,
    free: Arc<Semaphore>,
    /// All permits, while the task is frozen for a checkpoint.
    frozen: Mutex<Option<OwnedSemaphorePermit>>,
}

/// A place for a start, until it is dropped.
#[derive(Debug)]
pub(crate) struct StartPlace {
    _permit: Option<OwnedSemaphorePermit>,
}

/// While this is held, the task is not frozen.
#[derive(Debug)]
pub(crate) struct ExecPermit {
    _permit: OwnedSemaphorePermit,
}

// === impl ExecPermits ===

impl ExecPermits {
    pub(super) fn new(task: TaskId) -> Self {
        let places = Arc::new(Semaphore::new(STARTS));
        let free = Arc::new(Semaphore::new(MAX_EXEC_PERMITS as usize));
        Self {
            task,
            places,
            ending_turn: Arc::default(),
            free,
            frozen: Mutex::default(),
        }
    }

    /// Waits for a place, and then until the task is not frozen for a checkpoint; it is not frozen while the permit
    /// is held. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the task is still frozen `limit` after there was a place.
    pub(crate) async fn acquire(&self, limit: Duration) -> Result<(StartPlace, ExecPermit)> {
        // The semaphores are never closed.
        let place = StartPlace {
            _permit: Arc::clone(&self.places).acquire_owned().await.ok(),
        };
        match timeout(limit, Arc::clone(&self.free).acquire_owned()).await {
            Ok(Ok(permit)) => Ok((place, ExecPermit { _permit: permit })),
            Ok(Err(_)) | Err(_) => Err(self.frozen_error()),
        }
    }

    /// The turn to try again to end one of the processes of the task that could not be ended: one at a time.
    pub(crate) fn ending_turn(&self) -> Arc<tokio::sync::Mutex<Retries>> {
        Arc::clone(&self.ending_turn)
    }

    fn frozen_error(&self) -> Error {
        Error::unavailable(format!(
            "task {} is frozen, or is about to be, for a checkpoint: try again when that is finished",
            self.task
        ))
    }

    /// Waits until the processes that are being started in the task exist, and blocks further starts.
    /// Cancel-safe.
    ///
    /// # Errors
    /// `DeadlineExceeded` if a process is still being started at `deadline`.
    pub(super) async fn freeze(&self, deadline: Instant) -> Result<()> {
        match timeout_at(
            deadline,
            Arc::clone(&self.free).acquire_many_owned(MAX_EXEC_PERMITS),
        )
        .await
        {
            Ok(Ok(all)) => {
                *self.frozen.lock() = Some(all);
                Ok(())
            }
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(Error::deadline(format!(
                "a process was still being started in task {}",
                self.task
            ))),
        }
    }

    /// Blocks starts in a task that a predecessor has left frozen. For a new entry, where no process is being
    /// started.
    pub(crate) fn adopt_frozen(&self) {
        let all = Arc::clone(&self.free).try_acquire_many_owned(MAX_EXEC_PERMITS);
        *self.frozen.lock() = all.ok();
    }

    /// Allows processes to be started again. Idempotent.
    pub(super) fn thaw(&self) {
        *self.frozen.lock() = None;
    }
}
