//! One token ends everything: it is cancelled by SIGTERM, SIGINT, or a part that cannot go on.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The daemon's end, as all its parts see it. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
    fault: Arc<OnceLock<String>>,
}

impl Shutdown {
    /// A token of which each part keeps a clone.
    #[must_use]
    pub const fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Ends the daemon because a part cannot go on; the first reason counts.
    pub fn fail(&self, why: impl Into<String>) {
        // Later faults follow from the first.
        let _ = self.fault.set(why.into());
        self.token.cancel();
    }

    /// Why the daemon ends, if not because it was asked to.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// Returns when the daemon ends. Cancel-safe.
    pub async fn ended(&self) {
        self.token.cancelled().await;
    }

    /// Ends the daemon at the first SIGTERM or SIGINT from now on. A second one while it drains ends the process at once.
    ///
    /// # Errors
    /// The process cannot listen to signals.
    pub fn on_signals(&self) -> io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let token = self.token.clone();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                if token.is_cancelled() {
                    tracing::warn!(signal = name, "asked again: ending at once");
                    std::process::exit(1);
                }
                tracing::info!(signal = name, "asked to end");
                token.cancel();
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_fault_ends_everything_and_is_kept() {
        let shutdown = Shutdown::default();
        assert_eq!(shutdown.fault(), None);
        shutdown.clone().fail("first");
        shutdown.fail("second");
        shutdown.ended().await;
        assert_eq!(shutdown.fault(), Some("first"));
    }
}
