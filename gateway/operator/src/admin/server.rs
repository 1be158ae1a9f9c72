//! The HTTP/1.1 server below the admin pages. Untrusted clients can reach it, so connections, request heads
//! and idle time are bounded.
//!
//! At the limit, the connection that has been idle for longest is closed for a new one. So a client that
//! holds many connections open does not lock others out, and a scraper whose idle connection was closed
//! connects again. On the admin socket, where users are known, a part of the connections is left to root, and each
//! other user has at most half of the rest. Connections that have ceased to be HTTP take none of these places: their number
//! has a limit of its own, and they may last for days.
//!
//! Longer than 500 lines because the limits of one server count its connections.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use switchyard_core::operation::Caller;
use switchyard_socket::listener::{GuardedListener, OwnConnections};
use switchyard_telemetry::LogPace;
use switchyard_tls::{Acceptor, Certificate};

use crate::config::AdminConfig;
use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nix::unistd::geteuid;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::access::is_root;
use super::answers::text;
use super::exec::{Continued, SESSIONS_MAX};
use super::host::{self, Hosts};

/// The time that a new connection has for the head of its first request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The time after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// The longest head of a request, in bytes.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// The timeout for one page; every page has shorter timeouts itself.
const PAGE_LIMIT: Duration = Duration::from_secs(30);

/// The pause before the next try after a connection could not be accepted.
const RETRY: Duration = Duration::from_millis(100);

/// The minimum time between two log lines about refused connections.
const QUIET: Duration = Duration::from_secs(60);

/// Limits for the clients of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Time in which a new connection has to send the head of its first request.
    pub header_timeout: Duration,
    /// Time for which a connection may be idle after an answer.
    pub idle_timeout: Duration,
    /// The maximum size of a request's head in bytes; at least 8192.
    pub max_header_bytes: usize,
}

impl From<&AdminConfig> for Limits {
    fn from(config: &AdminConfig) -> Self {
        Self {
            max_connections: config.max_connections,
            header_timeout: HEADER_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            max_header_bytes: MAX_HEADER_BYTES,
        }
    }
}

/// Serves a router on a listener until it is dropped, which closes all connections.
pub async fn serve<L>(listener: L, router: Router, hosts: Hosts, limits: Limits)
where
    L: AdminListener,
{
    accept(
        listener,
        OwnConnections::none(),
        router,
        hosts,
        limits,
        None,
    )
    .await;
}

/// The same, and serves connections of the daemon itself, which count towards no limit.
pub async fn serve_also<L>(
    listener: L,
    own: OwnConnections,
    router: Router,
    hosts: Hosts,
    limits: Limits,
) where
    L: AdminListener,
{
    accept(listener, own, router, hosts, limits, None).await;
}

/// The same with TLS. A handshake is a part of the first request's head, as far as limits are concerned; when
/// the certificate is replaced, open connections are closed after the page that they are at.
pub async fn serve_tls<L>(
    listener: L,
    certificate: Certificate,
    router: Router,
    hosts: Hosts,
    limits: Limits,
) where
    L: AdminListener,
{
    accept(
        listener,
        OwnConnections::none(),
        router,
        hosts,
        limits,
        Some(certificate),
    )
    .await;
}

async fn accept<L>(
    mut listener: L,
    mut own: OwnConnections,
    router: Router,
    hosts: Hosts,
    limits: Limits,
    certificate: Option<Certificate>,
) where
    L: AdminListener,
{
    let mut connections = JoinSet::new();
    let mut places = ConnectionTable::new(limits.max_connections);
    let failures = LogPace::default();
    loop {
        // Connections that were closed for others count until their tasks have ended.
        let most = 2 * limits.max_connections + SESSIONS_MAX;
        let room = connections.len() < most && places.has_room();
        tokio::select! {
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "the task of an admin connection panicked");
                }
            }
            () = places.freed.notified(), if !room => {}
            stream = own.next() => {
                let caller = Caller { listener: "self-check", uid: None, pid: None };
                let served = ServedPages { router: router.clone(), hosts: hosts.clone(), limits, caller };
                connections.spawn(connection(stream, None, served, places.uncounted()));
            }
            accepted = listener.accept(), if room => {
                let (stream, caller) = match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        if failures.is_due() {
                            tracing::warn!(%error, "cannot accept a connection of an admin client; trying again");
                        }
                        sleep(RETRY).await;
                        continue;
                    }
                };
                let Some(place) = places.admit(PeerClass::of(&caller)) else {
                    places.log_refusal(&caller);
                    continue;
                };
                let served = ServedPages { router: router.clone(), hosts: hosts.clone(), limits, caller };
                let acceptor = certificate.as_ref().map(Certificate::acceptor);
                connections.spawn(connection(stream, acceptor, served, place));
            }
        }
    }
}

/// The pages that a connection is served, and its limits.
struct ServedPages {
    router: Router,
    hosts: Hosts,
    limits: Limits,
    caller: Caller,
}

/// A source of connections: one address or socket.
pub trait AdminListener: Send {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Accepts the next connection; returns who requests what comes over it. Cancel-safe.
    ///
    /// # Errors
    /// Those of the system that are of no single connection, such as the limit on open files.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, Caller)>> + Send;
}

impl AdminListener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, Caller)> {
        loop {
            match Self::accept(self).await {
                Ok((stream, _)) => {
                    return Ok((
                        stream,
                        Caller {
                            listener: "admin address",
                            uid: None,
                            pid: None,
                        },
                    ));
                }
                // The client has gone before its connection was accepted.
                Err(error) if is_of_connection(error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AdminListener for GuardedListener {
    type Stream = UnixStream;

    async fn accept(&mut self) -> io::Result<(UnixStream, Caller)> {
        let stream = Self::accept(self).await;
        let peer = stream.peer_cred().ok();
        let caller = Caller {
            listener: "admin socket",
            uid: peer.map(|peer| peer.uid()),
            pid: peer
                .and_then(|peer| peer.pid())
                .and_then(|pid| u32::try_from(pid).ok()),
        };
        Ok((stream, caller))
    }
}

const fn is_of_connection(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

/// Serves one connection until it ends, exceeds a timeout, or is closed for another one.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    acceptor: Option<Acceptor>,
    pages: ServedPages,
    place: Arc<ConnectionState>,
) {
    let limits = pages.limits;
    let served = async {
        match acceptor {
            None => requests(stream, pages, Arc::clone(&place), std::future::pending()).await,
            Some(acceptor) => match acceptor.accept(stream).await {
                Ok(stream) => {
                    requests(stream, pages, Arc::clone(&place), acceptor.replaced()).await
                }
                Err(error) => tracing::debug!(%error, "an admin connection has failed at TLS"),
            },
        }
    };
    tokio::pin!(served);
    loop {
        tokio::select! {
            () = &mut served => return,
            () = place.evicted.cancelled() => return,
            // The connection may have changed its activity since the deadline was set.
            () = sleep_until(place.deadline(&limits)) => if place.deadline(&limits) <= Instant::now() {
                return;
            },
        }
    }
}

/// Answers the requests of one connection. Once `last` completes, only a page that is being served is
/// completed.
async fn requests(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ServedPages {
        router,
        hosts,
        limits,
        caller,
    }: ServedPages,
    place: Arc<ConnectionState>,
    last: impl Future<Output = ()> + Send,
) {
    let continued = Mutex::new(None);
    let service = service_fn(|request: Request<Incoming>| {
        let continued = &continued;
        let router = router.clone();
        let place = Arc::clone(&place);
        let caller = caller.clone();
        let hosts = &hosts;
        async move {
            place.set(ConnectionPhase::Page);
            // The buffer of the HTTP server takes up to twice the limit.
            let is_long = head_length(&request) > limits.max_header_bytes;
            let long = || (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, String::new());
            let refusal = is_long
                .then(long)
                .or_else(|| host::refusal(hosts, &request));
            let mut answer = match refusal {
                Some((status, why)) => text(status, why),
                None => match caller.scope(router.oneshot(request.map(Body::new))).await {
                    Ok(answer) => answer,
                    Err(never) => match never {},
                },
            };
            if let Some(work) = Continued::take(&mut answer) {
                *continued.lock() = Some(work);
                place.set(ConnectionPhase::Continued);
            } else {
                // The answer is sent within the idle limit: a client that does not read it keeps no place.
                place.set(ConnectionPhase::Idle);
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut served = http1::Builder::new();
    let served = served
        .max_buf_size(limits.max_header_bytes)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(served, last);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = &mut last => {
            // The certificate was replaced: a request in progress is answered before the connection ends.
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection broke");
    }
    let work = continued.lock().take();
    if let Some(work) = work {
        work.await;
    }
}

/// The length of the head of a request as HTTP/1.1, in bytes.
fn head_length<B>(request: &Request<B>) -> usize {
    let line = request.method().as_str().len()
        + request.uri().to_string().len()
        + " HTTP/1.1\r\n".len()
        + 1;
    let fields = request
        .headers()
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    line + fields.sum::<usize>() + "\r\n".len()
}

/// The connections of one listener.
struct ConnectionTable {
    limit: usize,
    open: Vec<Weak<ConnectionState>>,
    /// Notified when a connection becomes idle, or gives up its place.
    freed: Arc<Notify>,
    /// Time at which a refusal was last logged.
    logged: Option<Instant>,
}

/// The peer of a connection, as far as limits are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerClass {
    /// Anybody's: of a listener that does not know the users of its peers.
    Anybody,
    /// Root, or the user of the daemon.
    Root,
    /// Another user, by its number.
    User(u32),
}

/// One connection, as the listener sees it.
struct ConnectionState {
    class: PeerClass,
    state: Mutex<(ConnectionPhase, Instant)>,
    evicted: CancellationToken,
    freed: Arc<Notify>,
}

/// The activity of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// Its first request is not complete.
    Head,
    /// A request is being served.
    Page,
    /// It has been answered.
    Idle,
    /// It has been answered, and is not HTTP any more.
    Continued,
}

impl PeerClass {
    fn of(caller: &Caller) -> Self {
        match caller.uid {
            None => Self::Anybody,
            uid if is_root(uid, geteuid().as_raw()) => Self::Root,
            Some(uid) => Self::User(uid),
        }
    }

    const fn is_user(self) -> bool {
        match self {
            Self::User(_) => true,
            Self::Anybody | Self::Root => false,
        }
    }
}

impl ConnectionTable {
    fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            open: Vec::new(),
            freed: Arc::new(Notify::new()),
            logged: None,
        }
    }

    /// Returns whether a connection may be accepted: there is room, or an idle connection can be closed.
    fn has_room(&mut self) -> bool {
        self.open.retain(|place| {
            place
                .upgrade()
                .is_some_and(|place| !place.evicted.is_cancelled())
        });
        self.taken() < self.limit || self.idle_longest(|_| true).is_some()
    }

    /// The number of places that are taken.
    fn taken(&self) -> usize {
        self.count(|place| place.state().0 != ConnectionPhase::Continued)
    }

    /// Maximum number of connections of all users but root together: an eighth is left to root.
    fn limit_of_users(&self) -> usize {
        if self.limit < 2 {
            self.limit
        } else {
            self.limit - (self.limit / 8).max(1)
        }
    }

    /// Maximum number of connections of one user.
    fn limit_of_user(&self) -> usize {
        self.limit_of_users().div_ceil(2)
    }

    /// Registers one more connection; at a limit, the connection within it that has been idle for longest is closed.
    /// `None` if none of them is idle. To be called after [`Self::has_room`].
    fn admit(&mut self, class: PeerClass) -> Option<Arc<ConnectionState>> {
        let is_of_user = |place: &ConnectionState| place.class.is_user();
        let is_own = |place: &ConnectionState| place.class == class;
        if class.is_user() {
            if self.count(is_own) >= self.limit_of_user() {
                self.close_idle(is_own)?;
            } else if self.count(is_of_user) >= self.limit_of_users() {
                self.close_idle(is_of_user)?;
            } else if self.taken() >= self.limit {
                // Root's have more than their share then, and those that wait for nothing make way.
                self.close_idle(|_| true)?;
            }
        } else if self.taken() >= self.limit {
            // Root's commands do not take places from each other while there are others.
            self.close_idle(is_of_user)
                .or_else(|| self.close_idle(|_| true))?;
        }
        let place = Arc::new(ConnectionState::new(class, &self.freed));
        self.open.push(Arc::downgrade(&place));
        Some(place)
    }

    /// Logs that a connection was closed at once, at most once a minute.
    fn log_refusal(&mut self, caller: &Caller) {
        if self.logged.is_some_and(|logged| logged.elapsed() < QUIET) {
            return;
        }
        self.logged = Some(Instant::now());
        tracing::warn!(
            uid = caller.uid,
            pid = caller.pid,
            "connection refused: of admin.max_connections, {} are for all users but root, {} for one of them, and all of them wait for pages",
            self.limit_of_users(),
            self.limit_of_user()
        );
    }

    /// The state of a connection that takes no place from others.
    fn uncounted(&self) -> Arc<ConnectionState> {
        Arc::new(ConnectionState::new(PeerClass::Root, &self.freed))
    }

    fn count(&self, is_meant: impl Fn(&ConnectionState) -> bool) -> usize {
        self.open
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|place| is_meant(place))
            .count()
    }

    /// Closes the connection of these that has been idle for longest; `None` if none is idle.
    fn close_idle(&mut self, is_meant: impl Fn(&ConnectionState) -> bool) -> Option<()> {
        let oldest = self.idle_longest(is_meant)?;
        tracing::debug!("an idle admin connection is closed for a new one");
        oldest.evicted.cancel();
        self.open.retain(|place| {
            place
                .upgrade()
                .is_some_and(|place| !place.evicted.is_cancelled())
        });
        Some(())
    }

    fn idle_longest(
        &self,
        is_meant: impl Fn(&ConnectionState) -> bool,
    ) -> Option<Arc<ConnectionState>> {
        let idle = self.open.iter().filter_map(|place| {
            let place = place.upgrade()?;
            let (doing, since) = place.state();
            let is_idle = matches!(doing, ConnectionPhase::Head | ConnectionPhase::Idle);
            (is_idle && is_meant(&place)).then_some((since, place))
        });
        idle.min_by_key(|(since, _)| *since).map(|(_, place)| place)
    }
}

impl ConnectionState {
    fn new(class: PeerClass, freed: &Arc<Notify>) -> Self {
        Self {
            class,
            state: Mutex::new((ConnectionPhase::Head, Instant::now())),
            evicted: CancellationToken::new(),
            freed: Arc::clone(freed),
        }
    }

    fn state(&self) -> (ConnectionPhase, Instant) {
        *self.state.lock()
    }

    fn set(&self, doing: ConnectionPhase) {
        *self.state.lock() = (doing, Instant::now());
        if matches!(doing, ConnectionPhase::Idle | ConnectionPhase::Continued) {
            self.freed.notify_one();
        }
    }

    /// Time at which the connection is closed if its activity does not change.
    fn deadline(&self, limits: &Limits) -> Instant {
        let (doing, since) = self.state();
        match doing {
            ConnectionPhase::Head => since + limits.header_timeout,
            ConnectionPhase::Page => since + PAGE_LIMIT,
            ConnectionPhase::Idle => since + limits.idle_timeout,
            // It has none, and is looked at again.
            ConnectionPhase::Continued => Instant::now() + limits.idle_timeout,
        }
    }
}

#[cfg(test)]
mod tests;
