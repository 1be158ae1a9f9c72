//! Detection of how managers check whether a node still has the devices of its tasks.
//!
//! They reject a task whose devices the node does not describe any more. Those without the fix of moby#44378
//! do the opposite: they reject one whose devices it describes, whenever the node changes. No call returns
//! their version, so that it is inferred from the tasks that they reject. A wrong conclusion costs one more
//! task, whose rejection corrects it.

use std::time::{Duration, SystemTime};

use swarm::TaskState;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::time::Instant;

use crate::from_proto::named_devices;
use crate::session::description::NodeFacts;

/// A manager's message for a task that it has rejected because of its node.
const ENFORCED: &str = "assigned node no longer meets constraints";

/// Time for which a rejection counts as evidence, and for which nothing is concluded after a conclusion:
/// managers may have checked an older description.
const SETTLE: Duration = Duration::from_secs(60);

/// A conclusion about the managers' check that contradicts the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct ChangedEnforcement {
    is_inverted: bool,
}

/// The managers' check, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Enforcement {
    is_inverted: bool,
    changed: Option<Instant>,
}

// === impl Enforcement ===

impl Enforcement {
    /// Returns whether devices of tasks must not be described.
    pub(super) const fn is_inverted(&self) -> bool {
        self.is_inverted
    }

    /// Notes a task that a manager has sent while it knew these facts. Returns the conclusion, if it is a new one.
    pub(super) fn observe(
        &mut self,
        task: &swarm::Task,
        told: &NodeFacts,
    ) -> Option<ChangedEnforcement> {
        let status = task.status.as_ref()?;
        if status.state != i32::from(TaskState::Rejected) || status.err != ENFORCED {
            return None;
        }
        // The list at the beginning of a session has tasks that were rejected long ago.
        let at = status
            .timestamp
            .and_then(|at| SystemTime::try_from(at).ok());
        let is_recent = at.is_some_and(|at| age(at, SystemTime::now()) < SETTLE);
        if !is_recent
            || self
                .changed
                .is_some_and(|changed| changed.elapsed() < SETTLE)
        {
            return None;
        }
        let mut devices = named_devices(task).peekable();
        devices.peek()?;
        let is_told = devices.all(|device| {
            told.named
                .iter()
                .any(|(kind, id)| *kind == device.kind && *id == device.id)
        });
        if is_told == self.is_inverted {
            return None;
        }
        self.is_inverted = is_told;
        self.changed = Some(Instant::now());
        Some(ChangedEnforcement {
            is_inverted: is_told,
        })
    }
}

// === impl ChangedEnforcement ===

impl ChangedEnforcement {
    /// Logs it, with the task from which it was drawn. To be called without locks: a log line waits for the reader of a
    /// full pipe.
    pub(crate) fn log(self, task: &str) {
        if self.is_inverted {
            tracing::warn!(
                swarm_task = task,
                "a manager of the swarm ends tasks because their devices are there (moby#44378): devices of tasks are not offered from now on"
            );
        } else {
            tracing::info!(
                "devices of tasks are offered again: the managers of the swarm check them"
            );
        }
    }
}

/// The time between two times, whichever is the first: the clock of a manager may be ahead.
fn age(at: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(at)
        .unwrap_or_else(|before| before.duration())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(err: &str) -> swarm::Task {
        let named = swarm::NamedGenericResource {
            kind: "k".into(),
            value: "a0".into(),
        };
        let resource = Some(swarm::generic_resource::Resource::NamedResourceSpec(named));
        let status = swarm::TaskStatus {
            state: TaskState::Rejected.into(),
            err: err.to_owned(),
            timestamp: Some(SystemTime::now().into()),
            ..Default::default()
        };
        swarm::Task {
            assigned_generic_resources: vec![swarm::GenericResource { resource }],
            status: Some(status),
            ..Default::default()
        }
    }

    fn rejected_before(age: Duration) -> swarm::Task {
        let mut task = rejected(ENFORCED);
        let timestamp = Some((SystemTime::now() - age).into());
        task.status = task.status.map(|status| swarm::TaskStatus {
            timestamp,
            ..status
        });
        task
    }

    #[tokio::test(start_paused = true)]
    async fn check_of_the_managers_is_learned_from_what_they_reject() {
        let told = NodeFacts {
            named: vec![("k".to_owned(), "a0".to_owned())],
            ..NodeFacts::default()
        };
        let none = NodeFacts::default();
        let mut enforcement = Enforcement::default();
        for other in [
            rejected("no such image"),
            swarm::Task {
                assigned_generic_resources: Vec::new(),
                ..rejected(ENFORCED)
            },
            swarm::Task {
                status: None,
                ..rejected(ENFORCED)
            },
            rejected_before(SETTLE),
        ] {
            assert_eq!(enforcement.observe(&other, &told), None);
            assert!(!enforcement.is_inverted());
        }
        let changed = |is_inverted| Some(ChangedEnforcement { is_inverted });
        // It was gone, as the check should find.
        assert_eq!(enforcement.observe(&rejected(ENFORCED), &none), None);
        assert!(!enforcement.is_inverted());
        assert_eq!(
            enforcement.observe(&rejected(ENFORCED), &told),
            changed(true)
        );
        assert!(enforcement.is_inverted());
        // By the description of before.
        assert_eq!(enforcement.observe(&rejected(ENFORCED), &none), None);
        assert!(enforcement.is_inverted());
        // The managers were upgraded.
        tokio::time::advance(SETTLE).await;
        assert_eq!(
            enforcement.observe(&rejected(ENFORCED), &none),
            changed(false)
        );
        assert!(!enforcement.is_inverted());
    }
}
