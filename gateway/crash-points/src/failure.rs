//! The failure of a sequence that a test has requested.

use crate::crash_point::CrashPoint;

/// A failure that a test has requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure(pub CrashPoint);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a test made the crash point {:?} fail", self.0)
    }
}

impl std::error::Error for Failure {}
