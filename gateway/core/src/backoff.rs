//! Pauses between the tries of an operation that fails for a while: each is twice as long as the one before,
//! up to a longest one.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// The pauses of one operation.
#[derive(Debug, Clone)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `shortest` to `longest`.
    #[must_use]
    pub const fn new(shortest: Duration, longest: Duration) -> Self {
        Self {
            shortest,
            longest,
            next: shortest,
        }
    }

    /// The pause before the next try. Each call doubles the next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    /// Begins again with the shortest pause, after a success.
    pub const fn reset(&mut self) {
        self.next = self.shortest;
    }

    /// Waits until the next try is due. Cancel-safe.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.pause()).await;
    }

    /// Waits until the next try is due; returns `false` at once if `stop` is cancelled. Cancel-safe.
    pub async fn wait_unless(&mut self, stop: &CancellationToken) -> bool {
        tokio::select! {
            () = self.wait() => true,
            () = stop.cancelled() => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const SHORTEST: Duration = Duration::from_millis(200);
    const LONGEST: Duration = Duration::from_secs(5);

    #[test]
    fn pauses_double_up_to_the_longest_and_a_reset_begins_again() {
        let mut backoff = Backoff::new(SHORTEST, LONGEST);
        let pauses: Vec<_> = (0..7).map(|_| backoff.pause().as_millis()).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 5000, 5000]);
        backoff.reset();
        assert_eq!(backoff.pause(), SHORTEST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_its_owner_stops() {
        let stop = CancellationToken::new();
        let mut backoff = Backoff::new(LONGEST, LONGEST);
        let began = Instant::now();
        assert!(backoff.wait_unless(&stop).await);
        assert!(began.elapsed() >= LONGEST);
        stop.cancel();
        let began = Instant::now();
        assert!(!backoff.wait_unless(&stop).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
