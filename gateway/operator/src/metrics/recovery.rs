//! Metrics of the daemon's recovery.

use std::time::Duration;

use prometheus::{Gauge, IntCounter, Registry};

use super::families::{counter, float_gauge};
use super::table;

/// Metrics of the recovery. Clones share the values.
#[derive(Debug, Clone)]
pub struct RecoveryMetrics {
    duration: Gauge,
    failures: IntCounter,
}

impl RecoveryMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            duration: float_gauge(registry, table::RECOVERY_DURATION)?,
            failures: counter(registry, table::RECOVERY_FAILURES)?,
        })
    }

    /// Counts a try that failed.
    pub fn failed(&self) {
        self.failures.inc();
    }

    /// Sets the time from the daemon's start until it served requests.
    pub fn served_after(&self, time: Duration) {
        self.duration.set(time.as_secs_f64());
    }
}
