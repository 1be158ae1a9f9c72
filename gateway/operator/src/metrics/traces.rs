//! Metrics of the export of traces.

use prometheus::{IntCounterVec, Registry};
use switchyard_telemetry::TraceCounts;

use super::families::{counters, take_over};
use super::table;

#[derive(Debug)]
pub(super) struct TraceMetrics(IntCounterVec);

impl TraceMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        counters(registry, table::TRACE_SPANS).map(Self)
    }

    pub(super) fn set(&self, TraceCounts { sent, lost }: TraceCounts) {
        for (result, count) in [("sent", sent), ("lost", lost)] {
            take_over(&self.0.with_label_values(&[result]), count);
        }
    }
}
