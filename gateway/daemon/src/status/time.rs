//! Times, as pages show them.

use std::time::SystemTime;

use jiff::Timestamp;

/// A time as RFC 3339; empty if it is out of range.
#[must_use]
pub fn rfc3339(at: SystemTime) -> String {
    Timestamp::try_from(at).map(|at| format!("{at:.3}")).unwrap_or_default()
}
