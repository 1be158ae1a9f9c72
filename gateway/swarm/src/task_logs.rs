//! The logs of tasks, at the paths of their objects.

use switchyard_core::gateway::Scope;
use switchyard_core::object::Task;
use switchyard_core::state::TaskState;
use switchyard_logkeeper as logkeeper;

use crate::executor::TaskLog;
use crate::record::Record;

/// The logs of the tasks of a cluster; without one, of all.
pub(crate) fn list(scope: &Scope, cluster: Option<&str>) -> Vec<TaskLog> {
    // Before a recovery there are none.
    let tasks = scope.tasks().list().unwrap_or_default();
    tasks
        .iter()
        .filter_map(|task| log_of(task, cluster))
        .collect()
}

fn log_of(task: &Task, cluster: Option<&str>) -> Option<TaskLog> {
    let Record {
        cluster_id,
        service_id,
        task_id,
        ..
    } = Record::of(&task.meta);
    // Without a record nothing is known.
    if task_id.is_empty() || cluster.is_some_and(|cluster| cluster != cluster_id) {
        return None;
    }
    let has_ended = match &task.state {
        TaskState::Exited { .. } | TaskState::Removing { .. } => true,
        TaskState::Created
        | TaskState::Starting
        | TaskState::Unattended
        | TaskState::Running { .. }
        | TaskState::Stopping { .. } => false,
    };
    Some(TaskLog {
        service_id,
        task_id,
        file: task.details.log_path.clone(),
        has_ended,
    })
}

/// Returns whether an ended task's log is complete: an exit may be known first, if the logkeeper is away.
pub(crate) async fn is_complete(
    scope: &Scope,
    logkeeper: Option<&logkeeper::Client>,
    task_id: &str,
) -> bool {
    let Some(logkeeper) = logkeeper else {
        return true;
    };
    // A task that was removed meanwhile has no log any more.
    let Ok(Some(task)) = scope.tasks().named(task_id) else {
        return true;
    };
    match logkeeper.keeps(&task.id.to_string()).await {
        Ok(is_kept) => !is_kept,
        Err(error) => {
            tracing::debug!(%error, task = %task.id, "cannot ask the logkeeper whether a log is complete");
            false
        }
    }
}
