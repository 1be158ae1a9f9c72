//! Metrics of the configuration: how often it was reloaded, and what waits for a restart.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{IntCounterVec, IntGauge, Registry};

use super::families::{self, counters, signed};

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
}

#[derive(Debug)]
pub(super) struct ReloadMetrics {
    reloads: IntCounterVec,
    is_last_applied: IntGauge,
    loaded_at: IntGauge,
    pending: IntGauge,
}

impl ReloadMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| families::gauge(registry, name, help);
        Ok(Self {
            reloads: counters(
                registry,
                "switchyard_config_reloads_total",
                "Reloads of the configuration, by result: applied or refused.",
                &["result"],
            )?,
            is_last_applied: gauge(
                "switchyard_config_last_reload_successful",
                "Whether the last reload of the configuration took effect; 1 if there was none.",
            )?,
            loaded_at: gauge(
                "switchyard_config_last_load_success_timestamp_seconds",
                "When the configuration was last read and accepted, in seconds since 1970.",
            )?,
            pending: gauge(
                "switchyard_config_pending_changes",
                "Changes of the configuration that were read and wait for something else, such as a restart.",
            )?,
        })
    }

    pub(super) fn set(&self, counts: &ReloadCounts) {
        for (result, count) in [("applied", counts.applied), ("refused", counts.refused)] {
            let counter = self.reloads.with_label_values(&[result]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
        self.is_last_applied.set(i64::from(counts.is_last_applied));
        let loaded_at = counts.loaded_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.loaded_at.set(signed(loaded_at.as_secs()));
        self.pending.set(i64::try_from(counts.pending).unwrap_or(i64::MAX));
    }
}
