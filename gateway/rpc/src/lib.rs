//! The common part of gRPC servers and clients: the status of an error ([`status`]), and calls that are
//! watched to their end, from which the metrics of calls are made.
//!
//! The status of a call is in the headers of its response if it failed before it sent data, else in the
//! trailers of the body; so the body is watched to its end. If a body is dropped before its trailers, or a
//! request before its response, the caller has given up the call.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use tonic::Code;
use tracing::Span;

mod status;

pub use status::{code_of, status};

/// Receives the end of one call.
pub trait CallObserver: Send + Unpin + 'static {
    /// The call has ended, with this code. Called once.
    fn ended(self, code: Code);

    /// The span in which the body of the response is polled; none by default.
    fn span(&self) -> Span {
        Span::none()
    }
}

/// A call that has begun. If it is dropped before its end, its caller has given it up, and it ends as
/// cancelled.
pub struct Call<O: CallObserver> {
    observer: Option<O>,
}

/// The body of a response, watched for its trailers.
#[derive(Debug)]
pub struct WatchedBody<B, O: CallObserver> {
    inner: B,
    call: Call<O>,
}

/// The code's name as the gRPC specification writes it.
#[must_use]
pub const fn name_of(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

// === impl Call ===

impl<O: CallObserver> Call<O> {
    /// A call that begins now.
    pub const fn begin(observer: O) -> Self {
        Self {
            observer: Some(observer),
        }
    }

    /// Ends the call with this code, unless it has ended already.
    pub fn end(&mut self, code: Code) {
        if let Some(observer) = self.observer.take() {
            observer.ended(code);
        }
    }

    /// The response of this call, which ends the call with its status.
    pub fn watch<B>(mut self, response: Response<B>) -> Response<WatchedBody<B, O>> {
        let (parts, inner) = response.into_parts();
        if let Some(code) = code_in(&parts.headers) {
            self.end(code);
        }
        Response::from_parts(parts, WatchedBody { inner, call: self })
    }
}

impl<O: CallObserver> Drop for Call<O> {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

impl<O: CallObserver> fmt::Debug for Call<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("has_ended", &self.observer.is_none())
            .finish_non_exhaustive()
    }
}

// === impl WatchedBody ===

impl<B: Body + Unpin, O: CallObserver> Body for WatchedBody<B, O> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let span = self
            .call
            .observer
            .as_ref()
            .map_or_else(Span::none, CallObserver::span);
        let _entered = span.enter();
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.call.end(code_in(trailers).unwrap_or(Code::Unknown));
                }
            }
            // gRPC over HTTP/2: the status of a response without one is Unknown.
            Some(Err(_)) | None => self.call.end(Code::Unknown),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

fn code_in(headers: &HeaderMap) -> Option<Code> {
    headers
        .get("grpc-status")
        .map(|status| Code::from_bytes(status.as_bytes()))
}

#[cfg(test)]
mod tests;
