//! A collector of traces, for tests: it speaks OTLP over gRPC, and takes, refuses or never answers what it is sent.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use switchyard_proto::opentelemetry::proto::collector::trace::v1 as collector;
use switchyard_proto::opentelemetry::proto::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use switchyard_proto::opentelemetry::proto::trace::v1 as trace;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// The collector's treatment of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mood {
    /// Keeps all spans.
    #[default]
    Takes,
    /// Keeps the request, and says that one of its spans was rejected.
    RejectsOne,
    /// Answers with an error.
    Refuses,
    /// Does not answer.
    Hangs,
}

/// A collector on loopback, until it is dropped.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    received: Arc<Received>,
    _serving: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct Received {
    mood: Mutex<Mood>,
    requests: Mutex<Vec<collector::ExportTraceServiceRequest>>,
    authorizations: Mutex<Vec<String>>,
}

struct Service(Arc<Received>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<collector::ExportTraceServiceRequest>,
    ) -> Result<Response<collector::ExportTraceServiceResponse>, Status> {
        let mood = *self.0.mood.lock();
        let partial = collector::ExportTracePartialSuccess {
            rejected_spans: 1,
            error_message: "no".into(),
        };
        let partial_success = match mood {
            Mood::Takes => None,
            Mood::RejectsOne => Some(partial),
            Mood::Refuses => return Err(Status::unavailable("not now")),
            Mood::Hangs => std::future::pending().await,
        };
        let authorization = request
            .metadata()
            .get("authorization")
            .and_then(|value| value.to_str().ok());
        self.0
            .authorizations
            .lock()
            .extend(authorization.map(str::to_owned));
        self.0.requests.lock().push(request.into_inner());
        Ok(Response::new(collector::ExportTraceServiceResponse {
            partial_success,
        }))
    }
}

impl Collector {
    /// Starts a collector without TLS.
    ///
    /// # Panics
    /// When it cannot listen on loopback.
    pub async fn start() -> Self {
        Self::serve(Server::builder()).await
    }

    /// The same with the settings of a server, as for TLS.
    ///
    /// # Panics
    /// As [`Collector::start`].
    pub async fn serve(mut server: Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("loopback can be listened on");
        let address = listener.local_addr().expect("a listener has an address");
        let received = Arc::new(Received::default());
        let server = server.add_service(TraceServiceServer::new(Service(Arc::clone(&received))));
        let serving = tokio::spawn(async move {
            server
                .serve_with_incoming(TcpIncoming::from(listener))
                .await
                .expect("it can be served");
        });
        Self {
            address,
            received,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Does this with requests from now on.
    pub fn set(&self, mood: Mood) {
        *self.received.mood.lock() = mood;
    }

    /// The requests that were taken, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<collector::ExportTraceServiceRequest> {
        self.received.requests.lock().clone()
    }

    /// The `authorization` of each of them that had one.
    #[must_use]
    pub fn authorizations(&self) -> Vec<String> {
        self.received.authorizations.lock().clone()
    }

    /// The spans that were taken, in order.
    #[must_use]
    pub fn spans(&self) -> Vec<trace::Span> {
        let resources = self
            .requests()
            .into_iter()
            .flat_map(|request| request.resource_spans);
        resources
            .flat_map(|of| of.scope_spans)
            .flat_map(|of| of.spans)
            .collect()
    }
}
