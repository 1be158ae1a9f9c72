//! Ids of operations.

use std::fmt;
use std::time::SystemTime;

/// The id of an operation, by which a line of the log, a line of the audit log and a span are joined. It is unique on
/// the node: the millisecond in which the daemon started, and the number of the operation in this run of the daemon. Two daemons may
/// start within a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperationId {
    run: u64,
    number: u64,
}

/// Distinguishes this run of the daemon from others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run(u64);

impl OperationId {
    /// The operation of this number.
    pub(super) const fn new(run: Run, number: u64) -> Self {
        Self { run: run.0, number }
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:011x}-{}", self.run, self.number)
    }
}

impl Default for Run {
    fn default() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let milliseconds = since.map_or(0, |since| since.as_millis());
        Self(u64::try_from(milliseconds).unwrap_or_default())
    }
}
