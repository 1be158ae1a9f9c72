//! The log's part of a loss of lines, events or spans.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The time between two reports of the same loss, if it ends and begins again.
const PAUSE: Duration = Duration::from_secs(60);

/// Says when a loss is logged: once when it begins and once when it is over, however much is lost meanwhile, and once a
/// minute at most. One that begins within that minute is logged if it lasts longer.
#[derive(Debug, Default)]
pub struct LossReport(Mutex<Loss>);

#[derive(Debug, Default)]
struct Loss {
    is_reported: bool,
    last_report: Option<Instant>,
}

impl LossReport {
    /// Notes that something is lost; returns whether that is to be logged.
    pub fn begins(&self) -> bool {
        self.0.lock().begins(Instant::now())
    }

    /// Notes that nothing waits any more; returns whether the end of a loss is to be logged.
    pub fn ends(&self) -> bool {
        self.0.lock().ends()
    }
}

impl Loss {
    fn begins(&mut self, now: Instant) -> bool {
        if self.is_reported {
            return false;
        }
        let is_due = |last: Instant| now.saturating_duration_since(last) >= PAUSE;
        self.is_reported = self.last_report.is_none_or(is_due);
        if self.is_reported {
            self.last_report = Some(now);
        }
        self.is_reported
    }

    fn ends(&mut self) -> bool {
        std::mem::take(&mut self.is_reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_logged_once_however_often_something_finds_room_meanwhile() {
        let mut loss = Loss::default();
        let begin = Instant::now();
        assert!(!loss.ends());
        assert!(loss.begins(begin));
        assert!(!loss.begins(begin));
        assert!(loss.ends());
        assert!(!loss.ends());
        // It begins and ends in turn.
        for seconds in 1..60 {
            assert!(!loss.begins(begin + Duration::from_secs(seconds)));
            assert!(!loss.ends());
        }
        assert!(loss.begins(begin + PAUSE));
        assert!(loss.ends());
    }

    #[test]
    fn loss_that_begins_soon_after_another_is_logged_if_it_lasts() {
        let mut loss = Loss::default();
        let begin = Instant::now();
        assert!(loss.begins(begin) && loss.ends());
        assert!(!loss.begins(begin + PAUSE / 2));
        assert!(loss.begins(begin + PAUSE));
        assert!(!loss.begins(begin + 2 * PAUSE));
        assert!(loss.ends());
    }
}
