//! Forwards calls to the daemon: they wait while it is away. Those that may be repeated are, if the daemon ends and the
//! launcher outlives it.
//!
//! ```text
//! call ─► session ─► request ─┬─ answer ───────────────────────────────────────────► agent
//!            ▲                ├─ broken connection ──────┐
//!            │                └─ error that may be due ──┴─ session ended? ─┬─ no ─► agent: that error
//!            │                   to the daemon's end                        │
//!            └───────────── next session ◄────────────────────────── yes ───┘
//! ```
//!
//! If the launcher does not outlive the session, it exits meanwhile, and nobody is answered.

use std::fs::File;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Collected, Full, Limited};
use switchyard_linux::process::ProcessId;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::Channel;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Code, Status};
use tower::{BoxError, ServiceExt};

use super::calls::{Call, refuse};
use super::delayed_error::{DelayedErrorBody, ERROR_DELAY, broken};
use super::link::{Link, SessionHandle};
use super::outputs;
use super::recovery::RecoveryGuard;
use crate::session::{CALLER_KEY, SESSION_KEY};
use crate::transport::MAX_MESSAGE;

/// Limit for the end of a session after an answer that a daemon may have given because it ends: it ends its sessions
/// first.
const DRAIN_GRACE: Duration = Duration::from_millis(250);

/// The length of the prefix of a gRPC message.
const PREFIX: usize = 5;

/// Forwards a call with its streaming body, and the answer with its trailers.
pub(super) async fn once(link: Link, call: Call) -> http::Response<Body> {
    let up = link.session().await;
    link.recovery.note_call();
    let (head, body) = call.into_parts();
    let request = http::Request::from_parts(addressed(head, &up), body);
    match up.channel.oneshot(request).await {
        Ok(response) => response.map(|body| Body::new(DelayedErrorBody::new(body))),
        Err(error) => {
            tracing::debug!(%error, "a forwarded call was interrupted");
            tokio::time::sleep(ERROR_DELAY).await;
            refuse(broken())
        }
    }
}

/// As [`repeated`]. Until the answer, the launcher outlives its sessions.
pub(super) async fn recovery(link: Link, call: Call) -> http::Response<Body> {
    let _recovering = link.recovery.recovering();
    repeated(link, call).await
}

/// As [`repeated`], for a `StartTask`: once it is repeated, the task's output stays open until the answer.
pub(super) async fn start(link: Link, call: Call) -> http::Response<Body> {
    match read(call).await {
        Ok((head, message)) => answered(link, head, message, WhileRepeated::KeepsOutput).await,
        Err(status) => refuse(status),
    }
}

/// Forwards a call, whole, and returns its whole answer; repeats it with each next daemon until one answers it.
/// Cancel-safe: the daemon learns that the agent has given the call up.
pub(super) async fn repeated(link: Link, call: Call) -> http::Response<Body> {
    match read(call).await {
        Ok((head, message)) => answered(link, head, message, WhileRepeated::Waits).await,
        Err(status) => refuse(status),
    }
}

/// Reads a call, whole.
async fn read(call: Call) -> Result<(http::request::Parts, Bytes), Status> {
    let (head, body) = call.into_parts();
    let message = Limited::new(body, PREFIX + MAX_MESSAGE).collect().await;
    let message = message.map_err(unread)?;
    Ok((head, message.to_bytes()))
}

/// Behaviour of a call until a daemon answers its repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhileRepeated {
    /// It waits.
    Waits,
    /// It keeps the output of the task that it starts open.
    KeepsOutput,
}

/// Output that is kept open. The launcher outlives its daemons meanwhile: its end would be the end of the output.
struct KeptOutput {
    _fifos: Vec<File>,
    _recovering: RecoveryGuard,
}

/// The answer of the first daemon that gives one.
async fn answered(
    link: Link,
    head: http::request::Parts,
    message: Bytes,
    while_repeated: WhileRepeated,
) -> http::Response<Body> {
    let mut kept = None;
    loop {
        if let Some(answer) = try_daemon(&link, &head, &message).await {
            return answer;
        }
        if while_repeated == WhileRepeated::KeepsOutput && kept.is_none() {
            let recovering = link.recovery.recovering();
            let request = message.get(PREFIX..).unwrap_or_default();
            kept = Some(KeptOutput {
                _fifos: outputs::keep_open(request).await,
                _recovering: recovering,
            });
        }
    }
}

/// The answer of the next daemon; `None` if its session has ended before, or instead of one.
async fn try_daemon(
    link: &Link,
    head: &http::request::Parts,
    message: &Bytes,
) -> Option<http::Response<Body>> {
    let up = link.session().await;
    link.recovery.note_call();
    let body = Body::new(Full::new(message.clone()));
    let request = http::Request::from_parts(addressed(head.clone(), &up), body);
    let answer = tokio::select! {
        answer = ask(up.channel.clone(), request) => answer,
        () = overdue(link, &up) => return None,
    };
    let patience = match &answer {
        Ok(answer) if may_be_due_to_end(answer) => DRAIN_GRACE,
        Ok(_) => Duration::ZERO,
        Err(error) => {
            tracing::debug!(%error, "a forwarded call was interrupted");
            ERROR_DELAY
        }
    };
    if !patience.is_zero() && link.ended_within(&up, patience).await {
        return None;
    }
    Some(answer.map_or_else(|_| refuse(broken()), respond))
}

/// Sends a request, and collects its answer.
async fn ask(
    channel: Channel,
    request: http::Request<Body>,
) -> Result<http::Response<Collected<Bytes>>, BoxError> {
    let (head, body) = channel.oneshot(request).await?.into_parts();
    let body = Limited::new(body, PREFIX + MAX_MESSAGE).collect().await?;
    Ok(http::Response::from_parts(head, body))
}

/// Returns when an answer is not waited for any more: the session has ended, and its daemon would have answered. The
/// next session must name the tasks of the call before the daemon takes them for dangling.
async fn overdue(link: &Link, up: &SessionHandle) {
    link.ended(up).await;
    tokio::time::sleep(ERROR_DELAY).await;
}

/// Returns whether a daemon may have given this answer because it ends: it says so, or has ended the session of the call
/// already, which is then an unmet condition.
pub(super) fn may_be_due_to_end(answer: &http::Response<Collected<Bytes>>) -> bool {
    let status = Status::from_header_map(answer.headers())
        .or_else(|| Status::from_header_map(answer.body().trailers()?));
    status
        .is_some_and(|status| matches!(status.code(), Code::Unavailable | Code::FailedPrecondition))
}

/// An answer as it came.
fn respond(answer: http::Response<Collected<Bytes>>) -> http::Response<Body> {
    answer.map(|body| {
        if body.trailers().is_some() {
            Body::new(body)
        } else {
            // One without a body ends with its headers, which have the status.
            Body::new(Full::new(body.to_bytes()))
        }
    })
}

fn unread(error: BoxError) -> Status {
    let error = switchyard_core::Error::invalid(
        "request",
        format!("it cannot be read, or has more than {MAX_MESSAGE} bytes"),
    )
    .with_source(io::Error::other(error));
    crate::status::status(&error)
}

/// The head of a call with its session and its caller.
fn addressed(mut head: http::request::Parts, up: &SessionHandle) -> http::request::Parts {
    let session: &[u8] = up.session.as_bytes();
    let session = http::HeaderValue::from_bytes(session).expect("what is metadata is a header");
    head.headers.insert(SESSION_KEY, session);
    head.headers.remove(CALLER_KEY);
    if let Some(caller) = caller(&head.extensions) {
        head.headers.insert(CALLER_KEY, caller);
    }
    head
}

/// The process at the other end of the connection; it changes with a restart of the agent.
pub(super) fn caller(extensions: &http::Extensions) -> Option<http::HeaderValue> {
    let pid = extensions.get::<UdsConnectInfo>()?.peer_cred?.pid()?;
    http::HeaderValue::try_from(ProcessId::of(pid)?.to_string()).ok()
}
