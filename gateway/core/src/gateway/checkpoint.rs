//! Checkpoints of running tasks.

use super::{Gateway, Scope};
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::operation::OperationKind;
use crate::spec::CheckpointSpec;
use crate::table::no_task;

impl Scope {
    /// Writes the processes of a running task and the changes to its files into an archive. The task is
    /// frozen meanwhile and thawed afterwards; other operations that change the task wait. Not idempotent: a
    /// second checkpoint needs a path of its own. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run; those of
    /// [`CheckpointBackend::checkpoint_task`](crate::backend::CheckpointBackend::checkpoint_task).
    pub async fn checkpoint_task(&self, id: &str, spec: CheckpointSpec) -> Result<()> {
        let id = self.running_task(id)?.id;
        let gateway = self.gateway.clone();
        let operation = self.begin_on_task(OperationKind::Checkpoint, id);
        let work = operation.run(checkpoint_task(gateway, id, spec));
        self.gateway.run_detached(format!("checkpoint of task {id}"), work).await
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
