//! A gRPC proxy in front of a real containerd. It forwards every call, and simulates other containerds:
//! another version, missing calls, late answers, a sandbox store as newer versions have, a database that
//! hangs, or a disk that is full, read-only or fails.

mod store;

use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};
use tower::ServiceExt;

use self::store::Sandboxes;

/// The call that returns containerd's version.
const VERSION: &str = "/containerd.services.version.v1.Version/Version";
/// The call that lists containerd's plugins.
const PLUGINS: &str = "/containerd.services.introspection.v1.Introspection/Plugins";
/// The gRPC status UNKNOWN.
const UNKNOWN: &str = "2";
/// The gRPC status UNIMPLEMENTED.
const UNIMPLEMENTED: &str = "12";
/// The gRPC status DEADLINE_EXCEEDED.
const DEADLINE_EXCEEDED: &str = "4";
/// The gRPC status INTERNAL, for a call that the proxy cannot parse.
const INTERNAL: &str = "13";
/// The largest message that the proxy parses, in bytes.
const MAX_MESSAGE: usize = 1 << 20;

/// A proxy in front of a containerd. Dropping it closes its socket.
pub struct ContainerdProxy {
    behaviour: Arc<Mutex<ProxyBehaviour>>,
    hanging: watch::Sender<bool>,
    _runtime: Runtime,
}

/// The deviations of the proxy from the containerd behind it.
#[derive(Debug, Default)]
struct ProxyBehaviour {
    version: Option<String>,
    missing: Vec<String>,
    delayed: Vec<String>,
    silent: Vec<String>,
    full: Vec<String>,
    /// Parts of paths, and what the calls answer.
    failing: Vec<(String, &'static str)>,
    /// Parts of paths, and whether a call was received and is held.
    held: Vec<(String, watch::Sender<bool>)>,
    sandboxes: Option<Sandboxes>,
}

/// Calls that the proxy holds. Dropping this lets them continue.
#[derive(Debug)]
pub struct HeldCalls {
    behaviour: Arc<Mutex<ProxyBehaviour>>,
    part: String,
    told: watch::Receiver<bool>,
}

impl HeldCalls {
    /// Returns whether a call is held.
    #[must_use]
    pub fn has_call(&self) -> bool {
        *self.told.borrow()
    }
}

impl Drop for HeldCalls {
    fn drop(&mut self) {
        lock(&self.behaviour)
            .held
            .retain(|(part, _)| *part != self.part);
    }
}

impl fmt::Debug for ContainerdProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front")
            .field("shape", &self.behaviour)
            .finish_non_exhaustive()
    }
}

impl ContainerdProxy {
    /// Starts a proxy on `socket`. The containerd listens on `upstream`, now or later.
    ///
    /// # Panics
    /// When the socket cannot be made.
    #[must_use]
    pub fn start(socket: &Path, upstream: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime can be made");
        let shape = Arc::new(Mutex::new(ProxyBehaviour::default()));
        // A killed test may have left a socket there.
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
            let channel = channel.clone();
            let shape = Arc::clone(&shown);
            let mut hung = hung.clone();
            async move {
                if request.uri().path() != VERSION {
                    // The proxy may outlive the containerd behind it.
                    let _ = hung.wait_for(|hangs| !hangs).await;
                }
                Ok::<_, Infallible>(answer(channel, &shape, request).await)
            }
        });
        let routes = Routes::from(Router::new().fallback_service(serve));
        runtime.spawn(async move {
            let served = Server::builder()
                .add_routes(routes)
                .serve_with_incoming(Box::pin(incoming))
                .await;
            served.expect("a front that is bound can be served");
        });
        drop(_entered);
        Self {
            behaviour: shape,
            hanging: hangs,
            _runtime: runtime,
        }
    }

    /// Reports this version from now on; `None` for the real one.
    pub fn set_version(&self, version: Option<&str>) {
        lock(&self.behaviour).version = version.map(str::to_owned);
    }

    /// From now on answers only the version call and lets all others hang, until it is released.
    pub fn set_hanging(&self, hangs: bool) {
        self.hanging.send_replace(hangs);
    }

    /// From now on answers UNIMPLEMENTED to all calls whose path contains one of these.
    pub fn set_missing(&self, parts: &[&str]) {
        lock(&self.behaviour).missing = parts.iter().map(|part| (*part).to_owned()).collect();
    }

    /// From now on answers DEADLINE_EXCEEDED to all calls whose path contains one of these, after they took
    /// effect.
    pub fn set_delayed(&self, parts: &[&str]) {
        lock(&self.behaviour).delayed = parts.iter().map(|part| (*part).to_owned()).collect();
    }

    /// From now on does not answer calls whose path contains one of these.
    pub fn set_silent(&self, parts: &[&str]) {
        lock(&self.behaviour).silent = parts.iter().map(|part| (*part).to_owned()).collect();
    }

    /// From now on fails all calls whose path contains one of these as if the disk were full.
    pub fn set_full(&self, parts: &[&str]) {
        lock(&self.behaviour).full = parts.iter().map(|part| (*part).to_owned()).collect();
    }

    /// From now on fails all calls whose path contains one of these as containerd does for such an error of its disk, as in
    /// `read-only file system` or `input/output error`.
    pub fn set_failing(&self, parts: &[&str], error: &'static str) {
        lock(&self.behaviour).failing = parts
            .iter()
            .map(|part| ((*part).to_owned(), error))
            .collect();
    }

    /// Holds calls whose path contains `part` from now on, until the answer is dropped; it reports whether
    /// one is held.
    #[must_use]
    pub fn hold(&self, part: &str) -> HeldCalls {
        let (received, told) = watch::channel(false);
        lock(&self.behaviour).held.push((part.to_owned(), received));
        HeldCalls {
            behaviour: Arc::clone(&self.behaviour),
            part: part.to_owned(),
            told,
        }
    }

    /// From now on has a sandbox store, which is empty at first.
    pub fn enable_sandbox_store(&self) {
        lock(&self.behaviour).sandboxes = Some(Sandboxes::default());
    }

    /// The ids in the sandbox store, sorted.
    #[must_use]
    pub fn stored_sandboxes(&self) -> Vec<String> {
        lock(&self.behaviour)
            .sandboxes
            .iter()
            .flat_map(Sandboxes::ids)
            .collect()
    }
}

fn lock(shape: &Mutex<ProxyBehaviour>) -> MutexGuard<'_, ProxyBehaviour> {
    shape.lock()
}

fn channel(socket: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            UnixStream::connect(socket)
                .await
                .map(hyper_util::rt::TokioIo::new)
        }
    });
    Endpoint::from_static("http://localhost")
        .http2_max_header_list_size(1 << 20)
        .connect_with_connector_lazy(connector)
}

async fn answer(
    channel: Channel,
    shape: &Mutex<ProxyBehaviour>,
    request: Request<Body>,
) -> Response<Body> {
    let path = request.uri().path().to_owned();
    wait_while_held(shape, &path).await;
    let (version, lacks, late, silent, full, failing, stores) = {
        let shape = lock(shape);
        let is_of = |parts: &[String]| parts.iter().any(|part| path.contains(part));
        let [lacks, late, silent, full] =
            [&shape.missing, &shape.delayed, &shape.silent, &shape.full].map(|parts| is_of(parts));
        let failing = shape
            .failing
            .iter()
            .find(|(part, _)| path.contains(part))
            .map(|(_, error)| *error);
        (
            shape.version.clone(),
            lacks,
            late,
            silent,
            full,
            failing,
            shape.sandboxes.is_some(),
        )
    };
    if silent {
        std::future::pending::<()>().await;
    }
    if lacks {
        return refusal(UNIMPLEMENTED, "this containerd does not have it");
    }
    if let Some(error) = failing.or(full.then_some("no space left on device")) {
        return refusal(UNKNOWN, &format!("write meta.db: {error}"));
    }
    if let (VERSION, Some(version)) = (path.as_str(), version) {
        return version_answer(&version);
    }
    if stores && path.starts_with(store::SERVICE) {
        let message = match message(request.into_body()).await {
            Ok(message) => message,
            Err(error) => return refusal(INTERNAL, &error),
        };
        let mut shape = lock(shape);
        let sandboxes = shape
            .sandboxes
            .as_mut()
            .expect("nobody takes it away again");
        return match sandboxes.answer(&path, &message) {
            Ok(answer) => message_answer(&answer),
            Err(code) => refusal(code, "the store of sandboxes refuses"),
        };
    }
    let response = match channel.oneshot(request.map(tonic::body::Body::new)).await {
        Ok(response) => response.map(Body::new),
        Err(error) => return refusal("14", &error.to_string()),
    };
    if late {
        return refusal(DEADLINE_EXCEEDED, "this containerd was too slow");
    }
    if !stores || path != PLUGINS {
        return response;
    }
    match message(response.into_body()).await {
        // Repeated fields of a message need not be adjacent.
        Ok(plugins) => message_answer(&[plugins, store::plugin()].concat()),
        Err(error) => refusal(INTERNAL, &error),
    }
}

/// Waits until the test lets calls of this path continue.
async fn wait_while_held(shape: &Mutex<ProxyBehaviour>, path: &str) {
    loop {
        let held = lock(shape)
            .held
            .iter()
            .find(|(part, _)| path.contains(part))
            .map(|(_, held)| {
                held.send_replace(true);
                held.subscribe()
            });
        let Some(mut held) = held else { return };
        // The sender goes with the entry, when the test lets go.
        while held.changed().await.is_ok() {}
    }
}

/// The only message of an uncompressed gRPC body.
async fn message(body: Body) -> Result<Vec<u8>, String> {
    let bytes = axum::body::to_bytes(body, MAX_MESSAGE)
        .await
        .map_err(|error| error.to_string())?;
    // A flag and a length precede the message.
    bytes
        .get(5..)
        .map(<[u8]>::to_vec)
        .ok_or_else(|| "there is no message".to_owned())
}

/// A gRPC response with this message.
fn message_answer(message: &[u8]) -> Response<Body> {
    let length = u32::try_from(message.len()).expect("messages are short");
    let frame = [&[0][..], &length.to_be_bytes(), message].concat();
    let response = Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", "0");
    response
        .body(Body::from(frame))
        .expect("these headers are well-formed")
}

/// A gRPC answer that has a status only.
fn refusal(code: &str, message: &str) -> Response<Body> {
    let response = Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", code)
        .header(
            "grpc-message",
            message.replace(|c: char| !c.is_ascii_graphic(), "%20"),
        );
    response
        .body(Body::empty())
        .expect("these headers are well-formed")
}

/// `VersionResponse { version }`.
fn version_answer(version: &str) -> Response<Body> {
    message_answer(&store::text(1, version))
}
