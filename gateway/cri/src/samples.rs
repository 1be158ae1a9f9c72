//! Computes CPU usage rates from two readings: CRI wants `usage_nano_cores`, the kernel counts nanoseconds.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};

/// The shortest interval from which a rate is computed; shorter ones are dominated by clock granularity.
const SHORTEST: Duration = Duration::from_millis(500);

/// The most objects whose readings are stored.
const CAPACITY: usize = 16_384;

/// The last reading of each object, and its rate.
#[derive(Debug)]
pub(crate) struct Samples<I> {
    last: Mutex<HashMap<I, Sample>>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: SystemTime,
    total_ns: u64,
    rate: Option<u64>,
}

impl<I> Default for Samples<I> {
    fn default() -> Self {
        Self {
            last: Mutex::default(),
        }
    }
}

impl<I: Eq + Hash + Copy> Samples<I> {
    fn lock(&self) -> MutexGuard<'_, HashMap<I, Sample>> {
        // A sample is replaced as a whole.
        self.last.lock()
    }

    /// Stores a reading, and returns the CPU time in nanoseconds per second since the previous one; `None` if
    /// there is no previous one, or if the counter was reset.
    pub(crate) fn rate(&self, id: I, at: SystemTime, total_ns: u64) -> Option<u64> {
        let mut last = self.lock();
        let rate = match last.get(&id) {
            None => None,
            Some(before) => match (
                at.duration_since(before.at),
                total_ns.checked_sub(before.total_ns),
            ) {
                // The interval is too short: the previous rate is more accurate.
                (Ok(passed), Some(_)) if passed < SHORTEST => return before.rate,
                (Ok(passed), Some(used)) => {
                    let rate = u128::from(used) * 1_000_000_000 / passed.as_nanos();
                    Some(u64::try_from(rate).unwrap_or(u64::MAX))
                }
                // The clock was set back, or the counter was reset.
                (Err(_), _) | (_, None) => None,
            },
        };
        if last.len() >= CAPACITY && !last.contains_key(&id) {
            // The older half of the entries is dropped: these are not polled any more.
            let mut times: Vec<_> = last.values().map(|sample| sample.at).collect();
            times.sort_unstable();
            let middle = times[times.len() / 2];
            last.retain(|_, sample| sample.at > middle);
        }
        last.insert(id, Sample { at, total_ns, rate });
        rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn rate_needs_two_samples() {
        let samples = Samples::default();
        let begin = SystemTime::UNIX_EPOCH;
        assert_eq!(samples.rate(1, begin, 100), None);
        assert_eq!(
            samples.rate(1, begin + 2 * SECOND, 1_000_000_100),
            Some(500_000_000)
        );
        assert_eq!(samples.rate(2, begin, 0), None);
    }

    #[test]
    fn sample_too_soon_repeats_the_last_rate() {
        let samples = Samples::default();
        let begin = SystemTime::UNIX_EPOCH;
        samples.rate(1, begin, 0);
        samples.rate(1, begin + SECOND, 7_000);
        assert_eq!(samples.rate(1, begin + SECOND, 9_000), Some(7_000));
        assert_eq!(samples.rate(1, begin + 2 * SECOND, 10_000), Some(3_000));
    }

    #[test]
    fn counter_reset_or_clock_step_restarts_the_rate() {
        let samples = Samples::default();
        let begin = SystemTime::UNIX_EPOCH + 10 * SECOND;
        samples.rate(1, begin, 5_000);
        assert_eq!(samples.rate(1, begin + SECOND, 10), None);
        assert_eq!(samples.rate(1, begin - SECOND, 20), None);
        assert_eq!(samples.rate(1, begin, 30), Some(10));
    }

    #[test]
    fn sample_memory_is_bounded() {
        let samples = Samples::default();
        for n in 0..CAPACITY + 10 {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(n as u64);
            samples.rate(n, at, 0);
        }
        assert!(samples.lock().len() <= CAPACITY);
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(CAPACITY as u64 + 100);
        assert!(
            samples.rate(CAPACITY + 9, at, 91_000_000_000).is_some(),
            "the newest is kept"
        );
    }
}
