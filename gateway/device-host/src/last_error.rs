//! The last error of a plugin or of the registry, with its time.

use std::time::SystemTime;

/// The most characters of an error that are stored.
const TEXT_MAX: usize = 500;

/// The last thing that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastError {
    /// Time of the failure.
    pub at: SystemTime,
    /// The failed action, and the cause.
    pub text: String,
}

impl LastError {
    /// An error that happened just now. A long text is truncated.
    pub(crate) fn now(text: &str) -> Self {
        let text = match text.char_indices().nth(TEXT_MAX) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text.to_owned(),
        };
        Self {
            at: SystemTime::now(),
            text,
        }
    }
}
