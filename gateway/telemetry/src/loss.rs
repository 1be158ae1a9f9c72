//! The log's part of a loss of lines, events or spans.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::pace::LogPace;

/// Says when a loss is logged: once when it begins and once when it is over, however much is lost meanwhile, and once a
/// minute at most. One that begins within that minute is logged if it lasts longer.
#[derive(Debug, Default)]
pub struct LossReport {
    is_reported: AtomicBool,
    pace: LogPace,
}

impl LossReport {
    /// Notes that something is lost; returns whether that is to be logged.
    pub fn begins(&self) -> bool {
        self.begins_at(Instant::now())
    }

    fn begins_at(&self, now: Instant) -> bool {
        let begins = !self.is_reported.load(Ordering::Relaxed) && self.pace.is_due_at(now);
        if begins {
            self.is_reported.store(true, Ordering::Relaxed);
        }
        begins
    }

    /// Notes that nothing waits any more; returns whether the end of a loss is to be logged.
    pub fn ends(&self) -> bool {
        self.is_reported.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn loss_is_logged_once_however_often_something_finds_room_meanwhile() {
        let loss = LossReport::default();
        let begin = Instant::now();
        assert!(!loss.ends());
        assert!(loss.begins_at(begin));
        assert!(!loss.begins_at(begin));
        assert!(loss.ends());
        assert!(!loss.ends());
        // It begins and ends in turn.
        for seconds in 1..60 {
            assert!(!loss.begins_at(begin + Duration::from_secs(seconds)));
            assert!(!loss.ends());
        }
        assert!(loss.begins_at(begin + MINUTE));
        assert!(loss.ends());
    }

    #[test]
    fn loss_that_begins_soon_after_another_is_logged_if_it_lasts() {
        let loss = LossReport::default();
        let begin = Instant::now();
        assert!(loss.begins_at(begin) && loss.ends());
        assert!(!loss.begins_at(begin + MINUTE / 2));
        assert!(loss.begins_at(begin + MINUTE));
        assert!(!loss.begins_at(begin + 2 * MINUTE));
        assert!(loss.ends());
    }
}
