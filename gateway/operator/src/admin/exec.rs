//! The page that runs a command in a task, on the unix socket only, for root alone.
//!
//! Its connection is not HTTP any more after the answer: the server continues it with the work that the answer carries
//! ([`Continued`]), so that it counts as one of the listener's, and ends with it. CRI's streaming server is not used: it
//! listens on TCP, and serves whoever has the URL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::post;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use switchyard_operator_api::{EXEC_PATH, EXEC_PROTOCOL, ExecRequest};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::answers::{failed, refused, text};
use super::pages::ListenerPages;

/// The largest body of a request, in bytes: the kernel allows no longer command either.
const BODY_MAX: usize = 2 << 20;

/// Time for a command to start: the listener closes a connection whose page takes longer than 30 s.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Maximum number of sessions at a time.
pub(super) const SESSIONS_MAX: usize = 32;

/// The work on a connection after its answer. Clones are one, which is taken once.
#[derive(Clone)]
pub(super) struct Continued(Arc<Mutex<Option<BoxFuture<'static, ()>>>>);

impl fmt::Debug for Continued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Continued").finish_non_exhaustive()
    }
}

impl Continued {
    pub(super) fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(work.boxed()))))
    }

    /// Takes the work out of an answer; `None` if it has none.
    pub(super) fn take(answer: &mut Response) -> Option<BoxFuture<'static, ()>> {
        let Self(work) = answer.extensions_mut().remove::<Self>()?;
        work.lock().take()
    }
}

pub(super) fn routes() -> Router<ListenerPages> {
    let places = Arc::new(Semaphore::new(SESSIONS_MAX));
    let run = move |state: State<ListenerPages>, request: Request| {
        let place = Arc::clone(&places).try_acquire_owned();
        async move {
            let Ok(place) = place else {
                let why =
                    format!("{SESSIONS_MAX} commands of operators run already: end one of them\n");
                return text(StatusCode::SERVICE_UNAVAILABLE, why);
            };
            exec(state, request, place).await
        }
    };
    Router::new().route(EXEC_PATH, post(run))
}

async fn exec(
    State(pages): State<ListenerPages>,
    mut request: Request,
    place: OwnedSemaphorePermit,
) -> Response {
    let asked = request.headers().get(UPGRADE);
    if asked.is_none_or(|protocol| protocol.as_bytes() != EXEC_PROTOCOL.as_bytes()) {
        return refused(&format!(
            "the request must upgrade the connection to {EXEC_PROTOCOL}: `switchyard exec` does so"
        ));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let request = match parse(request.into_body()).await {
        Ok(request) => request,
        Err(why) => return refused(&why),
    };
    let session = match timeout(START_LIMIT, pages.admin.node.exec(request)).await {
        Ok(Ok(session)) => session,
        Ok(Err(error)) => return failed(&error),
        Err(_) => {
            let why = format!(
                "the command was not started within {START_LIMIT:?}: does the runtime hang? `switchyard doctor` finds out\n"
            );
            return text(StatusCode::GATEWAY_TIMEOUT, why);
        }
    };
    let work = async move {
        let _counted = place;
        match upgrade.await {
            Ok(upgraded) => session.run(TokioIo::new(upgraded)).await,
            Err(error) => {
                tracing::debug!(%error, "the client of a command has gone away before it began");
            }
        }
    };
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL));
    answer.extensions_mut().insert(Continued::new(work));
    answer
}

/// The request in a body. No refusal shows any of it: arguments may be secret.
async fn parse(body: Body) -> Result<ExecRequest, String> {
    let body = Limited::new(body, BODY_MAX)
        .collect()
        .await
        .map_err(|_| format!("the body cannot be read, or has more than {BODY_MAX} bytes"))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|fault| {
        format!(
            "the body is not {{\"task\": NAME, \"command\": [PROGRAM, ...]}} as JSON, from line {} column {} on",
            fault.line(),
            fault.column()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_taken_once_and_only_from_an_answer_that_has_some() {
        let mut plain = Response::new(Body::empty());
        assert!(Continued::take(&mut plain).is_none());
        let mut answer = Response::new(Body::empty());
        answer.extensions_mut().insert(Continued::new(async {}));
        Continued::take(&mut answer).unwrap().await;
        assert!(Continued::take(&mut answer).is_none());
    }

    #[tokio::test]
    async fn bodies_of_another_form_are_refused_without_being_shown() {
        for body in [
            "",
            "null",
            "[]",
            r#"{"task":"a"}"#,
            r#"{"task":"a","command":"hunter2"}"#,
            r#"{"task":7,"command":["hunter2"]}"#,
            r#"{"task":"a","command":["hunter2"],"size":[1]}"#,
        ] {
            let Err(why) = parse(Body::from(body)).await else {
                panic!("{body}")
            };
            assert!(
                why.contains("\"command\"") && !why.contains("hunter2"),
                "{why}"
            );
        }
        assert!(parse(Body::from(" ".repeat(BODY_MAX + 1))).await.is_err());
    }
}
