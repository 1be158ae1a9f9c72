//! Sockets of shims that the logkeeper holds too, each for the time of one call: what a shim does for us it carries to its end although
//! we are killed.
//!
//! A shim that starts a process for a caller whose connection closes kills the OCI runtime, and may have made the process already: it
//! would run on in its container, and nobody would know of it. So a start is asked for only over a socket that is held (ADR 12, ADR 19).

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use switchyard_logkeeper::{Error, Lifeline};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

/// How many sockets are held at once; who comes beyond that asks containerd.
const MAX_HELD: usize = 16;
/// How many connections to the logkeeper are kept for the next call.
const MAX_IDLE: usize = 4;
/// How long the logkeeper may take. It is quick, or it is not worth waiting for: containerd can be asked instead.
const HANDOVER_TIMEOUT: Duration = Duration::from_millis(500);

/// Connections to the logkeeper, each of which holds one socket at a time or none.
#[derive(Debug)]
pub(crate) struct Lifelines {
    keeper: PathBuf,
    idle: Mutex<Vec<Lifeline>>,
    permits: Arc<Semaphore>,
    tracker: TaskTracker,
}

/// A socket that is held until this is dropped, and longer if we are killed.
#[derive(Debug)]
pub(crate) struct SocketGuard {
    lifelines: Arc<Lifelines>,
    /// `None` once it is dropped.
    lifeline: Option<(Lifeline, OwnedSemaphorePermit)>,
}

// === impl Lifelines ===

impl Lifelines {
    /// None yet; `tracker` owns what is done in the background.
    pub(crate) fn new(keeper: &Path, tracker: TaskTracker) -> Arc<Self> {
        Arc::new(Self {
            keeper: keeper.to_owned(),
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_HELD)),
            tracker,
        })
    }

    /// Has the logkeeper hold a socket. `None` if it does not, for whatever reason. Cancel-safe.
    pub(crate) async fn share_socket(self: &Arc<Self>, socket: OwnedFd) -> Option<SocketGuard> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        match tokio::time::timeout(HANDOVER_TIMEOUT, self.hand_over(&socket)).await {
            Ok(Ok(lifeline)) => {
                Some(SocketGuard { lifelines: Arc::clone(self), lifeline: Some((lifeline, permit)) })
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the logkeeper does not hold a shim's socket");
                None
            }
            Err(_) => {
                tracing::debug!("the logkeeper takes too long to hold a shim's socket");
                None
            }
        }
    }

    async fn hand_over(&self, socket: &OwnedFd) -> Result<Lifeline, Error> {
        if let Some(mut lifeline) = self.take_idle() {
            if lifeline.hold(socket.as_fd(), true).await.is_ok() {
                return Ok(lifeline);
            }
            // The logkeeper has been started anew, so that the others are broken too.
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        let mut lifeline = Lifeline::connect(&self.keeper).await?;
        lifeline.hold(socket.as_fd(), true).await?;
        Ok(lifeline)
    }

    fn take_idle(&self) -> Option<Lifeline> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn return_idle(&self, lifeline: Lifeline) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(lifeline);
        }
    }
}

// === impl Holding ===

impl Drop for SocketGuard {
    /// Has it let go, in the background.
    fn drop(&mut self) {
        let Some((mut lifeline, permit)) = self.lifeline.take() else { return };
        let lifelines = Arc::clone(&self.lifelines);
        self.lifelines.tracker.spawn(async move {
            match lifeline.release().await {
                Ok(()) => lifelines.return_idle(lifeline),
                // It lets go by itself, in a while.
                Err(error) => tracing::debug!(%error, "the logkeeper does not let go of a shim's socket"),
            }
            drop(permit);
        });
    }
}
