//! Metrics of the logkeeper, from its own counters.

use prometheus::{IntCounter, IntGauge, Registry};
use switchyard_logkeeper::protocol::Stats;

use super::signed;

/// The logkeeper's counters. They restart with each logkeeper, except for the containers that it recovers.
#[derive(Debug)]
pub(super) struct LogMetrics {
    containers: IntGauge,
    stalled: IntGauge,
    lines: IntCounter,
    bytes: IntCounter,
    dropped_lines: IntCounter,
    dropped_bytes: IntCounter,
}

impl LogMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        Ok(Self {
            containers: gauge("switchyard_log_containers", "Containers whose output is logged.")?,
            stalled: gauge(
                "switchyard_log_stalled_file_systems",
                "File systems that do not answer and hold up the logs on them.",
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
        for (counter, count) in [
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
