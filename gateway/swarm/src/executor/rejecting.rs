//! The executor of a node that runs no tasks: each is rejected with the reason, so that nobody waits for it.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::TaskState;
use tokio::sync::watch;

use super::Executor;
use crate::session::assignments::{Change, Changes};
use crate::session::description::NodeFacts;
use crate::session::reports::Reports;

/// Rejects every task.
#[derive(Debug)]
pub struct RejectingExecutor {
    facts: watch::Sender<NodeFacts>,
    reports: Arc<Reports>,
    reason: &'static str,
}

impl RejectingExecutor {
    /// Describes the node as it is, without anything that a task could use. `reason` is what operators read.
    #[must_use]
    pub fn new(facts: NodeFacts, reports: Arc<Reports>, reason: &'static str) -> Self {
        let NodeFacts { hostname, architecture, version, labels, .. } = facts;
        let facts = NodeFacts { hostname, architecture, version, labels, ..NodeFacts::default() };
        Self { facts: watch::Sender::new(facts), reports, reason }
    }

    fn take(&self, task: &swarm::Task) {
        let status = task.status.clone().unwrap_or_default();
        if status.state >= TaskState::Complete.into() {
            return;
        }
        let is_wanted = task.desired_state < TaskState::Shutdown.into();
        let (state, message, err) = if is_wanted {
            (TaskState::Rejected, "rejected", self.reason)
        } else {
            (TaskState::Shutdown, "shutdown", "")
        };
        let status = swarm::TaskStatus {
            timestamp: Some(SystemTime::now().into()),
            state: state.into(),
            message: message.to_owned(),
            err: err.to_owned(),
            ..swarm::TaskStatus::default()
        };
        self.reports.report(&task.id, status);
    }
}

#[async_trait]
impl Executor for RejectingExecutor {
    fn facts(&self) -> watch::Receiver<NodeFacts> {
        self.facts.subscribe()
    }

    async fn recover(&self) {}

    async fn apply(&self, changes: Changes) {
        for change in changes.list {
            match change {
                Change::Task(task) => self.take(&task),
                Change::TaskGone(id) => self.reports.forget(&id),
                Change::Secret(_)
                | Change::Config(_)
                | Change::Volume(_)
                | Change::VolumeGone(_)
                | Change::SecretGone(_)
                | Change::ConfigGone(_) => {}
            }
        }
    }

    async fn remove_all(&self) -> switchyard_core::Result<()> {
        // None was ever made.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str, state: TaskState, desired: TaskState) -> Change {
        Change::Task(Arc::new(swarm::Task {
            id: id.to_owned(),
            status: Some(swarm::TaskStatus { state: state.into(), ..swarm::TaskStatus::default() }),
            desired_state: desired.into(),
            ..swarm::Task::default()
        }))
    }

    #[tokio::test]
    async fn tasks_are_rejected_with_the_reason_and_history_is_left_alone() {
        let reports = Arc::<Reports>::default();
        let facts = NodeFacts { hostname: "h".to_owned(), nano_cpus: 7, ..NodeFacts::default() };
        let executor = RejectingExecutor::new(facts, Arc::clone(&reports), "no tasks here");
        assert_eq!(
            (executor.facts().borrow().hostname.as_str(), executor.facts().borrow().nano_cpus),
            ("h", 0)
        );
        let list = vec![
            task("new", TaskState::Assigned, TaskState::Running),
            task("unwanted", TaskState::Assigned, TaskState::Shutdown),
            task("old", TaskState::Failed, TaskState::Shutdown),
            task("gone", TaskState::Assigned, TaskState::Running),
            Change::TaskGone("gone".to_owned()),
        ];
        executor.apply(Changes { is_complete: true, list }).await;
        let mut sent: Vec<_> = reports
            .next()
            .await
            .into_iter()
            .map(|update| (update.task_id, update.status.unwrap_or_default()))
            .map(|(id, status)| (id, status.state(), status.err))
            .collect();
        sent.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(
            sent,
            [
                ("new".to_owned(), TaskState::Rejected, "no tasks here".to_owned()),
                ("unwanted".to_owned(), TaskState::Shutdown, String::new()),
            ]
        );
        executor.remove_all().await.unwrap();
    }
}
