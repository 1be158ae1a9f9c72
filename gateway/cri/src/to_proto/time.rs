//! Converts times.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970; a time before 1970 or after the year 2262 is clamped.
pub(crate) fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(_) => 0,
    }
}
