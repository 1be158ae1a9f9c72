//! Helpers of several crates' tests: an executor that runs nothing, and the task of a service.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use swarm::task_spec::Runtime;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::sync::watch;

use crate::executor::{Executor, MakeExecutor, MemberName, TaskLog};
use crate::life::State;
use crate::offer::DeviceCheck;
use crate::session::assignments::Changes;
use crate::session::description::NodeFacts;
use crate::session::reports::Reports;

/// An executor that records the changes it is given, and runs no task.
#[derive(Debug, Default)]
pub struct IdleExecutor {
    /// The facts about the node.
    pub facts: watch::Sender<NodeFacts>,
    /// The changes, in their order.
    pub changes: Mutex<Vec<Changes>>,
    /// The logs of its tasks.
    pub logs: Mutex<Vec<TaskLog>>,
    /// Conclusion about the managers' check of devices.
    pub device_check: watch::Sender<Option<DeviceCheck>>,
}

impl IdleExecutor {
    /// The executor of a node with these facts.
    #[must_use]
    pub fn new(facts: NodeFacts) -> Self {
        Self {
            facts: watch::Sender::new(facts),
            ..Self::default()
        }
    }
}

#[async_trait]
impl Executor for IdleExecutor {
    fn serve(&self, _: &MemberName) {}

    fn facts(&self) -> watch::Receiver<NodeFacts> {
        self.facts.subscribe()
    }

    fn resume_device_check(&self, kept: DeviceCheck) {
        self.device_check.send_replace(Some(kept));
    }

    fn device_check(&self) -> watch::Receiver<Option<DeviceCheck>> {
        self.device_check.subscribe()
    }

    async fn recover(&self) {}

    async fn apply(&self, changes: Changes) {
        self.changes.lock().push(changes);
    }

    async fn remove_all(&self) -> switchyard_core::Result<()> {
        Ok(())
    }

    fn logs(&self) -> Vec<TaskLog> {
        self.logs.lock().clone()
    }
}

/// Makes an [`IdleExecutor`] for each membership.
#[derive(Debug)]
pub struct MakeIdle;

impl MakeExecutor for MakeIdle {
    fn make(&self, _: Arc<Reports>) -> Arc<dyn Executor> {
        Arc::new(IdleExecutor::default())
    }
}

/// A task of the service `web` with this container, assigned to run.
#[must_use]
pub fn service_task(id: &str, container: swarm::ContainerSpec) -> swarm::Task {
    let runtime = Some(Runtime::Container(Box::new(container)));
    swarm::Task {
        id: id.to_owned(),
        spec: Some(swarm::TaskSpec {
            runtime,
            ..Default::default()
        }),
        service_id: "service1".into(),
        slot: 3,
        service_annotations: Some(swarm::Annotations {
            name: "web".into(),
            ..Default::default()
        }),
        status: Some(swarm::TaskStatus {
            state: State::Assigned.to_wire().into(),
            ..Default::default()
        }),
        desired_state: State::Running.to_wire().into(),
        ..Default::default()
    }
}
