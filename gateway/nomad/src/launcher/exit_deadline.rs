//! The end that an agent asks for: its answer goes out first, and it comes in time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long an answer takes to go out, with much to spare.
const ANSWER_GRACE: Duration = Duration::from_millis(50);

/// How long the agent, which has told of its own end, may take to ask for ours.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(1500);

/// When a launcher is to end. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct ExitDeadline {
    at: Arc<watch::Sender<Option<Instant>>>,
}

// === impl Ending ===

impl Default for ExitDeadline {
    fn default() -> Self {
        Self { at: Arc::new(watch::Sender::new(None)) }
    }
}

impl ExitDeadline {
    /// The agent wants the process to end (go-plugin's `Shutdown`).
    pub(super) fn now(&self) {
        self.within(ANSWER_GRACE);
    }

    /// The agent is about to end (the driver's `Shutdown`): it asks for our end next, or has no time to.
    pub(super) fn soon(&self) {
        self.within(SHUTDOWN_GRACE);
    }

    /// Only ever earlier than it was.
    fn within(&self, patience: Duration) {
        let then = Instant::now() + patience;
        self.at.send_modify(|at| *at = Some(at.map_or(then, |at| at.min(then))));
    }

    /// Returns when the process is to end. Cancel-safe.
    pub(super) async fn wait(&self) {
        let mut changes = self.at.subscribe();
        loop {
            let at = *changes.borrow_and_update();
            tokio::select! {
                // The sender is this very value.
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
    async fn an_end_comes_within_two_seconds_of_either_wish_and_the_earlier_one_counts() {
        let ending = ExitDeadline::default();
        let forever = tokio::time::timeout(Duration::from_secs(3600), ending.wait()).await;
        assert!(forever.is_err(), "nobody has asked for an end");
        let begin = Instant::now();
        ending.soon();
        ending.now();
        ending.soon();
        ending.wait().await;
        assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());
        let farewell = ExitDeadline::default();
        let begin = Instant::now();
        farewell.soon();
        farewell.wait().await;
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    }
}
