//! The callers of an operation, and whether they still wait for it.

use tokio_util::sync::CancellationToken;

use crate::backend::Withdrawal;
use crate::error::Result;
use crate::waiters::Waiters;

/// Notifies an operation when all its callers have gone away. Once the gateway shuts down they count as
/// present: the shutdown disconnects them, and the next daemon has to find what they requested.
#[derive(Debug, Clone)]
pub struct Callers {
    waiters: Waiters,
    shutdown: CancellationToken,
}

impl Callers {
    /// Those who wait, until this token is cancelled at a shutdown.
    pub(super) const fn new(waiters: Waiters, shutdown: CancellationToken) -> Self {
        Self { waiters, shutdown }
    }

    /// Returns whether all have gone away.
    #[must_use]
    pub fn are_gone(&self) -> bool {
        self.waiters.are_gone() && !self.shutdown.is_cancelled()
    }

    /// Returns when all have gone away. Does not return once the gateway shuts down. Cancel-safe.
    pub async fn gone(&self) {
        self.waiters.gone().await;
        if self.shutdown.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    /// Called where an operation can still be given up; `what` names it.
    ///
    /// # Errors
    /// `Cancelled` if all callers have gone away.
    pub fn check(&self, what: &str) -> Result<()> {
        if self.are_gone() {
            Err(Withdrawal::error().context(what))
        } else {
            Ok(())
        }
    }

    /// Waits for `work`, which is dropped if all callers go away first.
    ///
    /// # Errors
    /// `Cancelled` if they have; `what` names the operation.
    pub async fn unless_gone<T>(&self, what: &str, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.gone() => Err(Withdrawal::error().context(what)),
            done = work => Ok(done),
        }
    }
}
