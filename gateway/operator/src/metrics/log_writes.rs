//! The writes to logs, which the logkeeper counts, added up by this process: a counter falls only when the daemon restarts, and
//! then to 0.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::{Registry, proto};
use switchyard_logkeeper::protocol::{LogFileSystem, WriteBucket, WriteTimes};

use super::table;

/// The time of writes to logs, by the mount point of their file system.
#[derive(Debug, Clone)]
pub(super) struct LogWriteMetrics {
    desc: Desc,
    totals: Arc<Mutex<WriteTotals>>,
}

/// The writes of all file systems that the logkeeper reports.
#[derive(Debug, Default)]
struct WriteTotals {
    /// The process that reported last, 0 if its version does not send it; `None` before the first report: what is counted by
    /// then is not of this daemon's time.
    pid: Option<u32>,
    by_mount_point: BTreeMap<String, AddedWrites>,
}

/// The writes of one file system.
#[derive(Debug, Default)]
struct AddedWrites {
    /// The writes as the logkeeper reported them last.
    reported: WriteTimes,
    /// The writes since the daemon asked first.
    added: SummedWrites,
}

/// Numbers and times of writes.
#[derive(Debug, Default, PartialEq, Eq)]
struct SummedWrites {
    count: u64,
    total_us: u64,
    /// Numbers of writes by their bounds in milliseconds.
    within: BTreeMap<u64, u64>,
}

// === impl LogWriteMetrics ===

impl LogWriteMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metric = table::LOG_WRITE_DURATION;
        let labels = metric.labels.iter().map(|label| (*label).to_owned());
        let writes = Self {
            desc: Desc::new(
                metric.name.to_owned(),
                metric.help.to_owned(),
                labels.collect(),
                HashMap::new(),
            )?,
            totals: Arc::default(),
        };
        registry.register(Box::new(writes.clone()))?;
        Ok(writes)
    }

    /// Adds what the logkeeper, which is this process, has counted since the last time.
    pub(super) fn add(&self, pid: u32, file_systems: &[LogFileSystem]) {
        self.totals.lock().add(pid, file_systems);
    }
}

impl Collector for LogWriteMetrics {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let totals = self.totals.lock();
        let metrics = totals.by_mount_point.iter().map(|(point, writes)| {
            let mut label = proto::LabelPair::default();
            label.set_name("mountpoint".to_owned());
            label.set_value(point.clone());
            let mut metric = proto::Metric::default();
            metric.set_label(vec![label]);
            metric.set_histogram(writes.added.histogram());
            metric
        });
        let mut family = proto::MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(proto::MetricType::HISTOGRAM);
        family.set_metric(metrics.collect());
        vec![family]
    }
}

// === impl WriteTotals ===

impl WriteTotals {
    fn add(&mut self, pid: u32, file_systems: &[LogFileSystem]) {
        let former = self.pid.replace(pid);
        // Another process counts from its own start.
        let is_successor = former.is_some_and(|former| former != pid);
        let mut before = std::mem::take(&mut self.by_mount_point);
        for LogFileSystem {
            mount_point,
            writes,
            ..
        } in file_systems
        {
            let mut known = before.remove(mount_point).unwrap_or_else(|| AddedWrites {
                reported: if former.is_some() {
                    WriteTimes::default()
                } else {
                    writes.clone()
                },
                added: SummedWrites::default(),
            });
            if is_successor {
                known.reported = WriteTimes::default();
            }
            known.add(writes);
            self.by_mount_point.insert(mount_point.clone(), known);
        }
    }
}

// === impl AddedWrites ===

impl AddedWrites {
    fn add(&mut self, now: &WriteTimes) {
        // A logkeeper that has a new thread for this file system begins with 0.
        if now.count < self.reported.count {
            self.reported = WriteTimes::default();
        }
        let before = std::mem::replace(&mut self.reported, now.clone());
        self.added.count += now.count.saturating_sub(before.count);
        self.added.total_us += now.total_us.saturating_sub(before.total_us);
        let before = SummedWrites::by_bound(&before.buckets);
        for (bound, count) in SummedWrites::by_bound(&now.buckets) {
            let former = before.get(&bound).copied().unwrap_or(0);
            *self.added.within.entry(bound).or_default() += count.saturating_sub(former);
        }
    }
}

// === impl SummedWrites ===

impl SummedWrites {
    fn by_bound(buckets: &[WriteBucket]) -> BTreeMap<u64, u64> {
        buckets
            .iter()
            .map(|bucket| (bucket.within_ms, bucket.count))
            .collect()
    }

    fn histogram(&self) -> proto::Histogram {
        let buckets = self.within.iter().map(|(bound, count)| {
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(*bound as f64 / 1e3);
            bucket.set_cumulative_count(*count);
            bucket
        });
        let mut histogram = proto::Histogram::default();
        histogram.set_sample_count(self.count);
        histogram.set_sample_sum(self.total_us as f64 / 1e6);
        histogram.set_bucket(buckets.collect());
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(mount_point: &str, quick: u64, slow: u64) -> LogFileSystem {
        let bucket = |within_ms, count| WriteBucket { within_ms, count };
        LogFileSystem {
            mount_point: mount_point.to_owned(),
            writes: WriteTimes {
                count: quick + slow,
                total_us: slow * 1_900_000,
                buckets: vec![bucket(1, quick), bucket(2000, quick + slow)],
            },
            ..LogFileSystem::default()
        }
    }

    #[test]
    fn writes_are_added_up_over_restarts_of_the_logkeeper_and_begin_with_the_daemon() {
        let mut totals = WriteTotals::default();
        let mut check = |pid, reports: &[LogFileSystem], expected: &[(&str, u64, u64)]| {
            totals.add(pid, reports);
            let found = totals.by_mount_point.iter().map(|(point, writes)| {
                let added = &writes.added;
                assert_eq!(added.within.values().max(), Some(&added.count), "{added:?}");
                (point.as_str(), added.count, added.total_us / 1_900_000)
            });
            assert_eq!(found.collect::<Vec<_>>(), expected);
        };
        // It ran before the daemon.
        check(7, &[reported("/logs", 100, 7)], &[("/logs", 0, 0)]);
        check(7, &[reported("/logs", 103, 9)], &[("/logs", 5, 2)]);
        // One that was first used after the daemon had asked.
        let both = [reported("/logs", 103, 9), reported("/other", 2, 1)];
        check(7, &both, &[("/logs", 5, 2), ("/other", 3, 1)]);
        // A new thread for it; then the next logkeeper, which has written more than the one before when it is asked.
        check(7, &[reported("/logs", 1, 1)], &[("/logs", 7, 3)]);
        check(8, &[reported("/logs", 3, 2)], &[("/logs", 12, 5)]);
        check(8, &[], &[]);
    }
}
