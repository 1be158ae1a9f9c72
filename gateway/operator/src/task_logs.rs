//! The location of a task's log.

use std::time::Duration;

use switchyard_core::Result;
use switchyard_core::gateway::Gateway;
use switchyard_core::state::TaskState;
use switchyard_logkeeper::Client;
use switchyard_logkeeper::reader::LogLocation;
use switchyard_operator_api::{LogView, TaskLogView};
use tokio::time::timeout;

use crate::find;
use crate::owners::Owners;

/// Time for the logkeeper to answer. Pages wait for 2 s.
const LOGKEEPER_LIMIT: Duration = Duration::from_secs(1);

/// Returns the location of the log of a task, which is given as `find::task` takes it.
///
/// # Errors
/// Those of `find::task`.
pub async fn find(
    gateway: &Gateway,
    owners: &Owners,
    logs: &Client,
    word: &str,
) -> Result<TaskLogView> {
    let (sandbox, task) = find::task(gateway, owners, word)?;
    let display_name = owners.names(&sandbox, Some(&task)).to_string();
    let id = task.id.to_string();
    let log = owners.log_of(&sandbox, &task);
    let is_complete = match &task.state {
        // The agent writes what the gateway has passed on.
        TaskState::Exited { .. } | TaskState::Removing { .. }
            if task.details.log_path.is_none() =>
        {
            true
        }
        TaskState::Exited { .. } | TaskState::Removing { .. } => is_complete(logs, &id).await,
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
        log: log_view(log),
    })
}

/// Returns whether all output of an exited task is in its log; `false` also if the logkeeper is late.
async fn is_complete(logs: &Client, id: &str) -> bool {
    // The client waits longer for a logkeeper that is started again, and the caller does not.
    match timeout(LOGKEEPER_LIMIT, logs.keeps(id)).await {
        Ok(Ok(is_kept)) => !is_kept,
        Ok(Err(error)) => {
            tracing::debug!(%error, task = %id, "cannot ask the logkeeper whether a log is complete");
            false
        }
        Err(_) => {
            tracing::debug!(task = %id, "the logkeeper does not answer whether a log is complete");
            false
        }
    }
}

/// The location of a log, or why there is none, for display.
fn log_view(log: std::result::Result<LogLocation, &str>) -> LogView {
    match log {
        Ok(LogLocation::Cri { root, path }) => LogView::Cri { root, path },
        Ok(LogLocation::Plain { root, dir, name }) => LogView::Plain { root, dir, name },
        Err(reason) => LogView::None {
            reason: reason.to_owned(),
        },
    }
}

/// The same for the reader of logs.
///
/// # Errors
/// Why there is none.
pub fn location(log: LogView) -> std::result::Result<LogLocation, String> {
    match log {
        LogView::Cri { root, path } => Ok(LogLocation::Cri { root, path }),
        LogView::Plain { root, dir, name } => Ok(LogLocation::Plain { root, dir, name }),
        LogView::None { reason } => Err(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn view_has_the_documented_shape() {
        let plain = LogLocation::Plain {
            root: "/a".into(),
            dir: "alloc/logs".into(),
            name: "web".into(),
        };
        let view = log_view(Ok(plain.clone()));
        let text = serde_json::to_string(&view).unwrap();
        assert_eq!(
            text,
            r#"{"format":"plain","root":"/a","dir":"alloc/logs","name":"web"}"#
        );
        assert_eq!(location(view), Ok(plain));
        let none = log_view(Err("why"));
        assert_eq!(
            serde_json::to_string(&none).unwrap(),
            r#"{"format":"none","reason":"why"}"#
        );
        assert_eq!(location(none), Err("why".to_owned()));
    }
}
