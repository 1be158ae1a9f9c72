//! What the logkeeper has done, as its own counters say.

use prometheus::{IntCounter, IntGauge, Registry};
use switchyard_logkeeper::protocol::Stats;

use super::signed;

/// The logkeeper's counters. They begin anew with each logkeeper, but for the containers that it takes up.
#[derive(Debug)]
pub(super) struct Logs {
    containers: IntGauge,
    lines: IntCounter,
    bytes: IntCounter,
    dropped_lines: IntCounter,
    dropped_bytes: IntCounter,
}

impl Logs {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let containers = IntGauge::new("switchyard_log_containers", "Containers whose output is logged.")?;
        registry.register(Box::new(containers.clone()))?;
        Ok(Self {
            containers,
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
        for (counter, count) in [
            (&self.lines, stats.totals.lines),
            (&self.bytes, stats.totals.bytes),
            (&self.dropped_lines, stats.totals.dropped_lines),
            (&self.dropped_bytes, stats.totals.dropped_bytes),
        ] {
            // The logkeeper counts; here is only shown what it says.
            counter.reset();
            counter.inc_by(count);
        }
    }
}
