//! Metrics of the audit log.

use prometheus::{IntCounterVec, Registry};

use super::families::counters;
use super::table;
use crate::audit::AuditCounts;

#[derive(Debug)]
pub(super) struct AuditMetrics(IntCounterVec);

impl AuditMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        counters(registry, table::AUDIT_LINES).map(Self)
    }

    pub(super) fn set(&self, AuditCounts { written, lost }: AuditCounts) {
        for (result, count) in [("written", written), ("lost", lost)] {
            let counter = self.0.with_label_values(&[result]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }
}
