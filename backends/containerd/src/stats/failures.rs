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
    /// Returns what was read of an object, if that succeeded; `log` is called with an error that is not logged yet.
    pub(super) fn noted<T, E>(
        &self,
        what: &str,
        object: impl Display,
        read: Result<T, E>,
        log: impl FnOnce(E),
    ) -> Option<T> {
        let text = || format!("{what} of {object}");
        match read {
            Ok(read) => {
                let mut logged = self.0.lock();
                if !logged.is_empty() {
                    logged.forget(&text());
                }
                Some(read)
            }
            Err(error) => {
                if self.is_new(&text()) {
                    log(error);
                }
                None
            }
        }
    }

    /// Returns whether a failure is to be logged, and notes that it is.
    fn is_new(&self, text: &str) -> bool {
        let mut logged = self.0.lock();
        if logged.is_full() {
            logged.clear();
        }
        logged.is_new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_that_fails_again_is_logged_once_for_each_object() {
        let readings = FailedReadings::default();
        let is_logged = |what: &str, object: u8, read: Result<(), ()>| {
            let mut is_logged = false;
            let noted = readings.noted(what, object, read, |()| is_logged = true);
            assert_eq!(noted, read.ok());
            is_logged
        };
        assert!(is_logged("usage", 1, Err(())));
        assert!(!is_logged("usage", 1, Err(())));
        assert!(is_logged("usage", 2, Err(())) && is_logged("metrics", 1, Err(())));
        assert!(!is_logged("usage", 1, Ok(())));
        assert!(is_logged("usage", 1, Err(())) && !is_logged("usage", 2, Err(())));
    }
}
