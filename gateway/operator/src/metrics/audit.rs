//! Metrics of the audit log and of the daemon's own.

use prometheus::{IntCounterVec, Registry};
use switchyard_telemetry::LogCounts;

use super::families::{counters, take_over};
use super::table;
use crate::audit::AuditCounts;

#[derive(Debug)]
pub(super) struct AuditMetrics(IntCounterVec);

#[derive(Debug)]
pub(super) struct LogLineMetrics(IntCounterVec);

impl AuditMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        counters(registry, table::AUDIT_LINES).map(Self)
    }

    pub(super) fn set(&self, AuditCounts { written, lost }: AuditCounts) {
        set_lines(&self.0, written, lost);
    }
}

impl LogLineMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        counters(registry, table::DAEMON_LOG_LINES).map(Self)
    }

    pub(super) fn set(&self, LogCounts { written, lost }: LogCounts) {
        set_lines(&self.0, written, lost);
    }
}

fn set_lines(lines: &IntCounterVec, written: u64, lost: u64) {
    for (result, count) in [("written", written), ("lost", lost)] {
        take_over(&lines.with_label_values(&[result]), count);
    }
}
