//! Readings that fail: each has one line in the log while it does, however often it is repeated.

use std::fmt::Display;

use parking_lot::Mutex;
use switchyard_core::logged_texts::LoggedTexts;

/// The most readings that are remembered; beyond them all are forgotten, and logged again.
const READINGS_MAX: usize = 4096;

/// The readings that failed the last time.
#[derive(Debug)]
pub(crate) struct FailedReadings(Mutex<LoggedTexts>);

impl Default for FailedReadings {
    fn default() -> Self {
        Self(Mutex::new(LoggedTexts::at_most(READINGS_MAX)))
    }
}

impl FailedReadings {
    /// Notes that something of an object was read.
    pub(super) fn succeeded(&self, what: &str, object: impl Display) {
        let mut logged = self.0.lock();
        if !logged.is_empty() {
            logged.forget(&format!("{what} of {object}"));
        }
    }

    /// Notes that something of an object cannot be read; returns whether that is to be logged.
    pub(super) fn failed(&self, what: &str, object: impl Display) -> bool {
        let mut logged = self.0.lock();
        if logged.is_full() {
            logged.clear();
        }
        logged.is_new(&format!("{what} of {object}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_that_fails_again_is_logged_once_for_each_object() {
        let readings = FailedReadings::default();
        assert!(readings.failed("usage", 1));
        assert!(!readings.failed("usage", 1));
        assert!(readings.failed("usage", 2) && readings.failed("metrics", 1));
        readings.succeeded("usage", 1);
        assert!(readings.failed("usage", 1) && !readings.failed("usage", 2));
    }
}
