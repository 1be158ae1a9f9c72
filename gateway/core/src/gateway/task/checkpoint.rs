//! Checkpoints of running tasks.

use std::sync::Arc;

use super::Tasks;
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::spec::CheckpointSpec;
use crate::table::no_task;

/// Writes a checkpoint of a running task. Other operations that change the task wait.
pub(super) async fn checkpoint_task(
    tasks: Arc<Tasks>,
    id: TaskId,
    spec: CheckpointSpec,
) -> Result<()> {
    let _turn = tasks.lock(id).await?;
    let task = tasks.context.table.task(id).ok_or_else(|| no_task(id))?;
    if !task.state.is_running() {
        let state = task.state.as_str();
        return Err(Error::failed_precondition(format!(
            "task {id} is {state}, not running"
        )));
    }
    tasks.context.backend.checkpoint_task(id, &spec).await
}
