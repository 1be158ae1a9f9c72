//! The tower layer of every gRPC server: opens the span of an RPC and records its metrics.
//!
//! The status of an RPC is in the headers of its response if it failed before it sent data, else in the
//! trailers of the body; so the body is observed to its end. If a body is dropped before its trailers, or a
//! request before its response, the caller has cancelled the RPC.

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Extensions, HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use parking_lot::RwLock;
use switchyard_core::operation::Caller;
use tonic::Code;
use tonic::transport::server::UdsConnectInfo;
use tower::{Layer, Service};
use tracing::{Instrument, Span};

use crate::metrics::{Metrics, RpcMetrics};

/// The maximum number of method names with a time series; it is bounded because callers choose the names.
const MAX_METHODS: usize = 256;

/// The method label of calls to unknown methods, and to methods beyond [`MAX_METHODS`].
const OTHER: &str = "other";

/// Adds spans and metrics to a gRPC server.
#[derive(Clone)]
pub struct RpcLayer {
    shared: Arc<Shared>,
}

struct Shared {
    protocol: &'static str,
    metrics: RpcMetrics,
    methods: RwLock<HashSet<Arc<str>>>,
}

impl fmt::Debug for RpcLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcLayer").field("protocol", &self.shared.protocol).finish_non_exhaustive()
    }
}

impl RpcLayer {
    /// A layer for the server of one protocol.
    #[must_use]
    pub fn new(protocol: &'static str, metrics: &Metrics) -> Self {
        let shared = Shared { protocol, metrics: metrics.rpc.clone(), methods: RwLock::default() };
        Self { shared: Arc::new(shared) }
    }
}

impl<S> Layer<S> for RpcLayer {
    type Service = RpcService<S>;

    fn layer(&self, inner: S) -> RpcService<S> {
        RpcService { inner, shared: Arc::clone(&self.shared) }
    }
}

/// A gRPC service with spans and metrics.
#[derive(Clone)]
pub struct RpcService<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S: fmt::Debug> fmt::Debug for RpcService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for RpcService<S>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<RpcBody<R>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path().trim_start_matches('/').to_owned();
        let caller = caller(self.shared.protocol, request.extensions());
        let span = tracing::info_span!("rpc", protocol = self.shared.protocol, rpc = %path);
        let mut call = Call::begin(Arc::clone(&self.shared), path, span.clone());
        let response = caller.scope(span.in_scope(|| self.inner.call(request)));
        let watched = async move {
            let Ok(response) = response.await;
            let (parts, inner) = response.into_parts();
            if let Some(code) = code_in(&parts.headers) {
                call.end(code);
            }
            Ok(Response::from_parts(parts, RpcBody { inner, call }))
        };
        Box::pin(watched.instrument(span))
    }
}

/// The body of a response, observed for its trailers.
#[derive(Debug)]
pub struct RpcBody<R> {
    inner: R,
    call: Call,
}

impl<R: Body + Unpin> Body for RpcBody<R> {
    type Data = R::Data;
    type Error = R::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<R::Data>, R::Error>>> {
        let span = self.call.span.clone();
        let _entered = span.enter();
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
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

/// One RPC, from its beginning to its end. If it is dropped before its end, the RPC was cancelled.
struct Call {
    shared: Arc<Shared>,
    path: String,
    span: Span,
    began: Instant,
    ended: bool,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("path", &self.path).field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Call {
    fn begin(shared: Arc<Shared>, path: String, span: Span) -> Self {
        shared.metrics.in_flight.with_label_values(&[shared.protocol]).inc();
        Self { shared, path, span, began: Instant::now(), ended: false }
    }

    /// Records the end; only the first one counts.
    fn end(&mut self, code: Code) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let seconds = self.began.elapsed().as_secs_f64();
        let Shared { protocol, metrics, .. } = &*self.shared;
        let method = self.shared.method(&self.path, code);
        metrics.in_flight.with_label_values(&[protocol]).dec();
        metrics.duration.with_label_values(&[*protocol, &*method]).observe(seconds);
        metrics.requests.with_label_values(&[*protocol, &*method, name_of(code)]).inc();
        let code = name_of(code);
        self.span.in_scope(|| tracing::debug!(code, seconds, "rpc ended"));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

impl Shared {
    /// The method label for a path. An unimplemented method has a label only if it had one before, so that a
    /// caller who invents names creates no series.
    fn method(&self, path: &str, code: Code) -> Arc<str> {
        let known = self.methods.read().get(path).cloned();
        if let Some(method) = known {
            return method;
        }
        let mut methods = self.methods.write();
        if code == Code::Unimplemented || methods.len() >= MAX_METHODS {
            return Arc::from(OTHER);
        }
        let method: Arc<str> = Arc::from(path);
        methods.insert(Arc::clone(&method));
        method
    }
}

/// The peer of the connection that a request came from.
fn caller(listener: &'static str, request: &Extensions) -> Caller {
    let peer = request.get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
    Caller {
        listener,
        uid: peer.map(|peer| peer.uid()),
        pid: peer.and_then(|peer| peer.pid()).and_then(|pid| u32::try_from(pid).ok()),
    }
}

fn code_in(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|status| Code::from_bytes(status.as_bytes()))
}

/// The code's name as the gRPC specification writes it.
const fn name_of(code: Code) -> &'static str {
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

#[cfg(test)]
mod tests;
