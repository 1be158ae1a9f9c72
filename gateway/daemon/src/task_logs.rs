//! Where the log of a task is.

use switchyard_core::Result;
use switchyard_core::gateway::Gateway;
use switchyard_core::state::TaskState;
use switchyard_logkeeper::Client;

use crate::status::{LogView, TaskLogView};
use crate::{find, wiring};

/// Where the log of a task is, which is given as [`find::task`] takes it.
///
/// # Errors
/// Those of [`find::task`].
pub(crate) async fn find(gateway: &Gateway, logs: &Client, word: &str) -> Result<TaskLogView> {
    let (sandbox, task) = find::task(gateway, word)?;
    let display_name = wiring::names(&sandbox, Some(&task)).to_string();
    let id = task.id.to_string();
    let log = wiring::log_of(&sandbox, &task);
    let is_complete = match &task.state {
        // The agent writes what the gateway has passed on.
        TaskState::Exited { .. } | TaskState::Removing { .. } if task.details.log_path.is_none() => true,
        TaskState::Exited { .. } | TaskState::Removing { .. } => match logs.keeps(&id).await {
            Ok(is_kept) => !is_kept,
            Err(error) => {
                tracing::debug!(%error, task.id = %id, "cannot ask the logkeeper whether a log is complete");
                false
            }
        },
        TaskState::Created
        | TaskState::Starting
        | TaskState::Unattended
        | TaskState::Running { .. }
        | TaskState::Stopping { .. } => false,
    };
    Ok(TaskLogView {
        id,
        owner: task.meta.owner.to_string(),
        display_name,
        state: task.state.as_str().to_owned(),
        is_complete,
        log: LogView::of(log),
    })
}
