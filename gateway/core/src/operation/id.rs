//! Ids of operations.

use std::fmt;
use std::time::SystemTime;

/// The id of an operation, by which a line of the log, a line of the audit log and a span are joined. It is unique on
/// the node: the second in which the daemon started, and the number of the operation in this run of the daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperationId {
    run: u32,
    number: u64,
}

/// Distinguishes this run of the daemon from others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run(u32);

impl OperationId {
    /// The operation of this number.
    pub(super) const fn new(run: Run, number: u64) -> Self {
        Self { run: run.0, number }
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{}", self.run, self.number)
    }
}

impl Default for Run {
    fn default() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seconds = since.map_or(0, |since| since.as_secs());
        // The lower half of it lasts until 2106.
        Self(u32::try_from(seconds & u64::from(u32::MAX)).unwrap_or_default())
    }
}
