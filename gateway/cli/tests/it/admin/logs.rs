//! The page that tells where the log of a task is.

use http::StatusCode;
use switchyard_core::{Error, Result};
use switchyard_operator_api::{LogView, TaskLogView};

use super::Pages;

/// The only task of the source.
const NAME: &str = "shop/web (3a7c)";

pub(super) fn find(task: &str) -> Result<TaskLogView> {
    if task != NAME {
        return Err(Error::not_found(format!("task {task:?}: no id begins so")));
    }
    Ok(TaskLogView {
        id: "cd".repeat(32),
        owner: "nomad".into(),
        display_name: task.into(),
        state: "running".into(),
        is_complete: false,
        log: LogView::Plain { root: "/a".into(), dir: "alloc/logs".into(), name: "web".into() },
    })
}

#[tokio::test]
async fn place_of_a_log_is_told_on_the_unix_socket_alone() {
    let pages = Pages::serve().await;
    let (status, body) = pages.get("/v1/tasks/log?name=shop%2Fweb+(3a7c)").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let view: TaskLogView = serde_json::from_str(&body).unwrap();
    assert_eq!(view, find(NAME).unwrap());
    let (status, body) = pages.get("/v1/tasks/log?name=other").await;
    assert_eq!((status, body.as_str()), (StatusCode::NOT_FOUND, "task \"other\": no id begins so\n"));
    assert!(pages.get_tcp("/v1/tasks/log?name=shop%2Fweb+(3a7c)").await.starts_with("HTTP/1.1 404"));
}
