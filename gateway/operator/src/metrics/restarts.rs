//! Counters of restarts of containerd and the logkeeper.

use prometheus::{IntCounter, IntCounterVec};

/// The restarts of one process, by cause. Clones share the values.
#[derive(Debug, Clone)]
pub struct ProcessRestarts {
    /// Starts by the daemon after the process ended, hung or failed to start.
    pub failures: IntCounter,
    /// Restarts that were requested from the daemon.
    pub requests: IntCounter,
    /// Restarts of a process that the daemon does not start, by others: after a fault, or by a person or a package.
    pub by_others: IntCounter,
}

impl ProcessRestarts {
    /// Those of a part. All its series begin with 0, so that the first restart is an increase.
    pub(super) fn of(family: &IntCounterVec, part: &str) -> Self {
        let caused = |cause: &str| family.with_label_values(&[part, cause]);
        Self {
            failures: caused("failure"),
            requests: caused("request"),
            by_others: caused("other"),
        }
    }
}
