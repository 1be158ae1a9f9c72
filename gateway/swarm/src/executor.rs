//! The interface to the implementation that runs the tasks of this node.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::offer::DeviceCheck;
use crate::session::assignments::Changes;
use crate::session::description::NodeFacts;
use crate::session::reports::Reports;

/// Makes executors. There is one at a time, because the work that an executor has begun continues: another
/// one is made only when [`Executor::remove_all`] has succeeded.
pub trait MakeExecutor: Send + Sync {
    /// An executor that serves no cluster yet; the statuses of its tasks go to these reports.
    fn make(&self, reports: Arc<Reports>) -> Arc<dyn Executor>;
}

/// A node of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberName {
    /// The id of the cluster.
    pub cluster: String,
    /// The id of the node.
    pub node: String,
}

/// The log of a task that was not removed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskLog {
    /// The id of the service; empty for a task without one.
    pub service_id: String,
    /// The id of the task.
    pub task_id: String,
    /// The file, in the CRI format, with its rotated files beside it; `None` if the output is kept nowhere.
    pub file: Option<PathBuf>,
    /// True if the task has ended. The last lines may not be in the log yet.
    pub has_ended: bool,
}

/// Runs tasks. Statuses go to [`Reports`](crate::Reports).
#[async_trait]
pub trait Executor: Send + Sync {
    /// From now on the tasks of this cluster are assigned, and it touches those of no other. Before the first call, it
    /// removes the tasks of every cluster.
    fn serve(&self, member: &MemberName);

    /// Receiver for the node's description. Managers receive a change within ten seconds.
    fn facts(&self) -> watch::Receiver<NodeFacts>;

    /// The managers of the cluster check devices in this way, as was concluded before the daemon's start. It is called before
    /// [`Executor::recover`], and changes nothing that was concluded since. Without an implementation, it has no effect.
    fn resume_device_check(&self, _: DeviceCheck) {}

    /// Receiver for what is concluded about the managers' check of devices, which is kept with the membership. Without
    /// an implementation, nothing is concluded.
    fn device_check(&self) -> watch::Receiver<Option<DeviceCheck>> {
        watch::Sender::new(None).subscribe()
    }

    /// Takes up the tasks of before the daemon's start. It is called once the gateway has recovered, before the first
    /// changes of a membership. Idempotent, also while tasks are worked on.
    async fn recover(&self);

    /// Takes changes over. It does not wait for tasks: the next changes come when it returns. It may be given what it
    /// has already, since each new session begins with everything. If dropped, the same changes come again.
    async fn apply(&self, changes: Changes);

    /// Ends all tasks and removes them; no changes are applied meanwhile. Idempotent. May continue if
    /// dropped.
    ///
    /// # Errors
    /// A task is left.
    async fn remove_all(&self) -> switchyard_core::Result<()>;

    /// The logs of the tasks, also of those that have ended. Without an implementation, there are none.
    fn logs(&self) -> Vec<TaskLog> {
        Vec::new()
    }

    /// Returns whether the log of an ended task is complete; `false` also if that cannot be determined.
    async fn is_log_complete(&self, log: &TaskLog) -> bool {
        log.has_ended
    }
}
