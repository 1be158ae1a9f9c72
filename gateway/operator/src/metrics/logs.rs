//! Metrics of the logkeeper, from its own counters.

use std::time::Duration;

use prometheus::{Gauge, IntCounter, IntGauge, Registry};
use switchyard_logkeeper::protocol::Stats;

use super::families::{counter, float_gauge, gauge, signed};
use super::table;

/// The logkeeper's counters. They restart with each logkeeper, except for the containers that it recovers.
#[derive(Debug)]
pub(super) struct LogMetrics {
    containers: IntGauge,
    stalled: IntGauge,
    stalled_containers: IntGauge,
    stall_age: Gauge,
    stalls: IntCounter,
    lines: IntCounter,
    bytes: IntCounter,
    dropped_lines: IntCounter,
    dropped_bytes: IntCounter,
}

impl LogMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            containers: gauge(registry, table::LOG_CONTAINERS)?,
            stalled: gauge(registry, table::LOG_STALLED_FILE_SYSTEMS)?,
            stalled_containers: gauge(registry, table::LOG_STALLED_CONTAINERS)?,
            stall_age: float_gauge(registry, table::LOG_STALL_AGE)?,
            stalls: counter(registry, table::LOG_STALLS)?,
            lines: counter(registry, table::LOG_LINES)?,
            bytes: counter(registry, table::LOG_BYTES)?,
            dropped_lines: counter(registry, table::LOG_DROPPED_LINES)?,
            dropped_bytes: counter(registry, table::LOG_DROPPED_BYTES)?,
        })
    }

    pub(super) fn set(&self, stats: &Stats) {
        self.containers.set(signed(stats.containers));
        self.stalled.set(signed(stats.stalled));
        self.stalled_containers
            .set(signed(stats.stalled_containers));
        self.stall_age
            .set(Duration::from_millis(stats.stall_age_ms).as_secs_f64());
        for (counter, count) in [
            (&self.stalls, stats.stalls),
            (&self.lines, stats.totals.lines),
            (&self.bytes, stats.totals.bytes),
            (&self.dropped_lines, stats.totals.dropped_lines),
            (&self.dropped_bytes, stats.totals.dropped_bytes),
        ] {
            // The logkeeper counts; this counter only takes over its value.
            counter.reset();
            counter.inc_by(count);
        }
    }
}
