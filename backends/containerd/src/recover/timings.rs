//! Where the time of a recovery goes.

use std::fmt;
use std::time::{Duration, Instant};

/// The parts of a recovery, each with the time it took.
#[derive(Debug)]
pub(super) struct RecoveryTimings {
    began: Instant,
    last: Instant,
    parts: Vec<(&'static str, Duration)>,
}

impl RecoveryTimings {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self { began: now, last: now, parts: Vec::new() }
    }

    /// A part is done.
    pub(super) fn done(&mut self, part: &'static str) {
        let now = Instant::now();
        self.parts.push((part, now - self.last));
        self.last = now;
    }

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
