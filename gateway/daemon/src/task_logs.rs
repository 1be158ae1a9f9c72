//! Finds a task by what a person calls it, and where its log is.

use std::collections::HashMap;
use std::sync::Arc;

use switchyard_core::gateway::Gateway;
use switchyard_core::id::Owner;
use switchyard_core::state::TaskState;
use switchyard_core::table::Task;
use switchyard_core::{Error, Result};
use switchyard_logkeeper::Client;

use crate::status::{LogView, TaskLogView};
use crate::wiring;

/// The longest name of a task, in bytes.
const NAME_MAX: usize = 4096;

/// How many tasks an error names.
const NAMED_MAX: usize = 5;

/// Where the log of a task is. The task is given by the beginning of its id, or by its name as lists show it; of
/// several with the same name, the newest is meant.
///
/// # Errors
/// `NotFound`, `FailedPrecondition` if several ids begin so, `InvalidArgument` for an empty or too long name,
/// `Unavailable` before recovery.
pub(crate) async fn find(gateway: &Gateway, logs: &Client, word: &str) -> Result<TaskLogView> {
    if word.is_empty() || word.len() > NAME_MAX {
        return Err(Error::invalid("task", format!("a name of {} bytes is none of a task", word.len())));
    }
    let mut all = Vec::new();
    for scope in Owner::ALL.map(|owner| gateway.scope(owner)) {
        // The tasks come first: then the sandboxes of new ones are in the list.
        let tasks = scope.tasks()?;
        let sandboxes: HashMap<_, _> =
            scope.sandboxes()?.into_iter().map(|sandbox| (sandbox.id, sandbox)).collect();
        for task in tasks {
            // The sandbox of a task that is being removed may be gone.
            if let Some(sandbox) = sandboxes.get(&task.sandbox) {
                let sandbox = Arc::clone(sandbox);
                let display_name = wiring::names(&sandbox, Some(&task)).to_string();
                all.push((task, sandbox, display_name));
            }
        }
    }
    let tasks: Vec<_> = all.iter().map(|(task, _, name)| (Arc::clone(task), name.as_str())).collect();
    let (task, sandbox, display_name) = &all[choose(&tasks, word)?];
    let id = task.id.to_string();
    let log = wiring::log_of(sandbox, task);
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
        TaskState::Created | TaskState::Starting | TaskState::Running { .. } | TaskState::Stopping { .. } => {
            false
        }
    };
    Ok(TaskLogView {
        id,
        owner: task.meta.owner.to_string(),
        display_name: display_name.clone(),
        state: task.state.as_str().to_owned(),
        is_complete,
        log: LogView::of(log),
    })
}

/// The place of the task that a word means, among tasks with their display names.
fn choose(tasks: &[(Arc<Task>, &str)], word: &str) -> Result<usize> {
    let by_id: Vec<usize> =
        (0..tasks.len()).filter(|place| tasks[*place].0.id.to_string().starts_with(word)).collect();
    if let [one] = by_id.as_slice() {
        return Ok(*one);
    }
    let is_named = |place: &usize| {
        let (task, display_name) = &tasks[*place];
        *display_name == word || task.meta.name == word
    };
    let named = (0..tasks.len()).filter(is_named).max_by_key(|place| tasks[*place].0.meta.created_at);
    match named {
        Some(newest) => Ok(newest),
        None if by_id.is_empty() => {
            let why =
                format!("task {word:?}: no id begins so, and none has this name; `switchyard ps` lists them");
            Err(Error::not_found(why))
        }
        None => {
            let ids = by_id.iter().take(NAMED_MAX);
            let named: Vec<_> =
                ids.map(|place| format!("{} ({})", tasks[*place].0.id, tasks[*place].1)).collect();
            let why = format!(
                "the ids of {} tasks begin with {word:?}: give more of one, for example of {}",
                by_id.len(),
                named.join(", ")
            );
            Err(Error::failed_precondition(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use switchyard_container_metrics::samples;
    use switchyard_core::ErrorKind;
    use switchyard_core::id::TaskId;

    use super::*;

    fn task(first: u8, name: &str, created: u64) -> Arc<Task> {
        let mut id = [7; 32];
        id[0] = first;
        let mut task = samples::task(Owner::Nomad, TaskId::from_bytes(id));
        let meta = Arc::make_mut(&mut task.meta);
        name.clone_into(&mut meta.name);
        meta.created_at = UNIX_EPOCH + Duration::from_secs(created);
        Arc::new(task)
    }

    #[test]
    fn task_is_found_by_the_beginning_of_its_id_or_by_name() {
        let tasks = [(task(0xab, "a1", 1), "web"), (task(0xac, "a2", 3), "web"), (task(0x12, "a3", 2), "ab")];
        let find = |word: &str| choose(&tasks, word);
        assert_eq!(find("ab0").unwrap(), 0);
        assert_eq!(find(&tasks[1].0.id.to_string()).unwrap(), 1);
        assert_eq!(find("web").unwrap(), 1, "the newest is meant");
        assert_eq!(find("a3").unwrap(), 2);
        let error = find("a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert!(error.to_string().contains("2 tasks begin with \"a\""), "{error}");
        assert_eq!(find("absent").unwrap_err().kind(), ErrorKind::NotFound);
    }
}
