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
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use switchyard_config::JoinAvailability;
use switchyard_operator_api::SwarmView;
use switchyard_swarm::{Error, JOIN_MANAGERS_MAX, JoinRequest, JoinToken, SwarmNode, check_address};
use tokio::time::timeout;

use super::answers::{json, json_with, status_of, text};
use super::host::JOIN_PATH;
use crate::reload::Reloader;
use crate::status::StatusSource;
use crate::{node, wiring};

/// The largest body of a join, in bytes.
const BODY_MAX: usize = 16 << 10;

/// How long an answer waits for the end of a join or leave. After that it says that it is still going on.
const WAIT: Duration = Duration::from_secs(20);

/// What the pages are about.
#[derive(Clone)]
struct SwarmPages {
    source: Arc<dyn StatusSource>,
    reloader: Reloader,
}

pub(super) fn routes<S>(source: Arc<dyn StatusSource>, reloader: Reloader) -> Router<S> {
    Router::new()
        .route("/v1/swarm", get(status).delete(leave))
        .route(JOIN_PATH, post(join))
        .with_state(SwarmPages { source, reloader })
}

/// The body of a join. It has no `Debug`: the token is secret.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinBody {
    /// The worker token.
    token: String,
    /// The managers, `HOST` or `HOST:PORT`.
    managers: Vec<String>,
    /// The availability to begin with: `active`, `pause` or `drain`; `active` if it is missing.
    #[serde(default)]
    availability: JoinAvailability,
}

/// Why a join is not even begun.
type Refusal = (StatusCode, String);

async fn status(State(pages): State<SwarmPages>) -> Response {
    match swarm(&pages) {
        Ok(swarm) => json(&view(swarm)),
        Err((status, why)) => text(status, format!("{why}\n")),
    }
}

async fn join(State(pages): State<SwarmPages>, request: Request) -> Response {
    let begun = async {
        let swarm = swarm(&pages)?;
        let body = Limited::new(request.into_body(), BODY_MAX).collect().await.map_err(|_| {
            let why = format!("the body cannot be read, or has more than {BODY_MAX} bytes");
            (StatusCode::PAYLOAD_TOO_LARGE, why)
        })?;
        Ok((swarm.clone(), parse(&body.to_bytes())?))
    };
    match begun.await {
        Ok((swarm, request)) => answer(&swarm, swarm.join(request)).await,
        Err((status, why)) => refused(status, &why),
    }
}

async fn leave(State(pages): State<SwarmPages>) -> Response {
    match swarm(&pages) {
        Ok(swarm) => answer(swarm, swarm.leave()).await,
        Err((status, why)) => refused(status, &why),
    }
}

fn swarm(pages: &SwarmPages) -> Result<&SwarmNode, Refusal> {
    pages.source.swarm().ok_or_else(|| {
        if pages.reloader.effective().config.swarm.enabled {
            (StatusCode::SERVICE_UNAVAILABLE, "the daemon is starting: try again".to_owned())
        } else {
            let why = "this node takes part in no swarm: swarm.enabled is false in its configuration";
            (StatusCode::CONFLICT, why.to_owned())
        }
    })
}

/// The request in a body. No refusal shows any of it but addresses.
fn parse(body: &Bytes) -> Result<JoinRequest, Refusal> {
    let bad = |why: String| (StatusCode::BAD_REQUEST, why);
    let JoinBody { token, managers, availability } = serde_json::from_slice(body).map_err(|fault| {
        bad(format!(
            "the body is not {{\"token\": TOKEN, \"managers\": [HOST:PORT, ...], \"availability\": \
             active|pause|drain}} as JSON, from line {} column {} on",
            fault.line(),
            fault.column()
        ))
    })?;
    if managers.is_empty() || managers.len() > JOIN_MANAGERS_MAX {
        let count = managers.len();
        return Err(bad(format!("{count} managers are named: 1 to {JOIN_MANAGERS_MAX} are allowed")));
    }
    for manager in &managers {
        check_address(manager).map_err(|why| {
            let shown: String = manager.chars().take(100).collect();
            bad(format!("{shown:?} is no HOST or HOST:PORT of a manager: {why}"))
        })?;
    }
    let token: JoinToken = token.parse().map_err(|error: Error| bad(error.report()))?;
    Ok(JoinRequest { managers, token, availability: wiring::proto_availability(availability) })
}

/// The answer after a join or leave: how the node is then, or, after a while, that it goes on.
async fn answer(swarm: &SwarmNode, work: impl Future<Output = Result<(), Error>>) -> Response {
    match timeout(WAIT, work).await {
        Ok(Ok(())) => json(&view(swarm)),
        Ok(Err(error)) => text(status_of(error.kind()), format!("{}\n", error.report())),
        Err(_) => json_with(StatusCode::ACCEPTED, &view(swarm)),
    }
}

fn view(swarm: &SwarmNode) -> SwarmView {
    node::swarm::view(swarm.status())
}

fn refused(status: StatusCode, why: &str) -> Response {
    text(status, format!("{why}\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TOKEN: &str =
        "SWMTKN-1-00000000000000000000000000000000000000000000000001-0123456789abcdefghijklmno";

    fn parsed(value: &serde_json::Value) -> Result<JoinRequest, String> {
        parse(&Bytes::from(value.to_string())).map_err(|(status, why)| {
            assert_eq!(status, StatusCode::BAD_REQUEST);
            assert!(!why.contains("abcdefgh"), "{why}");
            why
        })
    }

    #[test]
    fn body_names_token_managers_and_availability() {
        let request =
            parsed(&json!({ "token": format!("{TOKEN}\n"), "managers": ["m1", "[::1]:7"] })).unwrap();
        assert_eq!(request.managers, ["m1", "[::1]:7"]);
        let drained = json!({ "token": TOKEN, "managers": ["m1"], "availability": "drain" });
        assert_eq!(
            parsed(&drained).unwrap().availability,
            wiring::proto_availability(JoinAvailability::Drain)
        );
    }

    #[test]
    fn wrong_bodies_are_refused_without_being_shown() {
        for wrong in [
            json!(TOKEN),
            json!({ "token": [TOKEN], "managers": ["m1"] }),
            json!({ "token": TOKEN, "managers": TOKEN }),
            json!({ "token": TOKEN, "managers": ["m1"], TOKEN: 1 }),
            json!({ "token": TOKEN, "managers": ["m1"], "availability": TOKEN }),
            json!({ "token": TOKEN }),
            json!(null),
        ] {
            assert!(parsed(&wrong).unwrap_err().contains("\"managers\": [HOST:PORT"), "{wrong}");
        }
        assert!(parsed(&json!({ "token": "abcdefgh", "managers": ["m1"] })).unwrap_err().contains("SWMTKN"));
        for managers in [json!([]), json!(vec!["m"; 17])] {
            let why = parsed(&json!({ "token": TOKEN, "managers": managers })).unwrap_err();
            assert!(why.contains("1 to 16"), "{why}");
        }
        let why = parsed(&json!({ "token": TOKEN, "managers": ["m1", "http://m2"] })).unwrap_err();
        assert!(why.contains("http://m2"), "{why}");
    }
}
