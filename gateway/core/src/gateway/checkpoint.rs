//! Checkpoints of running tasks.

use super::{Gateway, Scope};
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::spec::CheckpointSpec;
use crate::table::no_task;

impl Scope {
    /// Puts a running task's processes and what it has changed of its files into an archive. The task stands still meanwhile, and
    /// goes on afterwards; what would change it has its turn then. Not idempotent: a second one needs a name of its own. Cancel-safe:
    /// the work goes on.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run; those of
    /// [`Backend::checkpoint_task`](crate::backend::Backend::checkpoint_task).
    pub async fn checkpoint_task(&self, id: &str, spec: CheckpointSpec) -> Result<()> {
        let id = self.running_task(id)?.id;
        let gateway = self.gateway.clone();
        self.gateway
            .run_detached(format!("checkpoint of task {id}"), checkpoint_task(gateway, id, spec))
            .await
    }
}

async fn checkpoint_task(gateway: Gateway, id: TaskId, spec: CheckpointSpec) -> Result<()> {
    let _turn = gateway.lock_task(id).await?;
    let task = gateway.shared.table.task(id).ok_or_else(|| no_task(id))?;
    if !task.state.is_running() {
        let state = task.state.as_str();
        return Err(Error::failed_precondition(format!("task {id} is {state}, not running")));
    }
    gateway.shared.backend.checkpoint_task(id, &spec).await
}
