//! The pace of work that takes the longer the larger the node is, as a scan of all processes does: however long it takes, it
//! occupies a bounded share of one thread.

use std::time::{Duration, Instant};

/// The pause after each run, in multiples of its duration.
const REST: u32 = 10;

/// The pauses that may be outstanding together when a run begins: runs that are short follow each other at once. A run for
/// which more would then be outstanding waits for the end of all pauses before it.
const OUTSTANDING_MAX: Duration = Duration::from_secs(1);

/// The pace of one kind of work. Pure: whoever does the work tells the time.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// The end of the pauses after all runs so far.
    rested: Option<Instant>,
    /// The pause after the last run: the next one is expected to take as long.
    pause: Duration,
}

impl Pace {
    /// The time until the next run may begin.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        let outstanding = self.rested.map_or(Duration::ZERO, |rested| {
            rested.saturating_duration_since(now)
        });
        outstanding.saturating_sub(OUTSTANDING_MAX.saturating_sub(self.pause))
    }

    /// Notes a run that has just ended.
    pub(crate) fn ran(&mut self, took: Duration, ended: Instant) {
        self.pause = took.saturating_mul(REST);
        let before = self.rested.map_or(ended, |rested| rested.max(ended));
        self.rested = before.checked_add(self.pause).or(Some(before));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn long_runs_have_pauses_of_ten_times_their_duration_and_short_ones_follow_at_once() {
        let cases: [(&[u64], u64); 8] = [
            (&[], 0),
            (&[4_000], 40_000),
            (&[100], 1_000),
            // Half a second is outstanding, and half a second more after the next one.
            (&[50], 0),
            (&[50, 50], 500),
            (&[5; 10], 0),
            (&[5; 30], 550),
            // A run that was longer than those before it.
            (&[5, 5, 1_000], 10_100),
        ];
        for (runs, expected) in cases {
            let now = Instant::now();
            let mut pace = Pace::default();
            for run in runs {
                pace.ran(ms(*run), now);
            }
            assert_eq!(pace.wait(now), ms(expected), "{runs:?}");
            assert_eq!(pace.wait(now + ms(expected)), Duration::ZERO, "{runs:?}");
        }
    }

    proptest! {
        #[test]
        fn share_of_the_time_is_bounded(
            runs in proptest::collection::vec((0_u64..5_000, 0_u64..5_000), 0..60),
        ) {
            let start = Instant::now();
            let mut now = start;
            let mut worked = Duration::ZERO;
            let mut last = None;
            let mut pace = Pace::default();
            for (asked_after, took) in runs {
                now += ms(asked_after);
                now += pace.wait(now);
                prop_assert_eq!(pace.wait(now), Duration::ZERO);
                prop_assert!(worked * REST <= now.duration_since(start) + OUTSTANDING_MAX);
                if let Some((ended, pause)) = last
                    && pause >= OUTSTANDING_MAX
                {
                    prop_assert!(now >= ended + pause);
                }
                now += ms(took);
                worked += ms(took);
                pace.ran(ms(took), now);
                last = Some((now, ms(took) * REST));
            }
        }
    }
}
