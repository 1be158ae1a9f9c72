//! Metrics of the events: exits of tasks by cause, and records of the history.

use prometheus::{IntCounterVec, Registry};

use super::families::{counters, take_over};
use super::table;
use crate::events::HistoryCounts;

/// Counts the exits of tasks. Clones share the values.
#[derive(Debug, Clone)]
pub(crate) struct ExitMetrics(IntCounterVec);

/// Counters of the history, set for each scrape.
#[derive(Debug)]
pub(super) struct HistoryMetrics(IntCounterVec);

impl ExitMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        counters(registry, table::TASK_EXITS).map(Self)
    }

    /// Counts an exit. Both words are of closed sets.
    pub(crate) fn ended(&self, owner: &str, cause: &str) {
        self.0.with_label_values(&[owner, cause]).inc();
    }
}

impl HistoryMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        counters(registry, table::HISTORY_EVENTS).map(Self)
    }

    pub(super) fn set(&self, HistoryCounts { written, lost }: HistoryCounts) {
        for (result, count) in [("written", written), ("lost", lost)] {
            take_over(&self.0.with_label_values(&[result]), count);
        }
    }
}
