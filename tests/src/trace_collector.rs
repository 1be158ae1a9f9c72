//! A collector of traces that keeps what it is sent, and tells the tree that it makes.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use switchyard_proto::opentelemetry::proto::collector::trace::v1 as collector;
use switchyard_proto::opentelemetry::proto::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use switchyard_proto::opentelemetry::proto::common::v1::any_value::Value;
use switchyard_proto::opentelemetry::proto::common::v1::{AnyValue, KeyValue};
use switchyard_proto::opentelemetry::proto::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Listens on loopback until it is dropped.
#[derive(Debug)]
pub struct TraceCollector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<CollectedSpan>>>,
    _runtime: Runtime,
}

/// A span, with the name of the program that sent it.
#[derive(Debug, Clone)]
pub struct CollectedSpan {
    /// The attribute `service.name` of the sender.
    pub service: String,
    /// The span.
    pub span: Span,
}

struct Keep(Arc<Mutex<Vec<CollectedSpan>>>);

#[tonic::async_trait]
impl TraceService for Keep {
    async fn export(
        &self,
        request: Request<collector::ExportTraceServiceRequest>,
    ) -> Result<Response<collector::ExportTraceServiceResponse>, Status> {
        for of in request.into_inner().resource_spans {
            let attributes = of.resource.unwrap_or_default().attributes;
            let service = text_of(&attributes, "service.name").unwrap_or_default();
            let spans = of.scope_spans.into_iter().flat_map(|of| of.spans);
            self.0.lock().extend(spans.map(|span| CollectedSpan { service: service.clone(), span }));
        }
        Ok(Response::new(collector::ExportTraceServiceResponse::default()))
    }
}

impl TraceCollector {
    /// Starts a collector.
    ///
    /// # Panics
    /// When it cannot listen on loopback.
    #[must_use]
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let listener =
            runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("loopback can be listened on");
        let address = listener.local_addr().expect("a listener has an address");
        let spans = Arc::default();
        let service = TraceServiceServer::new(Keep(Arc::clone(&spans)));
        runtime.spawn(async move {
            let served = Server::builder().add_service(service);
            served.serve_with_incoming(TcpIncoming::from(listener)).await.expect("it can be served");
        });
        Self { address, spans, _runtime: runtime }
    }

    /// The value of `OTEL_EXPORTER_OTLP_ENDPOINT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans that have come, in the order in which they came.
    #[must_use]
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.spans.lock().clone()
    }
}

impl CollectedSpan {
    /// The text of an attribute.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<String> {
        text_of(&self.span.attributes, key)
    }

    /// The names of the spans above this one, the first of the tree first, and its own.
    #[must_use]
    pub fn path(&self, all: &[Self]) -> Vec<String> {
        let above = all.iter().find(|other| {
            other.span.span_id == self.span.parent_span_id && other.span.trace_id == self.span.trace_id
        });
        let mut path = above.map(|above| above.path(all)).unwrap_or_default();
        path.push(self.span.name.clone());
        path
    }
}

fn text_of(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match &found.value {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => Some(text.clone()),
        Some(_) | None => None,
    }
}
