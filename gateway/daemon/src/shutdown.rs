//! The shutdown token of the daemon: it is cancelled by SIGTERM, SIGINT, or the failure of a part.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The shutdown of the daemon, shared by all its parts. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
    fault: Arc<OnceLock<String>>,
}

impl Shutdown {
    /// The token; each part keeps a clone.
    #[must_use]
    pub const fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Ends the daemon because a part has failed; the first reason is kept.
    pub fn fail(&self, why: impl Into<String>) {
        // Later failures are mostly consequences of the first.
        let _ = self.fault.set(why.into());
        self.token.cancel();
    }

    /// Returns the reason why the daemon ends; `None` if it was asked to.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// Returns when the daemon ends. Cancel-safe.
    pub async fn ended(&self) {
        self.token.cancelled().await;
    }

    /// Ends the daemon at the first SIGTERM or SIGINT from now on. A second signal while it drains ends the
    /// process at once. Each SIGHUP calls `hangup`, which must not block.
    ///
    /// # Errors
    /// The process cannot receive signals.
    pub fn on_signals(&self, hangup: impl Fn() + Send + 'static) -> io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangups = signal(SignalKind::hangup())?;
        let token = self.token.clone();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                    _ = hangups.recv() => {
                        hangup();
                        continue;
                    }
                };
                if token.is_cancelled() {
                    tracing::warn!(
                        signal = name,
                        "second signal while shutting down: exiting at once"
                    );
                    switchyard_telemetry::flush_log();
                    std::process::exit(1);
                }
                tracing::info!(signal = name, "received a signal: shutting down");
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
    async fn first_fault_triggers_shutdown_and_is_kept() {
        let shutdown = Shutdown::default();
        assert_eq!(shutdown.fault(), None);
        shutdown.clone().fail("first");
        shutdown.fail("second");
        shutdown.ended().await;
        assert_eq!(shutdown.fault(), Some("first"));
    }
}
