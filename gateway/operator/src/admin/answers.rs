//! Answers of the admin pages.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use switchyard_core::id::Owner;
use switchyard_core::{Error, ErrorKind};

/// Plain text.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// The status for an error of this kind.
pub(super) const fn status_of(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::InvalidArgument => StatusCode::BAD_REQUEST,
        ErrorKind::AlreadyExists | ErrorKind::FailedPrecondition => StatusCode::CONFLICT,
        ErrorKind::Unavailable | ErrorKind::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::ResourceExhausted => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Unauthenticated => StatusCode::FORBIDDEN,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A page of JSON.
pub(super) fn json(value: &impl Serialize) -> Response {
    json_with(StatusCode::OK, value)
}

/// A page of JSON with this status.
pub(super) fn json_with(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(mut body) => {
            body.push(b'\n');
            respond(status, "application/json", body)
        }
        Err(error) => {
            tracing::error!(%error, "a page cannot be encoded");
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the page cannot be encoded; the log says why\n".into(),
            )
        }
    }
}

/// A page of text.
pub(super) fn text(status: StatusCode, body: String) -> Response {
    respond(status, TEXT, body.into_bytes())
}

/// The refusal of a request that is not understood.
pub(super) fn refused(why: &str) -> Response {
    text(StatusCode::BAD_REQUEST, format!("{why}\n"))
}

/// The answer to a request that failed, with the reason.
pub(super) fn failed(error: &Error) -> Response {
    text(status_of(error.kind()), format!("{}\n", error.report()))
}

/// A page of this kind.
pub(super) fn respond(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (status, headers, Body::from(body)).into_response()
}

/// The owner of this name, as queries give it.
pub(super) fn owner_named(name: &str) -> Result<Owner, String> {
    Owner::parse(name)
        .ok_or_else(|| format!("{name:?} is no owner: use kubernetes, nomad, swarm or host"))
}
