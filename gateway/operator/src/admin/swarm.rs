//! The pages for the node's part in a Docker swarm, on the unix socket only.
//!
//! The token of a join comes in the body of the request, so that the daemon opens no file that a client names. It is
//! in no answer, log or audit line.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Limited};
use switchyard_operator_api::SwarmJoin;
use tokio::time::timeout;

use super::answers::{failed, json, json_with, text};
use super::host::JOIN_PATH;
use crate::control::SwarmControl;
use crate::node::Node;

/// The largest body of a join, in bytes.
const BODY_MAX: usize = 16 << 10;

/// Time for which an answer waits for the end of a join or leave. After that it says that the work continues.
const WAIT: Duration = Duration::from_secs(20);

/// The state of the swarm's pages.
#[derive(Clone)]
struct SwarmPages {
    node: Arc<Node>,
}

pub(super) fn routes<S>(node: Arc<Node>) -> Router<S> {
    Router::new()
        .route("/v1/swarm", get(status).delete(leave))
        .route(JOIN_PATH, post(join))
        .with_state(SwarmPages { node })
}

/// Reason why a join is not begun.
type Refusal = (StatusCode, String);

async fn status(State(pages): State<SwarmPages>) -> Response {
    match swarm(&pages) {
        Ok(swarm) => json(&swarm.view()),
        Err((status, why)) => text(status, format!("{why}\n")),
    }
}

async fn join(State(pages): State<SwarmPages>, request: Request) -> Response {
    let begun = async {
        let swarm = swarm(&pages)?;
        let body = Limited::new(request.into_body(), BODY_MAX)
            .collect()
            .await
            .map_err(|_| {
                let why = format!("the body cannot be read, or has more than {BODY_MAX} bytes");
                (StatusCode::PAYLOAD_TOO_LARGE, why)
            })?;
        Ok((swarm, parse(&body.to_bytes())?))
    };
    match begun.await {
        Ok((swarm, request)) => answer(swarm, swarm.join(request)).await,
        Err((status, why)) => refused(status, &why),
    }
}

async fn leave(State(pages): State<SwarmPages>) -> Response {
    match swarm(&pages) {
        Ok(swarm) => answer(swarm, swarm.leave()).await,
        Err((status, why)) => refused(status, &why),
    }
}

fn swarm(pages: &SwarmPages) -> Result<&dyn SwarmControl, Refusal> {
    pages.node.swarm().ok_or_else(|| {
        let why = "this node takes part in no swarm: swarm.enabled is false in its configuration";
        (StatusCode::CONFLICT, why.to_owned())
    })
}

/// The request in a body. No refusal shows any of it.
fn parse(body: &Bytes) -> Result<SwarmJoin, Refusal> {
    serde_json::from_slice(body).map_err(|fault| {
        let why = format!(
            "the body is not {{\"token\": TOKEN, \"managers\": [HOST:PORT, ...], \"availability\": \
             active|pause|drain}} as JSON, from line {} column {} on",
            fault.line(),
            fault.column()
        );
        (StatusCode::BAD_REQUEST, why)
    })
}

/// The answer after a join or leave: the state of the node, or, after a while, that the work continues.
async fn answer(
    swarm: &dyn SwarmControl,
    work: BoxFuture<'_, switchyard_core::Result<()>>,
) -> Response {
    match timeout(WAIT, work).await {
        Ok(Ok(())) => json(&swarm.view()),
        Ok(Err(error)) => failed(&error),
        Err(_) => json_with(StatusCode::ACCEPTED, &swarm.view()),
    }
}

fn refused(status: StatusCode, why: &str) -> Response {
    text(status, format!("{why}\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use switchyard_operator_api::JoinAvailability;

    use super::*;

    const TOKEN: &str =
        "SWMTKN-1-00000000000000000000000000000000000000000000000001-0123456789abcdefghijklmno";

    #[test]
    fn body_names_token_managers_and_availability() {
        let parsed = |body: serde_json::Value| parse(&Bytes::from(body.to_string())).ok().unwrap();
        let join = parsed(json!({ "token": format!("{TOKEN}\n"), "managers": ["m1", "[::1]:7"] }));
        assert_eq!(
            (join.token.trim_end(), &join.managers[..]),
            (TOKEN, &["m1".into(), "[::1]:7".into()][..])
        );
        assert_eq!(join.availability, JoinAvailability::Active);
        let drained =
            parsed(json!({ "token": TOKEN, "managers": ["m1"], "availability": "drain" }));
        assert_eq!(drained.availability, JoinAvailability::Drain);
    }

    #[test]
    fn bodies_of_another_form_are_refused_without_being_shown() {
        for wrong in [
            json!(TOKEN),
            json!({ "token": [TOKEN], "managers": ["m1"] }),
            json!({ "token": TOKEN, "managers": TOKEN }),
            json!({ "token": TOKEN, "managers": ["m1"], TOKEN: 1 }),
            json!({ "token": TOKEN, "managers": ["m1"], "availability": TOKEN }),
            json!({ "token": TOKEN }),
            json!(null),
        ] {
            let Err((status, why)) = parse(&Bytes::from(wrong.to_string())) else {
                panic!("{wrong}")
            };
            assert_eq!(status, StatusCode::BAD_REQUEST);
            assert!(
                why.contains("\"managers\": [HOST:PORT") && !why.contains("abcdefgh"),
                "{why}"
            );
        }
    }
}
