//! Schedule of the scans for orphan shims and bundles: often after a start of the daemon and after containerd
//! has come back, when a kill may have left orphans that show only later, and rarely after many scans without
//! a suspect.

use std::time::Duration;

use crate::base::config::RecoveryConfig;

/// The shortest pause between two scans, whatever is configured.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// The pauses between scans.
#[derive(Debug)]
pub(crate) struct ScanSchedule {
    shortest: Duration,
    longest: Duration,
    /// The pause after the next scan that finds nothing.
    next: Duration,
    /// Scans that have failed in a row.
    failures: u32,
}

/// The outcome of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanOutcome {
    /// There are no suspects.
    Clean,
    /// There are suspects: the next scan decides about them.
    Suspect,
    /// The scan failed.
    Failed,
}

impl ScanSchedule {
    pub(crate) fn new(recovery: &RecoveryConfig) -> Self {
        let longest = recovery.scan_interval().max(MIN_PAUSE);
        let shortest = recovery.grace().clamp(MIN_PAUSE, longest);
        Self {
            shortest,
            longest,
            next: shortest,
            failures: 0,
        }
    }

    /// Scans often again, because containerd is back: orphans that its end has left may show from now on.
    pub(crate) const fn reset(&mut self) {
        self.next = self.shortest;
    }

    /// The pause after a scan.
    pub(crate) fn pause_after(&mut self, outcome: ScanOutcome) -> Duration {
        self.failures = if outcome == ScanOutcome::Failed {
            self.failures.saturating_add(1)
        } else {
            0
        };
        match outcome {
            ScanOutcome::Suspect => self.shortest,
            ScanOutcome::Failed => self
                .shortest
                .saturating_mul(1 << self.failures.min(10))
                .min(self.longest),
            ScanOutcome::Clean => {
                let pause = self.next;
                self.next = pause.saturating_mul(2).min(self.longest);
                pause
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(grace_milliseconds: u64, look_seconds: u64) -> ScanSchedule {
        ScanSchedule::new(&RecoveryConfig {
            grace_milliseconds,
            look_seconds,
            ..RecoveryConfig::default()
        })
    }

    fn pauses(schedule: &mut ScanSchedule, outcome: ScanOutcome, count: usize) -> Vec<u64> {
        (0..count)
            .map(|_| schedule.pause_after(outcome).as_secs())
            .collect()
    }

    #[test]
    fn the_first_looks_follow_within_seconds_and_the_later_ones_as_seldom_as_configured() {
        let mut schedule = schedule(3_000, 180);
        assert_eq!(
            pauses(&mut schedule, ScanOutcome::Clean, 9),
            [3, 6, 12, 24, 48, 96, 180, 180, 180]
        );
        schedule.reset();
        assert_eq!(pauses(&mut schedule, ScanOutcome::Clean, 3), [3, 6, 12]);
    }

    #[test]
    fn what_is_suspect_is_looked_at_again_soon_whenever_that_is() {
        let mut schedule = schedule(3_000, 180);
        pauses(&mut schedule, ScanOutcome::Clean, 9);
        assert_eq!(pauses(&mut schedule, ScanOutcome::Suspect, 2), [3, 3]);
        assert_eq!(pauses(&mut schedule, ScanOutcome::Clean, 1), [180]);
    }

    #[test]
    fn looks_that_fail_become_seldom_and_the_first_that_does_not_begins_anew() {
        let mut schedule = schedule(3_000, 180);
        assert_eq!(
            pauses(&mut schedule, ScanOutcome::Failed, 7),
            [6, 12, 24, 48, 96, 180, 180]
        );
        assert_eq!(pauses(&mut schedule, ScanOutcome::Suspect, 1), [3]);
        assert_eq!(pauses(&mut schedule, ScanOutcome::Failed, 1), [6]);
    }

    #[test]
    fn there_is_a_pause_whatever_is_configured() {
        let mut schedule = schedule(0, 0);
        for outcome in [
            ScanOutcome::Clean,
            ScanOutcome::Suspect,
            ScanOutcome::Failed,
        ] {
            assert!(schedule.pause_after(outcome) >= MIN_PAUSE, "{outcome:?}");
        }
        let mut schedule = self::schedule(60_000, 1);
        assert_eq!(pauses(&mut schedule, ScanOutcome::Clean, 2), [1, 1]);
    }
}
