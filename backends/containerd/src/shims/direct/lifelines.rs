//! Shares sockets of shim connections with the logkeeper, each for the time of one call, so that a shim
//! finishes the call although this daemon is killed meanwhile.
//!
//! When the connection of the caller closes during a start, the shim kills the OCI runtime, which may have
//! created the process already: the process would run on in its container, unknown to everyone. So a start is
//! requested only over a shared socket (ADR 12, ADR 19).

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_logkeeper::{Error, Lifeline};
use tokio_util::task::TaskTracker;

/// Maximum number of connections to the logkeeper that are kept for the next call.
const MAX_IDLE: usize = 4;
/// Limit for the logkeeper to accept a socket. If it is slower, calling containerd instead is faster.
const HANDOVER_TIMEOUT: Duration = Duration::from_millis(500);

/// Connections to the logkeeper, each of which holds one socket at a time or none.
#[derive(Debug)]
pub(crate) struct Lifelines {
    keeper: PathBuf,
    idle: Mutex<Vec<Lifeline>>,
    tracker: TaskTracker,
}

/// Keeps a socket shared until this is dropped, and longer if the daemon is killed.
#[derive(Debug)]
pub(crate) struct SocketGuard {
    lifelines: Arc<Lifelines>,
    /// `None` once dropped.
    lifeline: Option<Lifeline>,
}

// === impl Lifelines ===

impl Lifelines {
    /// Without connections yet; `tracker` owns the background tasks.
    pub(crate) fn new(keeper: &Path, tracker: TaskTracker) -> Arc<Self> {
        Arc::new(Self {
            keeper: keeper.to_owned(),
            idle: Mutex::default(),
            tracker,
        })
    }

    /// Has the logkeeper hold a socket. `None` if the logkeeper fails or is slow. Whoever starts processes bounds
    /// how many are held. Cancel-safe.
    pub(crate) async fn share_socket(self: &Arc<Self>, socket: OwnedFd) -> Option<SocketGuard> {
        match tokio::time::timeout(HANDOVER_TIMEOUT, self.hand_over(&socket)).await {
            Ok(Ok(lifeline)) => Some(SocketGuard {
                lifelines: Arc::clone(self),
                lifeline: Some(lifeline),
            }),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the logkeeper does not hold a shim's socket");
                None
            }
            Err(_) => {
                tracing::debug!("the logkeeper takes too long to accept a shim's socket");
                None
            }
        }
    }

    async fn hand_over(&self, socket: &OwnedFd) -> Result<Lifeline, Error> {
        if let Some(mut lifeline) = self.take_idle() {
            if lifeline.hold(socket.as_fd(), true).await.is_ok() {
                return Ok(lifeline);
            }
            // The logkeeper was restarted, so the other idle connections are broken too.
            self.idle.lock().clear();
        }
        let mut lifeline = Lifeline::connect(&self.keeper).await?;
        lifeline.hold(socket.as_fd(), true).await?;
        Ok(lifeline)
    }

    fn take_idle(&self) -> Option<Lifeline> {
        self.idle.lock().pop()
    }

    fn return_idle(&self, lifeline: Lifeline) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(lifeline);
        }
    }
}

// === impl SocketGuard ===

impl Drop for SocketGuard {
    /// Has the logkeeper release the socket, in the background.
    fn drop(&mut self) {
        let Some(mut lifeline) = self.lifeline.take() else {
            return;
        };
        let lifelines = Arc::clone(&self.lifelines);
        self.lifelines.tracker.spawn(async move {
            match lifeline.release().await {
                Ok(()) => lifelines.return_idle(lifeline),
                // The logkeeper releases it by itself after a while.
                Err(error) => {
                    tracing::debug!(%error, "the request to the logkeeper to release a shim's socket failed")
                }
            }
        });
    }
}
