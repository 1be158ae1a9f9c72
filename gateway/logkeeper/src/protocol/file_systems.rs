//! The file systems with logs, as the statistics have them.

use serde::{Deserialize, Serialize};

/// The longest mount point in the statistics, in characters; with the most file systems they fit into a line.
pub const MAX_MOUNT_POINT: usize = 256;

/// The most containers with full pipes in the statistics, of all file systems; with the longest ids they fit into a line.
pub const MAX_FULL_PIPES: usize = 100;

/// A file system with logs in [`Stats`](super::Stats).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogFileSystem {
    /// Its mount point: its first [`MAX_MOUNT_POINT`] characters.
    pub mount_point: String,
    /// Containers whose logs are on it.
    pub containers: u64,
    /// Containers among them whose output fills their pipes faster than it is written.
    pub full_pipes: u64,
    /// The ids of these, [`MAX_FULL_PIPES`] of all file systems at most. The first logkeepers with file systems do not send it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub full_pipe_ids: Vec<String>,
    /// Time for which it has not answered, in milliseconds; 0 if it answers.
    pub stall_age_ms: u64,
    /// The writes to logs on it that have ended, since this logkeeper first had a log there.
    pub writes: WriteTimes,
}

/// Writes by the time that they took.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WriteTimes {
    /// Number of writes.
    pub count: u64,
    /// The sum of their times, in microseconds.
    pub total_us: u64,
    /// The numbers of those that took no longer than a bound, in the order of the bounds.
    pub buckets: Vec<WriteBucket>,
}

/// The writes that took no longer than a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteBucket {
    /// The bound, in milliseconds.
    pub within_ms: u64,
    /// Number of writes.
    pub count: u64,
}

// === impl WriteTimes ===

impl WriteTimes {
    /// Adds writes that were counted by the same bounds.
    pub(crate) fn add(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.total_us = self.total_us.saturating_add(other.total_us);
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            bucket.count = bucket.count.saturating_add(more.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MAX_ID, MAX_LINE, Reply, Stats};
    use super::*;

    #[test]
    fn the_largest_statistics_fit_a_line() {
        let bucket = WriteBucket {
            within_ms: u64::MAX,
            count: u64::MAX,
        };
        let file_system = LogFileSystem {
            // Of the characters that a path may have, these take the most bytes in JSON.
            mount_point: "\u{1}".repeat(MAX_MOUNT_POINT),
            containers: u64::MAX,
            full_pipes: u64::MAX,
            full_pipe_ids: Vec::new(),
            stall_age_ms: u64::MAX,
            writes: WriteTimes {
                count: u64::MAX,
                total_us: u64::MAX,
                buckets: vec![bucket; 12],
            },
        };
        let mut file_systems = vec![file_system; 16];
        file_systems[0].full_pipe_ids = vec!["x".repeat(MAX_ID); MAX_FULL_PIPES];
        let stats = Stats {
            file_systems,
            ..Stats::default()
        };
        assert!(serde_json::to_vec(&Reply::Ok(stats)).unwrap().len() < MAX_LINE);
    }
}
