//! Decision whether the blobs of one pull are downloaded in ranges from a host, by what it has answered so far.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Facts that the requests of a pull to one host have shown of it.
#[derive(Debug)]
pub(super) struct RangeUse {
    /// The shortest time that a response has taken to begin, in microseconds; `u64::MAX` before the first.
    latency_micros: AtomicU64,
    /// True if the host has refused ranges, or limits the rate of requests: all else comes from it in one response each.
    forbidden: AtomicBool,
}

impl Default for RangeUse {
    fn default() -> Self {
        Self {
            latency_micros: AtomicU64::new(u64::MAX),
            forbidden: AtomicBool::new(false),
        }
    }
}

impl RangeUse {
    /// A response has begun this long after its request.
    pub(super) fn note_latency(&self, latency: Duration) {
        // The largest number stands for no response.
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX - 1);
        self.latency_micros.fetch_min(micros, Ordering::Relaxed);
    }

    /// The shortest time that a response has taken to begin; `None` before the first.
    pub(super) fn latency(&self) -> Option<Duration> {
        match self.latency_micros.load(Ordering::Relaxed) {
            u64::MAX => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    /// Returns whether blobs may be requested in ranges.
    pub(super) fn is_allowed(&self) -> bool {
        !self.forbidden.load(Ordering::Relaxed)
    }

    /// From now on each blob is requested from this host in one response.
    pub(super) fn forbid(&self) {
        self.forbidden.store(true, Ordering::Relaxed);
    }
}
