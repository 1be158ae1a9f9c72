//! The tower layer of every gRPC server: opens the span of an RPC, in the log and in traces, and records its metrics.
//!
//! An open-ended call, which lasts for as long as its client likes, is counted, but neither timed nor in
//! flight: its duration says nothing about the daemon.

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Extensions, Request, Response};
use parking_lot::RwLock;
use switchyard_core::operation::Caller;
use switchyard_core::trace::{self, InSpan, Tracer};
use switchyard_operator::metrics::{Metrics, RpcMetrics};
use switchyard_proto::SERVER_STREAMS;
use switchyard_rpc::{Call, CallObserver, WatchedBody, name_of};
use tonic::Code;
use tonic::transport::server::UdsConnectInfo;
use tower::{Layer, Service};
use tracing::{Instrument, Span};

mod span;

/// The maximum number of method names with a time series; it is bounded because callers choose the names.
const MAX_METHODS: usize = 256;

/// The method label of calls to unknown methods, and to methods beyond [`MAX_METHODS`].
const OTHER: &str = "other";

/// A call with one answer that comes when a task exits.
const WAIT_TASK: &str = "hashicorp.nomad.plugins.drivers.proto.Driver/WaitTask";

/// Adds spans and metrics to a gRPC server.
#[derive(Clone)]
pub struct RpcLayer {
    shared: Arc<Shared>,
}

struct Shared {
    protocol: &'static str,
    metrics: RpcMetrics,
    tracer: Option<Tracer>,
    methods: RwLock<HashSet<Arc<str>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RpcLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcLayer")
            .field("protocol", &self.shared.protocol)
            .finish_non_exhaustive()
    }
}

impl RpcLayer {
    /// A layer for the server of one protocol, whose calls are traced if there is a tracer.
    #[must_use]
    pub fn new(protocol: &'static str, metrics: &Metrics, tracer: Option<Tracer>) -> Self {
        let metrics = metrics.rpc.clone();
        let shared = Shared {
            protocol,
            metrics,
            tracer,
            methods: RwLock::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl<S> Layer<S> for RpcLayer {
    type Service = RpcService<S>;

    fn layer(&self, inner: S) -> RpcService<S> {
        RpcService {
            inner,
            shared: Arc::clone(&self.shared),
        }
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
        f.debug_struct("RpcService")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for RpcService<S>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<WatchedBody<R, RpcCall>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path().trim_start_matches('/').to_owned();
        let caller = caller(self.shared.protocol, request.extensions());
        let span = tracing::info_span!("rpc", protocol = self.shared.protocol, rpc = %path);
        let Shared {
            protocol, tracer, ..
        } = &*self.shared;
        let traced = tracer
            .as_ref()
            .map(|tracer| span::begin(tracer, protocol, &path, request.headers()));
        let begun = || span.in_scope(|| self.inner.call(request));
        let response = match &traced {
            Some(traced) => traced.enter(begun),
            None => begun(),
        };
        let response = InSpan::of(traced.as_ref(), caller.scope(response));
        let call = Call::begin(RpcCall::begin(
            Arc::clone(&self.shared),
            path,
            span.clone(),
            traced,
        ));
        let watched = async move {
            let Ok(response) = response.await;
            Ok(call.watch(response))
        };
        Box::pin(watched.instrument(span))
    }
}

/// One RPC of a server.
#[derive(Debug)]
pub struct RpcCall {
    shared: Arc<Shared>,
    path: String,
    span: Span,
    /// Its span in a trace.
    traced: Option<trace::Span>,
    /// Time at which it began; `None` if it is open-ended.
    began: Option<Instant>,
}

impl RpcCall {
    fn begin(shared: Arc<Shared>, path: String, span: Span, traced: Option<trace::Span>) -> Self {
        let began = (!is_open_ended(&path)).then(Instant::now);
        if began.is_some() {
            shared
                .metrics
                .in_flight
                .with_label_values(&[shared.protocol])
                .inc();
        }
        Self {
            shared,
            path,
            span,
            traced,
            began,
        }
    }
}

impl CallObserver for RpcCall {
    fn ended(self, code: Code) {
        let Self {
            shared,
            path,
            span,
            traced,
            began,
        } = self;
        let Shared {
            protocol, metrics, ..
        } = &*shared;
        let method = shared.method(&path, code);
        let seconds = began.map(|began| began.elapsed().as_secs_f64());
        if let Some(seconds) = seconds {
            metrics.in_flight.with_label_values(&[protocol]).dec();
            metrics
                .duration
                .with_label_values(&[*protocol, &*method])
                .observe(seconds);
        }
        let name = name_of(code);
        metrics
            .requests
            .with_label_values(&[*protocol, &*method, name])
            .inc();
        span.in_scope(|| tracing::debug!(code = name, seconds, "rpc ended"));
        if let Some(traced) = traced {
            span::end(traced, code);
        }
    }

    fn span(&self) -> Span {
        self.span.clone()
    }
}

/// Returns whether the duration of a call to this method is up to its client: streams, except those by which
/// CRI sends a list in pieces, and the wait for a task's exit.
fn is_open_ended(path: &str) -> bool {
    let is_list = path.starts_with("runtime.") && path.contains("/Stream");
    path == WAIT_TASK || (!is_list && SERVER_STREAMS.binary_search(&path).is_ok())
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
    let peer = request
        .get::<UdsConnectInfo>()
        .and_then(|info| info.peer_cred);
    Caller {
        listener,
        uid: peer.map(|peer| peer.uid()),
        pid: peer
            .and_then(|peer| peer.pid())
            .and_then(|pid| u32::try_from(pid).ok()),
    }
}

#[cfg(test)]
mod tests;
