//! Durations of the parts of a recovery.

use std::fmt;
use std::time::{Duration, Instant};

/// The finished parts of a recovery, each with the time that it took.
#[derive(Debug)]
pub(super) struct RecoveryTimings {
    began: Instant,
    last: Instant,
    parts: Vec<(&'static str, Duration)>,
}

impl RecoveryTimings {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            last: now,
            parts: Vec::new(),
        }
    }

    /// Records the time since the end of the previous part, or since the beginning, for this part.
    pub(super) fn done(&mut self, part: &'static str) {
        let now = Instant::now();
        self.parts.push((part, now - self.last));
        self.last = now;
    }

    /// The time from the beginning to the end of the last part.
    pub(super) fn total(&self) -> Duration {
        self.last - self.began
    }
}

impl fmt::Display for RecoveryTimings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (part, took)) in self.parts.iter().enumerate() {
            let gap = if number == 0 { "" } else { ", " };
            write!(f, "{gap}{part} {} ms", took.as_millis())?;
        }
        Ok(())
    }
}
