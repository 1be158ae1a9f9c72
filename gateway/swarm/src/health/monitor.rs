//! Checks the health of one task for as long as it runs.

use std::time::Duration;

use switchyard_core::ErrorKind;
use tokio::time::Instant;

use super::resolve::ResolvedCheck;
use super::run::{CheckRunner, Finding};
use super::{Health, HealthState};

/// Checks one task, one command at a time.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// The id of the Swarm task, for the log.
    name: String,
    /// The id of its object in the core.
    object: String,
    check: ResolvedCheck,
    health: Health,
    clock: AgeClock,
    /// True if the last check had no result.
    is_unknown: bool,
}

/// The task that is checked.
#[derive(Debug, Clone)]
pub(crate) struct CheckedTask {
    /// Its id in the swarm.
    pub(crate) name: String,
    /// The id of its object in the core.
    pub(crate) object: String,
    /// For how long it has run.
    pub(crate) age: Duration,
}

/// Clock for the age of a task. It follows the monotonic clock, because the wall clock may be set meanwhile.
#[derive(Debug, Clone, Copy)]
struct AgeClock {
    age: Duration,
    at: Instant,
}

// === impl Monitor ===

impl Monitor {
    /// Checks a task that was not healthy yet.
    pub(crate) fn starting(task: CheckedTask, check: ResolvedCheck) -> Self {
        let health = Health::starting(check.schedule, task.age);
        Self::new(task, check, health)
    }

    /// Checks a task that an earlier daemon found healthy.
    pub(crate) fn running(task: CheckedTask, check: ResolvedCheck) -> Self {
        let health = Health::running(check.schedule, task.age, place(&task.object));
        Self::new(task, check, health)
    }

    fn new(task: CheckedTask, check: ResolvedCheck, health: Health) -> Self {
        let CheckedTask { name, object, age } = task;
        let clock = AgeClock {
            age,
            at: Instant::now(),
        };
        Self {
            name,
            object,
            check,
            health,
            clock,
            is_unknown: false,
        }
    }

    /// Returns the current state of the health.
    pub(crate) const fn state(&self) -> HealthState {
        self.health.state()
    }

    /// Checks the task until what is known changes; returns at once if it is unhealthy. Cancel-safe: a check that is cut
    /// off counts as nothing.
    pub(crate) async fn next_state(&mut self, runner: &CheckRunner) -> HealthState {
        let before = self.state();
        while self.state() == before && before != HealthState::Unhealthy {
            tokio::time::sleep(self.health.due().saturating_sub(self.clock.now())).await;
            // Others are checked first: that says nothing about this task.
            let place = runner.place().await;
            let began = self.clock.now();
            let finding = runner.run(&self.object, &self.check, place).await;
            self.health.apply(finding.result(), began, self.clock.now());
            self.log(&finding);
        }
        self.state()
    }

    fn log(&mut self, finding: &Finding) {
        let task = &self.name;
        let was_unknown =
            std::mem::replace(&mut self.is_unknown, matches!(finding, Finding::Unknown(_)));
        match finding {
            Finding::Passed => tracing::trace!(swarm_task = task, "a health check has passed"),
            Finding::Failed(why) if self.state() == HealthState::Unhealthy => {
                tracing::warn!(
                    swarm_task = task,
                    reason = why,
                    "a task is unhealthy, and is stopped"
                );
            }
            Finding::Failed(why) => {
                tracing::debug!(swarm_task = task, reason = why, "a health check has failed")
            }
            Finding::Unknown(error) => {
                let error_text = error.report();
                let is_expected = matches!(
                    error.kind(),
                    ErrorKind::Unavailable
                        | ErrorKind::Cancelled
                        | ErrorKind::NotFound
                        | ErrorKind::FailedPrecondition
                );
                if is_expected || was_unknown {
                    tracing::debug!(
                        swarm_task = task,
                        error = error_text,
                        "a health check has no result: retrying"
                    );
                } else {
                    tracing::warn!(
                        swarm_task = task,
                        error = error_text,
                        "the health of a task cannot be checked, which is no failure of the task: retrying"
                    );
                }
            }
        }
    }
}

/// A number made of an id in hexadecimal digits, whose digits are random.
fn place(object: &str) -> u16 {
    object
        .get(..4)
        .and_then(|digits| u16::from_str_radix(digits, 16).ok())
        .unwrap_or_default()
}

// === impl AgeClock ===

impl AgeClock {
    fn now(&self) -> Duration {
        self.age.saturating_add(self.at.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_made_of_the_id() {
        assert_eq!(place("ffff01"), u16::MAX);
        assert_eq!((place("00ff"), place("")), (255, 0));
    }
}
