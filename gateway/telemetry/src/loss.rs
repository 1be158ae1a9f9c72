//! The log's part of a loss of lines, events or spans.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The time between two reports of the same loss, if it ends and begins again.
const PAUSE: Duration = Duration::from_secs(60);

/// Says when a loss is logged: once when it begins and once when it is over, however much is lost meanwhile, and once a
/// minute at most.
#[derive(Debug, Default)]
pub struct LossReport(Mutex<Loss>);

#[derive(Debug, Default)]
struct Loss {
    lasts: bool,
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
        if std::mem::replace(&mut self.lasts, true) {
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
        self.lasts = false;
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
}
