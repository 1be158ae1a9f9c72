//! Stands in for another containerd: passes every call on to a real one, but says another version, lacks what it is told to lack, and
//! can be as one whose database hangs.

use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};
use tower::ServiceExt;

/// The call by which containerd says its version.
const VERSION: &str = "/containerd.services.version.v1.Version/Version";
/// The gRPC status of a call that a server does not have.
const UNIMPLEMENTED: &str = "12";

/// A front before a containerd. Dropping it closes it.
pub struct Front {
    shape: Arc<Mutex<Shape>>,
    hangs: watch::Sender<bool>,
    _runtime: Runtime,
}

/// What it shows.
#[derive(Debug, Default)]
struct Shape {
    version: Option<String>,
    lacks: Vec<String>,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl Front {
    /// Opens a front on `socket`; what is behind it listens on `upstream`, now or later.
    ///
    /// # Panics
    /// When the socket cannot be made.
    #[must_use]
    pub fn start(socket: &Path, upstream: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let shape = Arc::new(Mutex::new(Shape::default()));
        // One that a dead test left behind.
        let _ = fs::remove_file(socket);
        let _entered = runtime.enter();
        let listener = UnixListener::bind(socket).expect("the scratch directory can be written");
        let incoming = futures::stream::unfold(listener, async |listener| {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        let channel = channel(upstream.to_owned());
        let shown = Arc::clone(&shape);
        let hangs = watch::Sender::new(false);
        let hung = hangs.subscribe();
        let serve = tower::service_fn(move |request: Request<Body>| {
            let (channel, shape, mut hung) = (channel.clone(), Arc::clone(&shown), hung.clone());
            async move {
                if request.uri().path() != VERSION {
                    // The front outlives its server.
                    let _ = hung.wait_for(|hangs| !hangs).await;
                }
                Ok::<_, Infallible>(answer(channel, &shape, request).await)
            }
        });
        let routes = Routes::from(Router::new().fallback_service(serve));
        runtime.spawn(async move {
            let served = Server::builder().add_routes(routes).serve_with_incoming(Box::pin(incoming)).await;
            served.expect("a front that is bound can be served");
        });
        drop(_entered);
        Self { shape, hangs, _runtime: runtime }
    }

    /// Says this version from now on; `None` is the real one.
    pub fn say_version(&self, version: Option<&str>) {
        lock(&self.shape).version = version.map(str::to_owned);
    }

    /// Says its version, and answers nothing else, until it is told to go on.
    pub fn hang(&self, hangs: bool) {
        self.hangs.send_replace(hangs);
    }

    /// Lacks all calls whose path contains one of these from now on.
    pub fn lack(&self, parts: &[&str]) {
        lock(&self.shape).lacks = parts.iter().map(|part| (*part).to_owned()).collect();
    }
}

fn lock(shape: &Mutex<Shape>) -> MutexGuard<'_, Shape> {
    shape.lock().unwrap_or_else(PoisonError::into_inner)
}

fn channel(socket: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
    });
    Endpoint::from_static("http://localhost")
        .http2_max_header_list_size(1 << 20)
        .connect_with_connector_lazy(connector)
}

async fn answer(channel: Channel, shape: &Mutex<Shape>, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let (version, lacks) = {
        let shape = lock(shape);
        (shape.version.clone(), shape.lacks.iter().any(|part| path.contains(part)))
    };
    if lacks {
        return refusal(UNIMPLEMENTED, "this containerd does not have it");
    }
    if let (VERSION, Some(version)) = (path.as_str(), version) {
        return version_answer(&version);
    }
    match channel.oneshot(request.map(tonic::body::Body::new)).await {
        Ok(response) => response.map(Body::new),
        Err(error) => refusal("14", &error.to_string()),
    }
}

/// A gRPC answer that has a status only.
fn refusal(code: &str, message: &str) -> Response<Body> {
    let response = Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", code)
        .header("grpc-message", message.replace(|c: char| !c.is_ascii_graphic(), "%20"));
    response.body(Body::empty()).expect("these headers are well-formed")
}

/// `VersionResponse { version }` as a gRPC message: a flag, a length, and the first field.
fn version_answer(version: &str) -> Response<Body> {
    let length = u8::try_from(version.len()).expect("versions are short");
    let mut frame = vec![0, 0, 0, 0, length + 2, 0x0a, length];
    frame.extend_from_slice(version.as_bytes());
    let response = Response::builder().header("content-type", "application/grpc").header("grpc-status", "0");
    response.body(Body::from(frame)).expect("these headers are well-formed")
}
