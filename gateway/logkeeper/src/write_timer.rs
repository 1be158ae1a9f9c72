//! The times that writes to the logs of a file system took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::protocol::{WriteBucket, WriteTimes};

/// The bounds of the times by which writes are counted, in milliseconds.
const BOUNDS_MS: [u64; 9] = [1, 5, 20, 100, 250, 500, 1000, 2000, 10_000];

/// Counts writes by their time. Never blocks.
#[derive(Debug, Default)]
pub(crate) struct WriteTimer {
    count: AtomicU64,
    total_us: AtomicU64,
    /// Writes by the lowest bound that they did not exceed.
    by_bound: [AtomicU64; BOUNDS_MS.len()],
}

// === impl WriteTimer ===

impl WriteTimer {
    /// Counts a write.
    pub(crate) fn add(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.total_us.fetch_add(us, Ordering::Relaxed);
        let bound = BOUNDS_MS.iter().position(|bound| us <= bound * 1000);
        if let Some(counter) = bound.and_then(|bound| self.by_bound.get(bound)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The writes so far.
    pub(crate) fn times(&self) -> WriteTimes {
        let mut below = 0;
        let buckets = BOUNDS_MS.iter().zip(&self.by_bound);
        let buckets = buckets.map(|(bound, counter)| {
            below += counter.load(Ordering::Relaxed);
            WriteBucket {
                within_ms: *bound,
                count: below,
            }
        });
        let buckets: Vec<_> = buckets.collect();
        WriteTimes {
            // One that is being counted may be in a bucket already.
            count: self.count.load(Ordering::Relaxed).max(below),
            total_us: self.total_us.load(Ordering::Relaxed),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_within_the_bounds_that_they_did_not_exceed() {
        let timer = WriteTimer::default();
        for ms in [0, 1, 30, 1900, 60_000] {
            timer.add(Duration::from_millis(ms));
        }
        let times = timer.times();
        assert_eq!((times.count, times.total_us), (5, 61_931_000));
        let counts: Vec<_> = times
            .buckets
            .iter()
            .map(|bucket| (bucket.within_ms, bucket.count))
            .collect();
        assert_eq!(
            counts,
            [
                (1, 2),
                (5, 2),
                (20, 2),
                (100, 3),
                (250, 3),
                (500, 3),
                (1000, 3),
                (2000, 4),
                (10_000, 4)
            ]
        );
    }
}
