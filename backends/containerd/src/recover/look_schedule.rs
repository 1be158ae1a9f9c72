//! When to look for what containerd has forgotten: often after a start and after the return of containerd, when a kill may have left
//! something that shows only later, and seldom once nothing has shown for long.

use std::time::Duration;

use crate::config::Recovery;

/// The shortest pause between two looks.
const SHORTEST: Duration = Duration::from_millis(100);

/// Gives the pauses between looks.
#[derive(Debug)]
pub(super) struct LookSchedule {
    shortest: Duration,
    longest: Duration,
    /// The pause after the next look that finds nothing.
    next: Duration,
    /// Looks that failed, one after the other.
    failures: u32,
}

/// What came of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looked {
    /// There is nothing, or nothing any more.
    Calm,
    /// Something is suspect: the next look decides.
    Suspect,
    /// It could not be looked.
    Failed,
}

impl LookSchedule {
    pub(super) fn new(recovery: &Recovery) -> Self {
        let longest = recovery.look().max(SHORTEST);
        let shortest = recovery.grace().clamp(SHORTEST, longest);
        Self { shortest, longest, next: shortest, failures: 0 }
    }

    /// Containerd is back: what its end has left may show from now on.
    pub(super) const fn begin_again(&mut self) {
        self.next = self.shortest;
    }

    /// The pause after a look.
    pub(super) fn pause_after(&mut self, looked: Looked) -> Duration {
        self.failures = if looked == Looked::Failed { self.failures.saturating_add(1) } else { 0 };
        match looked {
            Looked::Suspect => self.shortest,
            Looked::Failed => self.shortest.saturating_mul(1 << self.failures.min(10)).min(self.longest),
            Looked::Calm => {
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

    fn schedule(grace_milliseconds: u64, look_seconds: u64) -> LookSchedule {
        LookSchedule::new(&Recovery { grace_milliseconds, look_seconds, ..Recovery::default() })
    }

    fn pauses(schedule: &mut LookSchedule, looked: Looked, count: usize) -> Vec<u64> {
        (0..count).map(|_| schedule.pause_after(looked).as_secs()).collect()
    }

    #[test]
    fn the_first_looks_follow_within_seconds_and_the_later_ones_as_seldom_as_configured() {
        let mut schedule = schedule(3_000, 180);
        assert_eq!(pauses(&mut schedule, Looked::Calm, 9), [3, 6, 12, 24, 48, 96, 180, 180, 180]);
        schedule.begin_again();
        assert_eq!(pauses(&mut schedule, Looked::Calm, 3), [3, 6, 12]);
    }

    #[test]
    fn what_is_suspect_is_looked_at_again_soon_whenever_that_is() {
        let mut schedule = schedule(3_000, 180);
        pauses(&mut schedule, Looked::Calm, 9);
        assert_eq!(pauses(&mut schedule, Looked::Suspect, 2), [3, 3]);
        assert_eq!(pauses(&mut schedule, Looked::Calm, 1), [180]);
    }

    #[test]
    fn looks_that_fail_become_seldom_and_the_first_that_does_not_begins_anew() {
        let mut schedule = schedule(3_000, 180);
        assert_eq!(pauses(&mut schedule, Looked::Failed, 7), [6, 12, 24, 48, 96, 180, 180]);
        assert_eq!(pauses(&mut schedule, Looked::Suspect, 1), [3]);
        assert_eq!(pauses(&mut schedule, Looked::Failed, 1), [6]);
    }

    #[test]
    fn there_is_a_pause_whatever_is_configured() {
        let mut schedule = schedule(0, 0);
        for looked in [Looked::Calm, Looked::Suspect, Looked::Failed] {
            assert!(schedule.pause_after(looked) >= SHORTEST, "{looked:?}");
        }
        let mut schedule = self::schedule(60_000, 1);
        assert_eq!(pauses(&mut schedule, Looked::Calm, 2), [1, 1]);
    }
}
