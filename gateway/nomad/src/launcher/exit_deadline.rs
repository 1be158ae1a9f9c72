//! The deadline of an exit that the agent requested: late enough for the answer to be sent, and in time for
//! the agent.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The time for an answer to be sent, with much to spare.
const ANSWER_GRACE: Duration = Duration::from_millis(50);

/// Limit for an agent that has announced its own end to request the plugin's exit.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(1500);

/// The time at which a launcher exits. Clones share state.
#[derive(Debug, Clone)]
pub(super) struct ExitDeadline {
    at: Arc<watch::Sender<Option<Instant>>>,
}

// === impl ExitDeadline ===

impl Default for ExitDeadline {
    fn default() -> Self {
        Self {
            at: Arc::new(watch::Sender::new(None)),
        }
    }
}

impl ExitDeadline {
    /// The agent requests the exit of the process (go-plugin's `Shutdown`).
    pub(super) fn now(&self) {
        self.within(ANSWER_GRACE);
    }

    /// The agent is about to end (the driver's `Shutdown`): it requests the exit next, or does not get to it.
    pub(super) fn soon(&self) {
        self.within(SHUTDOWN_GRACE);
    }

    /// Sets the deadline, unless an earlier one is set.
    fn within(&self, patience: Duration) {
        let then = Instant::now() + patience;
        self.at
            .send_modify(|at| *at = Some(at.map_or(then, |at| at.min(then))));
    }

    /// Returns when the deadline has passed. Cancel-safe.
    pub(super) async fn wait(&self) {
        let mut changes = self.at.subscribe();
        loop {
            let at = *changes.borrow_and_update();
            tokio::select! {
                // The sender is `self`, so the channel cannot close.
                _ = changes.changed() => {}
                () = until(at) => return,
            }
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn exit_deadline_is_two_seconds_after_the_earlier_request() {
        let ending = ExitDeadline::default();
        let forever = tokio::time::timeout(Duration::from_secs(3600), ending.wait()).await;
        assert!(forever.is_err(), "nobody has asked for an end");
        let begin = Instant::now();
        ending.soon();
        ending.now();
        ending.soon();
        ending.wait().await;
        assert!(
            begin.elapsed() < Duration::from_millis(100),
            "{:?}",
            begin.elapsed()
        );
        let farewell = ExitDeadline::default();
        let begin = Instant::now();
        farewell.soon();
        farewell.wait().await;
        assert!(
            begin.elapsed() < Duration::from_secs(2),
            "{:?}",
            begin.elapsed()
        );
    }
}
