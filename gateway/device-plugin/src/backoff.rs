//! The pause before a failed operation is retried.

use std::time::Duration;

/// Pauses that double up to a maximum.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    /// The first pause: by then, a kubelet that lost a plugin has forgotten its old connection.
    pub(crate) const SHORTEST: Duration = Duration::from_millis(200);

    /// The longest pause. A restarted kubelet is noticed by its new socket, whatever the pause.
    const LONGEST: Duration = Duration::from_secs(5);

    pub(crate) const fn new() -> Self {
        Self { next: Self::SHORTEST }
    }

    /// The pause before the next attempt. Each call doubles the next one.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(Self::LONGEST);
        pause
    }

    /// Starts again with the shortest pause, after a success that lasted.
    pub(crate) const fn reset(&mut self) {
        self.next = Self::SHORTEST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_are_short_again_after_a_success() {
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..10).map(|_| backoff.pause()).collect();
        assert_eq!(pauses[0], Backoff::SHORTEST);
        assert!(pauses.is_sorted());
        assert_eq!(pauses[9], Backoff::LONGEST);
        backoff.reset();
        assert_eq!(backoff.pause(), Backoff::SHORTEST);
    }
}
