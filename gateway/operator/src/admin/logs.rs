//! The page with the location of a task's log.

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use serde::Deserialize;
use tokio::time::timeout;

use super::answers::{failed, json, refused, text};
use super::pages::{COUNT_LIMIT, ListenerPages};

/// The task that is requested.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogOfTask {
    name: String,
}

pub(super) fn routes() -> Router<ListenerPages> {
    Router::new().route("/v1/tasks/log", get(log))
}

/// Answers where the log of a task is, and nothing of its content. Output never passes through the daemon (ADR 3):
/// a log has any size, its file system may hang, and a client that follows it takes as long as it likes. The
/// clients of the admin socket can open the file themselves, with their own rights.
async fn log(
    State(pages): State<ListenerPages>,
    query: Result<Query<LogOfTask>, QueryRejection>,
) -> Response {
    let name = match query {
        Ok(Query(LogOfTask { name })) => name,
        Err(error) => return refused(&error.body_text()),
    };
    match timeout(COUNT_LIMIT, pages.admin.node.task_log(&name)).await {
        Ok(Ok(view)) => json(&view),
        Ok(Err(error)) => failed(&error),
        Err(_) => text(
            StatusCode::GATEWAY_TIMEOUT,
            format!("the task was not found within {COUNT_LIMIT:?}\n"),
        ),
    }
}
