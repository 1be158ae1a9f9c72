//! Retries of operations that must succeed eventually: no tries while containerd is down, and one warning per
//! operation.

use std::time::Duration;

use switchyard_core::backoff::Backoff;
use switchyard_core::{Error, ErrorKind};

use crate::client::health::Health;

/// The pause after the first failure.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(10);

/// The retries of one operation.
#[derive(Debug)]
pub(crate) struct Retries {
    backoff: Backoff,
    /// A failure was logged as a warning.
    warned: bool,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(SHORTEST, LONGEST),
            warned: false,
        }
    }
}

impl Retries {
    /// Logs a failure, as a warning the first time and at debug level later, and waits until the next try is
    /// due. `what` says what failed, as in "an exit cannot be persisted"; "yet" is appended. Cancel-safe.
    pub(crate) async fn log_and_wait(
        &mut self,
        health: &Health,
        task: &str,
        what: &str,
        error: &Error,
    ) {
        if self.warned {
            tracing::debug!(task, error = error.report(), "{what} yet");
        } else {
            tracing::warn!(
                task,
                error = error.report(),
                "{what} yet: it is tried again"
            );
            self.warned = true;
        }
        if error.kind() == ErrorKind::Unavailable {
            health.wait_regained().await;
        }
        self.backoff.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tries_become_seldom_and_none_is_made_while_containerd_is_away() {
        let mut tries = Retries::default();
        let health = Health::new(SHORTEST);
        let began = Instant::now();
        for _ in 0..7 {
            tries
                .log_and_wait(&health, "a", "it is not done", &Error::deadline("late"))
                .await;
        }
        let waited = began.elapsed();
        let expected = SHORTEST * (1 + 2 + 4 + 8) + LONGEST * 3;
        assert!(
            waited.abs_diff(expected) < SHORTEST,
            "{waited:?}, not {expected:?}"
        );
        // No health check has found containerd up.
        let away = Error::unavailable("away");
        let again = tries.log_and_wait(&health, "a", "it is not done", &away);
        assert!(timeout(LONGEST * 100, again).await.is_err());
    }
}
