//! Detection of how managers check whether a node still has the devices of its tasks.
//!
//! They reject a task whose devices the node does not describe any more. Those without the fix of moby#44378
//! do the opposite: they reject one whose devices it describes, whenever the node changes. No call returns
//! their version, so that it is inferred from the tasks that they reject. A wrong conclusion costs one more
//! task, whose rejection corrects it. It is kept with the membership: a daemon that began without it would lose a task at
//! each start.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use swarm::TaskState;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::from_proto::named_devices;
use crate::session::description::NodeFacts;

/// A manager's message for a task that it has rejected because of its node.
const ENFORCED: &str = "assigned node no longer meets constraints";

/// Time for which a rejection counts as evidence, and for which nothing is concluded after a conclusion, or after a
/// start with one: managers may have checked an older description.
const SETTLE: Duration = Duration::from_secs(60);

/// The way in which managers check whether a node still has the devices of its tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceCheck {
    /// They reject a task whose devices the node does not describe.
    #[default]
    Plain,
    /// They reject a task whose devices the node describes (moby#44378).
    Inverted,
}

/// The managers' check, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Enforcement {
    /// The last conclusion; `None` if there was none yet.
    learned: watch::Sender<Option<DeviceCheck>>,
    /// Time at which it was drawn, or taken over from the daemon before.
    changed: Option<Instant>,
}

// === impl Enforcement ===

impl Enforcement {
    /// Returns whether devices of tasks must not be described.
    pub(super) fn is_inverted(&self) -> bool {
        self.check() == DeviceCheck::Inverted
    }

    /// Returns a receiver for the conclusions.
    pub(super) fn learned(&self) -> watch::Receiver<Option<DeviceCheck>> {
        self.learned.subscribe()
    }

    /// Begins with the conclusion of the daemon before, unless there is one already.
    pub(super) fn resume(&mut self, kept: DeviceCheck) {
        if self.changed.is_none() {
            self.conclude(kept);
        }
    }

    /// Notes a task that a manager has sent while it knew these facts. Returns the conclusion, if it contradicts the one
    /// before.
    pub(super) fn observe(&mut self, task: &swarm::Task, told: &NodeFacts) -> Option<DeviceCheck> {
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
        let check = if is_told {
            DeviceCheck::Inverted
        } else {
            DeviceCheck::Plain
        };
        if check == self.check() {
            return None;
        }
        self.conclude(check);
        Some(check)
    }

    fn check(&self) -> DeviceCheck {
        self.learned.borrow().unwrap_or_default()
    }

    fn conclude(&mut self, check: DeviceCheck) {
        self.learned.send_replace(Some(check));
        self.changed = Some(Instant::now());
    }
}

// === impl DeviceCheck ===

impl DeviceCheck {
    /// Logs it, with the task from which it was drawn. To be called without locks: a log line waits for the reader of a
    /// full pipe.
    pub(crate) fn log(self, task: &str) {
        match self {
            Self::Inverted => tracing::warn!(
                swarm_task = task,
                "a manager of the swarm ends tasks because their devices are there (moby#44378): devices of tasks are not offered from now on"
            ),
            Self::Plain => tracing::info!(
                "devices of tasks are offered again: the managers of the swarm check them"
            ),
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
        // It was gone, as the check should find.
        assert_eq!(enforcement.observe(&rejected(ENFORCED), &none), None);
        assert!(!enforcement.is_inverted());
        assert_eq!(
            enforcement.observe(&rejected(ENFORCED), &told),
            Some(DeviceCheck::Inverted)
        );
        assert!(enforcement.is_inverted());
        // By the description of before.
        assert_eq!(enforcement.observe(&rejected(ENFORCED), &none), None);
        assert!(enforcement.is_inverted());
        // The managers were upgraded.
        tokio::time::advance(SETTLE).await;
        assert_eq!(
            enforcement.observe(&rejected(ENFORCED), &none),
            Some(DeviceCheck::Plain)
        );
        assert!(!enforcement.is_inverted());
    }

    #[tokio::test(start_paused = true)]
    async fn start_with_a_conclusion_ignores_what_was_rejected_for_an_older_description() {
        let told = NodeFacts {
            named: vec![("k".to_owned(), "a0".to_owned())],
            ..NodeFacts::default()
        };
        let none = NodeFacts::default();
        for (kept, contradiction, concluded) in [
            (DeviceCheck::Inverted, &none, DeviceCheck::Plain),
            (DeviceCheck::Plain, &told, DeviceCheck::Inverted),
        ] {
            let mut enforcement = Enforcement::default();
            let learned = enforcement.learned();
            assert_eq!(*learned.borrow(), None);
            enforcement.resume(kept);
            assert_eq!(*learned.borrow(), Some(kept));
            // The complete list of the first session has the task from which the conclusion was drawn.
            let rejected = rejected(ENFORCED);
            assert_eq!(enforcement.observe(&rejected, contradiction), None);
            assert_eq!(*learned.borrow(), Some(kept));
            tokio::time::advance(SETTLE).await;
            assert_eq!(
                enforcement.observe(&rejected, contradiction),
                Some(concluded)
            );
            // What is learned by this daemon is newer than what is kept.
            enforcement.resume(kept);
            assert_eq!(*learned.borrow(), Some(concluded));
        }
    }
}
