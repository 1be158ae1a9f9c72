//! Metrics of the logkeeper: gauges from its latest answer, and counters that add up what its processes count. They begin with 0
//! when the daemon does: a counter that took over the logkeeper's own would fall with each restart of that, to a number that
//! Prometheus takes for an increase.

use std::time::Duration;

use prometheus::{Gauge, GaugeVec, IntCounter, IntGauge, IntGaugeVec, Registry};
use switchyard_linux::process::ProcessId;
use switchyard_logkeeper::protocol::{Counters, LogFileSystem, Stats};

use super::families::{counter, float_gauge, float_gauges, gauge, gauges, signed};
use super::log_writes::LogWriteMetrics;
use super::table;

/// Counts of one process of the logkeeper.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct LogCounts {
    /// The process; 0 of a version that does not report it.
    pid: u32,
    totals: Counters,
    stalls: u64,
}

/// Gauges of the logkeeper, and counters of all its processes since the daemon started.
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
    writes: LogWriteMetrics,
    full_pipes: IntGaugeVec,
    stalled_by_mount_point: GaugeVec,
    /// The latest answer; `None` before the first.
    latest: Option<LogCounts>,
}

// === impl LogCounts ===

impl LogCounts {
    const fn of(stats: &Stats) -> Self {
        Self {
            pid: stats.pid,
            totals: stats.totals,
            stalls: stats.stalls,
        }
    }

    /// The increase since the latest answer. Pure.
    fn since(self, latest: Option<Self>) -> Self {
        let Some(latest) = latest else {
            // A former daemon has counted it.
            return Self::default();
        };
        if self.pid != latest.pid && self.pid != 0 {
            // Another process, which counts from its own start.
            return self;
        }
        let is_successor = self.pid != latest.pid || self.is_below(latest);
        if is_successor && self.pid == 0 {
            // A process of a former version has taken over counters of its predecessor: how much is new is not known.
            return Self::default();
        }
        Self {
            pid: self.pid,
            totals: self.totals.since(latest.totals),
            stalls: self.stalls.saturating_sub(latest.stalls),
        }
    }

    const fn is_below(self, other: Self) -> bool {
        self.totals.lines < other.totals.lines
            || self.totals.bytes < other.totals.bytes
            || self.totals.dropped_lines < other.totals.dropped_lines
            || self.totals.dropped_bytes < other.totals.dropped_bytes
            || self.stalls < other.stalls
    }
}

// === impl LogMetrics ===

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
            writes: LogWriteMetrics::register(registry)?,
            full_pipes: gauges(registry, table::LOG_FULL_PIPES)?,
            stalled_by_mount_point: float_gauges(registry, table::LOG_FILE_SYSTEM_STALLED)?,
            latest: None,
        })
    }

    pub(super) fn set(&mut self, stats: &Stats) {
        self.containers.set(signed(stats.containers));
        self.stalled.set(signed(stats.stalled));
        self.stalled_containers
            .set(signed(stats.stalled_containers));
        self.stall_age
            .set(Duration::from_millis(stats.stall_age_ms).as_secs_f64());
        let now = LogCounts::of(stats);
        // One that the daemon has started, or that started beside it, has counted nothing for a former daemon.
        let begins_with_us = self.latest.is_none() && has_started_after_daemon(now.pid);
        let latest = begins_with_us.then(LogCounts::default).or(self.latest);
        let LogCounts {
            pid: _,
            totals,
            stalls,
        } = now.since(latest);
        self.latest = Some(now);
        for (counter, count) in [
            (&self.stalls, stalls),
            (&self.lines, totals.lines),
            (&self.bytes, totals.bytes),
            (&self.dropped_lines, totals.dropped_lines),
            (&self.dropped_bytes, totals.dropped_bytes),
        ] {
            counter.inc_by(count);
        }
        self.set_file_systems(stats);
    }

    /// Removes what is known of file systems at the moment, since the logkeeper does not answer.
    pub(super) fn forget_file_systems(&self) {
        self.full_pipes.reset();
        self.stalled_by_mount_point.reset();
    }

    fn set_file_systems(&self, stats: &Stats) {
        self.writes.add(stats.pid, &stats.file_systems);
        self.forget_file_systems();
        for LogFileSystem {
            mount_point,
            full_pipes,
            stall_age_ms,
            ..
        } in &stats.file_systems
        {
            let labels = [mount_point.as_str()];
            self.full_pipes
                .with_label_values(&labels)
                .set(signed(*full_pipes));
            let age = Duration::from_millis(*stall_age_ms).as_secs_f64();
            self.stalled_by_mount_point
                .with_label_values(&labels)
                .set(age);
        }
        if stats.file_systems.is_empty() {
            // An older logkeeper names none.
            let age = Duration::from_millis(stats.stall_age_ms).as_secs_f64();
            self.stalled_by_mount_point
                .with_label_values(&["unknown"])
                .set(age);
        }
    }
}

/// Returns whether a process of this node has started after this one.
fn has_started_after_daemon(pid: u32) -> bool {
    let started = |pid: u32| {
        let process = i32::try_from(pid).ok().and_then(ProcessId::of)?;
        Some(process.started)
    };
    match (started(pid), started(std::process::id())) {
        (Some(other), Some(own)) => other >= own,
        (None, _) | (_, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pid: u32, dropped_lines: u64) -> LogCounts {
        let totals = Counters {
            dropped_lines,
            ..Counters::default()
        };
        LogCounts {
            pid,
            totals,
            stalls: 0,
        }
    }

    #[test]
    fn processes_of_the_logkeeper_are_added_up_and_nothing_is_counted_twice() {
        for (latest, now, expected) in [
            // The daemon has started.
            (None, counts(7, 900), 0),
            (None, counts(0, 900), 0),
            (Some(counts(7, 900)), counts(7, 905), 5),
            (Some(counts(7, 900)), counts(7, 900), 0),
            // The logkeeper has started again, and counts from 0.
            (Some(counts(7, 900)), counts(8, 3), 3),
            // One of a former version: it has taken over what its predecessor counted of live containers.
            (Some(counts(0, 900)), counts(0, 400), 0),
            (Some(counts(0, 900)), counts(0, 905), 5),
            (Some(counts(7, 900)), counts(0, 905), 0),
            (Some(counts(0, 900)), counts(8, 3), 3),
        ] {
            assert_eq!(
                now.since(latest).totals.dropped_lines,
                expected,
                "{latest:?} {now:?}"
            );
        }
    }
}
