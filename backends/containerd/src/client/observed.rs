//! Measures and traces calls: a tower service around each connection to containerd, and the same for shims
//! that are called directly. containerd receives the span of a call, so that its own spans are below.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Request, Response};
use switchyard_core::backend::{BackendObserver, RuntimeCall};
use switchyard_core::trace::{self, Span, SpanContext, SpanKind};
use switchyard_rpc::{Call, CallObserver, WatchedBody, name_of};
use tonic::Code;
use tonic::body::Body;
use tonic::transport::{Channel, Error};
use tower::Service;

/// Methods whose duration is up to others: to processes, to the network and to whoever takes the answer.
const UNTIMED: [&str; 4] = ["Read", "Subscribe", "Wait", "Write"];

/// The services that answer from containerd's database.
const OF_DATABASE: [&str; 4] = [
    "containerd.services.containers.v1.",
    "containerd.services.images.v1.",
    "containerd.services.leases.v1.",
    "containerd.services.snapshots.v1.",
];

/// A channel to containerd whose calls are reported. Clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct ObservedChannel {
    channel: Channel,
    observer: Arc<dyn BackendObserver>,
    /// Number of calls that were answered from its database.
    answers: Arc<AtomicU64>,
}

/// The future of a call's response.
pub(crate) struct ObservedResponse {
    inner: <Channel as Service<Request<Body>>>::Future,
    /// Until the response has come.
    call: Option<Call<BackendCall>>,
    /// The count of answers, if this call is to be counted.
    answers: Option<Arc<AtomicU64>>,
}

/// One call to containerd or a shim.
#[derive(Debug)]
pub(crate) struct BackendCall {
    observer: Arc<dyn BackendObserver>,
    method: String,
    began: Option<Instant>,
    span: Option<Span>,
}

/// Counts connections, and reports each but the first as a reconnection.
#[derive(Debug)]
pub(crate) struct ConnectionCounter {
    observer: Arc<dyn BackendObserver>,
    made: AtomicU64,
}

// === impl ObservedChannel ===

impl ObservedChannel {
    pub(crate) fn new(channel: Channel, observer: Arc<dyn BackendObserver>) -> Self {
        Self {
            channel,
            observer,
            answers: Arc::default(),
        }
    }

    /// The observer that calls are reported to.
    pub(crate) fn observer(&self) -> &dyn BackendObserver {
        &*self.observer
    }

    /// Returns the number of calls that needed containerd's database and were answered so far, in whatever
    /// way.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

impl Service<Request<Body>> for ObservedChannel {
    type Response = Response<WatchedBody<Body, BackendCall>>;
    type Error = Error;
    type Future = ObservedResponse;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> ObservedResponse {
        let method = request.uri().path().trim_start_matches('/').to_owned();
        let span = span_of(&method, "grpc");
        if let Some(span) = &span {
            hand_on(span.context(), request.headers_mut());
        }
        let is_of_database = OF_DATABASE
            .iter()
            .any(|service| method.starts_with(service));
        let answers = is_of_database.then(|| Arc::clone(&self.answers));
        let call = Some(BackendCall::begin(&self.observer, method, span));
        ObservedResponse {
            inner: self.channel.call(request),
            call,
            answers,
        }
    }
}

impl Future for ObservedResponse {
    type Output = Result<Response<WatchedBody<Body, BackendCall>>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(Pin::new(&mut self.inner).poll(cx));
        let mut call = self
            .call
            .take()
            .expect("a future is not polled after its end");
        Poll::Ready(match response {
            Ok(response) => {
                if let Some(answers) = &self.answers {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
                Ok(call.watch(response))
            }
            Err(error) => {
                // There is no connection, or it broke.
                call.end(Code::Unavailable);
                Err(error)
            }
        })
    }
}

// === impl BackendCall ===

impl BackendCall {
    /// A call of this method that begins now; `method` is `package.Service/Method`.
    pub(crate) fn begin(
        observer: &Arc<dyn BackendObserver>,
        method: String,
        span: Option<Span>,
    ) -> Call<Self> {
        let name = method.rsplit('/').next().unwrap_or_default();
        let began = (!UNTIMED.contains(&name)).then(Instant::now);
        Call::begin(Self {
            observer: Arc::clone(observer),
            method,
            began,
            span,
        })
    }
}

/// The span of a call that begins now, below the current one; `None` without a current one.
pub(crate) fn span_of(method: &str, system: &'static str) -> Option<Span> {
    // Before the name is copied.
    let mut span = trace::begin_with(SpanKind::Client, || method.to_owned())?;
    let (service, name) = method.rsplit_once('/').unwrap_or_default();
    span.set("rpc.system", system);
    span.set_with("rpc.service", || service.to_owned());
    span.set_with("rpc.method", || name.to_owned());
    Some(span)
}

/// Returns the headers that pass the call's span to its server.
pub(crate) fn handed_on(
    context: &SpanContext,
) -> impl Iterator<Item = (&'static str, String)> + use<> {
    let state = context
        .state
        .as_ref()
        .map(|state| ("tracestate", state.as_str().to_owned()));
    std::iter::once(("traceparent", context.traceparent())).chain(state)
}

fn hand_on(context: &SpanContext, headers: &mut HeaderMap) {
    for (key, value) in handed_on(context) {
        // Both are printable ASCII.
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(key, value);
        }
    }
}

impl CallObserver for BackendCall {
    fn ended(self, code: Code) {
        let took = self.began.map(|began| began.elapsed());
        let Self {
            observer,
            method,
            began: _,
            span,
        } = self;
        observer.call_ended(RuntimeCall {
            method: &method,
            code: name_of(code),
            took,
        });
        if let Some(mut span) = span {
            span.set("rpc.grpc.status_code", i64::from(i32::from(code)));
            if code == Code::Ok {
                span.end();
            } else {
                let name = name_of(code);
                span.fail(name, name);
            }
        }
    }
}

// === impl ConnectionCounter ===

impl ConnectionCounter {
    pub(crate) fn new(observer: Arc<dyn BackendObserver>) -> Arc<Self> {
        Arc::new(Self {
            observer,
            made: AtomicU64::new(0),
        })
    }

    /// A connection was made.
    pub(crate) fn connected(&self) {
        if self.made.fetch_add(1, Ordering::Relaxed) > 0 {
            self.observer.reconnected();
        }
    }

    /// The number of connections that were made so far.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Keeps the observed calls, each with whether it was timed, and counts reconnections.
    #[derive(Debug, Default)]
    struct Kept {
        calls: Mutex<Vec<(String, &'static str, bool)>>,
        reconnections: Mutex<u32>,
    }

    impl BackendObserver for Kept {
        fn call_ended(&self, RuntimeCall { method, code, took }: RuntimeCall<'_>) {
            self.calls
                .lock()
                .push((method.to_owned(), code, took.is_some()));
        }

        fn reconnected(&self) {
            *self.reconnections.lock() += 1;
        }
    }

    fn unserved(kept: &Arc<Kept>) -> ObservedChannel {
        let channel = tonic::transport::Endpoint::from_static("http://localhost")
            .connect_with_connector_lazy(tower::service_fn(|_: tonic::transport::Uri| async {
                Err::<hyper_util::rt::TokioIo<tokio::net::UnixStream>, _>(std::io::Error::other(
                    "nobody",
                ))
            }));
        ObservedChannel::new(channel, Arc::clone(kept) as _)
    }

    #[tokio::test]
    async fn calls_without_an_answer_are_unavailable_and_waits_are_not_timed() {
        let kept = Arc::new(Kept::default());
        let mut channel = unserved(&kept);
        for path in ["/a.Tasks/Create", "/a.Tasks/Wait"] {
            std::future::poll_fn(|cx| channel.poll_ready(cx))
                .await
                .unwrap();
            let request = Request::builder()
                .uri(format!("http://localhost{path}"))
                .body(Body::empty());
            assert!(channel.call(request.unwrap()).await.is_err());
        }
        let create = ("a.Tasks/Create".to_owned(), "UNAVAILABLE", true);
        assert_eq!(
            *kept.calls.lock(),
            [create, ("a.Tasks/Wait".to_owned(), "UNAVAILABLE", false)]
        );
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_is_cancelled() {
        let kept = Arc::new(Kept::default());
        let mut channel = unserved(&kept);
        std::future::poll_fn(|cx| channel.poll_ready(cx))
            .await
            .unwrap();
        drop(
            channel.call(
                Request::builder()
                    .uri("http://localhost/a.B/C")
                    .body(Body::empty())
                    .unwrap(),
            ),
        );
        assert_eq!(
            *kept.calls.lock(),
            [("a.B/C".to_owned(), "CANCELLED", true)]
        );
    }

    #[derive(Debug, Default)]
    struct Spans(Mutex<Vec<trace::EndedSpan>>);

    impl trace::SpanSink for Spans {
        fn ended(&self, span: trace::EndedSpan) {
            self.0.lock().push(span);
        }
    }

    #[tokio::test]
    async fn a_call_in_a_trace_is_a_span_that_is_handed_on() {
        let spans = Arc::new(Spans::default());
        let tracer = trace::Tracer::new(trace::Sampler::CallerOrAll, Arc::clone(&spans) as _);
        let caller =
            SpanContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        let state = trace::TraceState::parse("vendor=1");
        let root = tracer.root(
            SpanKind::Server,
            "call",
            Some(SpanContext { state, ..caller }),
        );
        assert!(
            span_of("a.Tasks/Create", "grpc").is_none(),
            "there is no trace yet"
        );
        let mut headers = HeaderMap::new();
        let span = root.enter(|| span_of("a.Tasks/Create", "grpc")).unwrap();
        hand_on(span.context(), &mut headers);
        let handed = SpanContext::parse(headers["traceparent"].to_str().unwrap()).unwrap();
        assert_eq!(
            (handed.trace, handed.span),
            (root.context().trace, span.context().span)
        );
        assert_eq!(headers["tracestate"], "vendor=1");
        drop(span);

        let mut channel = unserved(&Arc::new(Kept::default()));
        std::future::poll_fn(|cx| channel.poll_ready(cx))
            .await
            .unwrap();
        let request = Request::builder()
            .uri("http://localhost/a.Tasks/Start")
            .body(Body::empty())
            .unwrap();
        assert!(root.enter(|| channel.call(request)).await.is_err());
        root.end();
        let spans = spans.0.lock();
        let [_, start, call] = &spans[..] else {
            panic!("{spans:?}")
        };
        assert_eq!(
            (&*start.name, start.failure.as_deref()),
            ("a.Tasks/Start", Some("UNAVAILABLE"))
        );
        assert_eq!(start.parent, Some(call.context.span));
    }

    #[test]
    fn the_first_connection_is_no_reconnection() {
        let kept = Arc::new(Kept::default());
        let connections = ConnectionCounter::new(Arc::clone(&kept) as _);
        let counts = [0, 1, 2].map(|_| {
            connections.connected();
            *kept.reconnections.lock()
        });
        assert_eq!((counts, connections.made()), ([0, 1, 2], 3));
    }
}
