//! Tests of the export, against a collector that takes, refuses or hangs.

use std::net::SocketAddr;
use std::time::Instant;

use switchyard_core::trace::{Sampler, SpanContext, SpanKind};
use switchyard_proto::opentelemetry::proto::collector::trace::v1 as collector;
use switchyard_proto::opentelemetry::proto::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use switchyard_proto::opentelemetry::proto::trace::v1 as proto;
use switchyard_tls::testing::Authority;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};

use super::exporter::{BATCH, QUEUE};
use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// What a collector does with a request.
#[derive(Debug, Clone, Copy)]
enum Mood {
    Takes,
    RejectsOne,
    Refuses,
    Hangs,
}

/// A collector that keeps what it takes.
#[derive(Debug, Clone)]
struct FakeCollector {
    mood: Arc<Mutex<Mood>>,
    requests: Arc<Mutex<Vec<collector::ExportTraceServiceRequest>>>,
    tokens: Arc<Mutex<Vec<String>>>,
}

#[tonic::async_trait]
impl TraceService for FakeCollector {
    async fn export(
        &self,
        request: Request<collector::ExportTraceServiceRequest>,
    ) -> Result<Response<collector::ExportTraceServiceResponse>, Status> {
        let mood = *self.mood.lock();
        let partial = collector::ExportTracePartialSuccess { rejected_spans: 1, error_message: "no".into() };
        let partial_success = match mood {
            Mood::Takes => None,
            Mood::RejectsOne => Some(partial),
            Mood::Refuses => return Err(Status::unavailable("not now")),
            Mood::Hangs => std::future::pending().await,
        };
        let token = request.metadata().get("authorization").and_then(|token| token.to_str().ok());
        self.tokens.lock().extend(token.map(str::to_owned));
        self.requests.lock().push(request.into_inner());
        Ok(Response::new(collector::ExportTraceServiceResponse { partial_success }))
    }
}

impl FakeCollector {
    async fn start(mood: Mood) -> (Self, SocketAddr, AbortOnDropHandle<()>) {
        Self::serve(mood, tonic::transport::Server::builder()).await
    }

    async fn serve(
        mood: Mood,
        mut server: tonic::transport::Server,
    ) -> (Self, SocketAddr, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let fake =
            Self { mood: Arc::new(Mutex::new(mood)), requests: Arc::default(), tokens: Arc::default() };
        let service = TraceServiceServer::new(fake.clone());
        let server = server.add_service(service);
        let serving = tokio::spawn(async move {
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
        (fake, address, AbortOnDropHandle::new(serving))
    }

    fn spans(&self) -> Vec<proto::Span> {
        let requests = self.requests.lock();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|of| &of.scope_spans).flat_map(|of| of.spans.clone()).collect()
    }
}

fn settings(address: SocketAddr) -> TraceSettings {
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}")),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "200".to_owned()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret".to_owned()),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value));
    TraceSettings::from_env(&env, "node-1").unwrap().unwrap()
}

fn span(traces: &Traces, name: &'static str) {
    traces.tracer().root(SpanKind::Internal, name, None).end();
}

#[tokio::test]
async fn spans_arrive_in_batches_with_all_that_they_say() {
    let (collector, address, _serving) = FakeCollector::start(Mood::Takes).await;
    let traces = Traces::start(&settings(address)).unwrap();
    let caller = SpanContext::parse(PARENT).unwrap();
    let mut call = traces.tracer().request("a.B/Do", Some(caller.clone()));
    call.set("rpc.method", "Do");
    call.set("code", 2);
    let below = call.enter(|| switchyard_core::trace::begin(SpanKind::Client, "below")).unwrap();
    let below_id = below.context().span;
    below.fail("it is broken");
    call.end();
    (0..2 * BATCH).for_each(|_| span(&traces, "filler"));
    traces.end().await;
    let sizes: Vec<_> = collector
        .requests
        .lock()
        .iter()
        .map(|request| request.resource_spans[0].scope_spans[0].spans.len())
        .collect();
    assert_eq!(sizes, [BATCH, BATCH, 2]);
    assert_eq!(traces.counts(), TraceCounts { sent: 2 * 512 + 2, lost: 0 });
    assert_eq!(*collector.tokens.lock(), ["Bearer secret"; 3]);
    let spans = collector.spans();
    let [failed, server, ..] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(server.trace_id, caller.trace.to_bytes());
    assert_eq!(server.parent_span_id, caller.span.to_bytes());
    assert_eq!(
        (server.kind(), server.name.as_str(), server.flags),
        (proto::span::SpanKind::Server, "a.B/Do", 1)
    );
    assert!(server.start_time_unix_nano > 0 && server.start_time_unix_nano <= server.end_time_unix_nano);
    assert_eq!(server.attributes.len(), 2);
    assert_eq!(failed.span_id, below_id.to_bytes());
    assert_eq!((&failed.parent_span_id, &failed.trace_id), (&server.span_id, &server.trace_id));
    let status = failed.status.clone().unwrap();
    assert_eq!((status.code(), status.message.as_str()), (proto::status::StatusCode::Error, "it is broken"));
    let requests = collector.requests.lock();
    let resource = requests[0].resource_spans[0].resource.clone().unwrap();
    let keys: Vec<_> = resource.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
    assert_eq!(keys, ["host.name", "service.name", "service.version"]);
}

#[tokio::test]
async fn spans_are_lost_and_counted_while_the_collector_hangs_and_the_end_is_in_time() {
    let (collector, address, _serving) = FakeCollector::start(Mood::Hangs).await;
    let traces =
        Traces::start(&TraceSettings { limit: Duration::from_secs(60), ..settings(address) }).unwrap();
    // The first batch is on its way when the others come.
    (0..BATCH).for_each(|_| span(&traces, "first"));
    while traces.queue.waiting() > 0 {
        tokio::task::yield_now().await;
    }
    let began = Instant::now();
    (0..QUEUE + 7).for_each(|_| span(&traces, "more"));
    assert!(began.elapsed() < Duration::from_secs(1), "nothing waits for a collector");
    assert_eq!(traces.counts(), TraceCounts { sent: 0, lost: 7 });
    let began = Instant::now();
    traces.end().await;
    assert!(began.elapsed() < FLUSH * 2);
    assert!(collector.requests.lock().is_empty());
}

#[tokio::test]
async fn refused_and_rejected_spans_are_counted_and_later_ones_arrive() {
    let (collector, address, _serving) = FakeCollector::start(Mood::Refuses).await;
    let traces = Traces::start(&settings(address)).unwrap();
    let send = async |mood| {
        *collector.mood.lock() = mood;
        let before = traces.counts();
        (0..BATCH).for_each(|_| span(&traces, "x"));
        tokio::time::timeout(Duration::from_secs(10), async {
            while traces.counts() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
        traces.counts()
    };
    assert_eq!(send(Mood::Refuses).await, TraceCounts { sent: 0, lost: 512 });
    // The deadline of an export, which is short here.
    assert_eq!(send(Mood::Hangs).await, TraceCounts { sent: 0, lost: 1024 });
    assert_eq!(send(Mood::RejectsOne).await, TraceCounts { sent: 511, lost: 1025 });
    assert_eq!(send(Mood::Takes).await, TraceCounts { sent: 1023, lost: 1025 });
}

#[tokio::test]
async fn nobody_at_the_endpoint_costs_spans_alone() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let traces = Traces::start(&settings(address)).unwrap();
    span(&traces, "x");
    traces.end().await;
    assert_eq!(traces.counts(), TraceCounts { sent: 0, lost: 1 });
    span(&traces, "after the end");
    assert_eq!(traces.counts().lost, 2);
}

#[tokio::test]
async fn a_trace_that_is_not_sampled_is_not_sent() {
    let (collector, address, _serving) = FakeCollector::start(Mood::Takes).await;
    let traces =
        Traces::start(&TraceSettings { sampler: Sampler::CallerOrNothing, ..settings(address) }).unwrap();
    span(&traces, "x");
    traces.end().await;
    assert!(collector.requests.lock().is_empty());
}

#[tokio::test]
async fn collector_with_tls_is_verified_by_the_authority_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "ca");
    let identity = authority.issue("collector").server(None);
    let read = |path: &std::path::Path| std::fs::read(path).unwrap();
    let identity = tonic::transport::Identity::from_pem(read(&identity.certificates), read(&identity.key));
    let tls = tonic::transport::ServerTlsConfig::new().identity(identity);
    let server = tonic::transport::Server::builder().tls_config(tls).unwrap();
    let (collector, address, _serving) = FakeCollector::serve(Mood::Takes, server).await;
    let endpoint = format!("https://{address}").parse::<http::Uri>().unwrap();
    let of = |authorities| TraceSettings {
        endpoint: endpoint.clone(),
        authorities,
        limit: Duration::from_secs(10),
        ..settings(address)
    };
    let traces = Traces::start(&of(Some(authority.certificate()))).unwrap();
    span(&traces, "x");
    traces.end().await;
    assert_eq!((traces.counts(), collector.spans().len()), (TraceCounts { sent: 1, lost: 0 }, 1));
    // By the authorities of the node it is nobody.
    let traces = Traces::start(&of(None)).unwrap();
    span(&traces, "x");
    traces.end().await;
    assert_eq!((traces.counts(), collector.spans().len()), (TraceCounts { sent: 0, lost: 1 }, 1));
    Traces::start(&of(Some(dir.path().join("missing")))).unwrap_err();
}
