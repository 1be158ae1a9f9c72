//! Pace at which a lasting trouble is logged.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The time between two lines about the same trouble.
const PAUSE: Duration = Duration::from_secs(60);

/// Says when a trouble that comes and goes is logged: when it begins, and then once a minute.
#[derive(Debug, Default)]
pub struct LogPace(Mutex<Option<Instant>>);

impl LogPace {
    /// Returns whether the trouble is to be logged now, and takes the turn.
    pub fn is_due(&self) -> bool {
        self.is_due_at(Instant::now())
    }

    pub(crate) fn is_due_at(&self, now: Instant) -> bool {
        let mut last = self.0.lock();
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_logged_at_first_and_once_a_minute() {
        let pace = LogPace::default();
        let begin = Instant::now();
        let due = [0, 1, 59, 60, 61, 200]
            .map(|seconds| pace.is_due_at(begin + Duration::from_secs(seconds)));
        assert_eq!(due, [true, false, false, true, false, true]);
    }
}
