//! The health of a running task: when its checks are due, and what follows from their results. This is pure, without
//! clock and I/O; [`monitor`] has the clock, and [`run`] the commands.
//!
//! ```text
//!  starting ─── a check passes ───► healthy ◄─┐ a check passes: failures are counted from 0 again
//!     │                               │  └────┘
//!     └─── `retries` checks fail, one after the other ───► unhealthy, for good
//! ```
//!
//! A failure within the start period does not count, until the task is healthy. A check without a result, because
//! containerd was away or the daemon was killed, counts as neither. Times are counted from the start of the task.

use std::time::Duration;

mod monitor;
mod resolve;
mod run;

pub(crate) use monitor::{CheckedTask, Monitor};
pub(crate) use resolve::{CheckSchedule, ResolvedCheck, depends_on_image, resolve};
pub(crate) use run::CheckRunner;

/// The pauses after checks without a result.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(8);

/// The health of a task, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthState {
    /// No check has passed yet.
    Starting,
    /// A check has passed.
    Healthy,
    /// Too many checks have failed, one after the other.
    Unhealthy,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckResult {
    Passed,
    Failed,
    /// The command was not run to its end, for a reason that is not the task's.
    Unknown,
}

/// The health of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    schedule: CheckSchedule,
    state: HealthState,
    /// Failures that count, since the last check that passed.
    failures: u32,
    /// The pause after the next check without a result.
    retry: Duration,
    due: Duration,
}

impl Health {
    /// The health of a task that was not healthy yet.
    pub(crate) fn starting(schedule: CheckSchedule, now: Duration) -> Self {
        Self::new(schedule, HealthState::Starting, now)
    }

    /// The health of a task that was healthy under an earlier daemon. Its first check is due within one interval:
    /// `place` says where, so that tasks with different places are not all checked at once.
    pub(crate) fn running(schedule: CheckSchedule, now: Duration, place: u16) -> Self {
        let part = schedule.interval / (u32::from(u16::MAX) + 1) * (u32::from(place) + 1);
        Self {
            due: now.saturating_add(part),
            ..Self::new(schedule, HealthState::Healthy, now)
        }
    }

    fn new(schedule: CheckSchedule, state: HealthState, now: Duration) -> Self {
        let mut health = Self {
            schedule,
            state,
            failures: 0,
            retry: RETRY_MIN,
            due: Duration::ZERO,
        };
        health.due = now.saturating_add(health.interval(now));
        health
    }

    /// Returns the time at which the next check is due.
    pub(crate) const fn due(&self) -> Duration {
        self.due
    }

    /// Returns the current state.
    pub(crate) const fn state(&self) -> HealthState {
        self.state
    }

    /// Takes over the result of a check that ran from `began` to `ended`.
    pub(crate) fn apply(&mut self, result: CheckResult, began: Duration, ended: Duration) {
        if self.state == HealthState::Unhealthy {
            return;
        }
        let pause = match result {
            CheckResult::Unknown => {
                let pause = self.retry;
                self.retry = (pause * 2).min(RETRY_MAX);
                pause
            }
            CheckResult::Passed => {
                self.state = HealthState::Healthy;
                self.failures = 0;
                self.retry = RETRY_MIN;
                self.interval(ended)
            }
            CheckResult::Failed => {
                let counts =
                    self.state == HealthState::Healthy || began >= self.schedule.start_period;
                self.failures += u32::from(counts);
                if self.failures >= self.schedule.retries.max(1) {
                    self.state = HealthState::Unhealthy;
                }
                self.retry = RETRY_MIN;
                self.interval(ended)
            }
        };
        self.due = ended.saturating_add(pause);
    }

    fn interval(&self, now: Duration) -> Duration {
        let CheckSchedule {
            interval,
            retries: _,
            start_period,
            start_interval,
        } = self.schedule;
        let is_starting = self.state == HealthState::Starting && now < start_period;
        if is_starting {
            start_interval
        } else {
            interval
        }
    }
}

#[cfg(test)]
mod tests;
