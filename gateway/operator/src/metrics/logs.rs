//! Metrics of the logkeeper, from its own counters.

use std::time::Duration;

use prometheus::{Gauge, IntCounter, IntGauge, Registry};
use switchyard_logkeeper::protocol::Stats;

use super::families::{self, signed};

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
        let counter = |name: &str, help: &str| families::counter(registry, name, help);
        let gauge = |name: &str, help: &str| families::gauge(registry, name, help);
        let stall_age = Gauge::new(
            "switchyard_log_stall_age_seconds",
            "How long the file system that has held up logs for longest has not answered; 0 if none does.",
        )?;
        registry.register(Box::new(stall_age.clone()))?;
        Ok(Self {
            containers: gauge("switchyard_log_containers", "Containers whose output is logged.")?,
            stalled: gauge(
                "switchyard_log_stalled_file_systems",
                "File systems that do not answer and hold up the logs on them.",
            )?,
            stalled_containers: gauge(
                "switchyard_log_stalled_containers",
                "Containers whose logs are held up by a file system that does not answer.",
            )?,
            stall_age,
            stalls: counter(
                "switchyard_log_stalls_total",
                "How often a file system did not answer for seconds, and held up the logs on it.",
            )?,
            lines: counter("switchyard_log_lines_total", "Log lines written.")?,
            bytes: counter("switchyard_log_bytes_total", "Bytes of output written to logs.")?,
            dropped_lines: counter(
                "switchyard_log_dropped_lines_total",
                "Log lines that could not be written.",
            )?,
            dropped_bytes: counter(
                "switchyard_log_dropped_bytes_total",
                "Bytes of output that could not be written to logs.",
            )?,
        })
    }

    pub(super) fn set(&self, stats: &Stats) {
        self.containers.set(signed(stats.containers));
        self.stalled.set(signed(stats.stalled));
        self.stalled_containers.set(signed(stats.stalled_containers));
        self.stall_age.set(Duration::from_millis(stats.stall_age_ms).as_secs_f64());
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
