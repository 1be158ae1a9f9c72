//! Metrics of the configuration: how often it was reloaded, and what waits for a restart.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{IntCounterVec, IntGauge, Registry};

use super::families::{counters, gauge, signed, take_over};
use super::table;

/// The numbers of reloads, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReloadCounts {
    /// Number of reloads that took effect.
    pub applied: u64,
    /// Number of reloads that were refused.
    pub refused: u64,
    /// True if the last one took effect, or there was none.
    pub is_last_applied: bool,
    /// Time at which the files were last read and accepted.
    pub loaded_at: SystemTime,
    /// Number of changes that need more than a reload.
    pub pending: usize,
    /// Number of unknown keys and values that the daemon ignored at its start.
    pub ignored: usize,
}

#[derive(Debug)]
pub(super) struct ReloadMetrics {
    reloads: IntCounterVec,
    is_last_applied: IntGauge,
    loaded_at: IntGauge,
    pending: IntGauge,
    ignored: IntGauge,
}

impl ReloadMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            reloads: counters(registry, table::RELOADS)?,
            is_last_applied: gauge(registry, table::LAST_RELOAD)?,
            loaded_at: gauge(registry, table::LAST_LOAD)?,
            pending: gauge(registry, table::PENDING_CHANGES)?,
            ignored: gauge(registry, table::IGNORED_KEYS)?,
        })
    }

    pub(super) fn set(&self, counts: &ReloadCounts) {
        for (result, count) in [("applied", counts.applied), ("refused", counts.refused)] {
            take_over(&self.reloads.with_label_values(&[result]), count);
        }
        self.is_last_applied.set(i64::from(counts.is_last_applied));
        let loaded_at = counts
            .loaded_at
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.loaded_at.set(signed(loaded_at.as_secs()));
        for (gauge, number) in [
            (&self.pending, counts.pending),
            (&self.ignored, counts.ignored),
        ] {
            gauge.set(signed(number));
        }
    }
}
