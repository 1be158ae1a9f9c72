//! The listener: accepts connections, redeems their tokens, and serves their sessions until it is stopped.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::BytesMut;
use http::Request;
use hyper::body::Incoming as Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use switchyard_tls::{Acceptor, Certificate, TlsConfig, TlsError};
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use url::Url;

use crate::carry;
use crate::config::Config;
use crate::io::{Activity, Io, Probe};
use crate::request::{Redeemed, answer};
use crate::sessions::Sessions;
use crate::token::Tokens;

/// Interval at which expired tokens are dropped: their sessions may hold resources.
const SWEEP: Duration = Duration::from_secs(5);

/// Pause after an accept failed for lack of resources, until some connections have ended.
const NO_ACCEPT: Duration = Duration::from_millis(100);

/// Time for sessions to end once they were cancelled: enough for the process to be notified, and for the
/// client's last bytes.
const ENDING: Duration = Duration::from_secs(13);

/// The largest head of a request, in bytes.
const MAX_REQUEST: usize = 16 * 1024;

/// The streaming server, bound and not yet serving.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Certificate>,
    config: Config,
    sessions: Sessions,
}

/// Reason why a server could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address} for exec, attach and port-forward; choose a free address")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The certificate or its key is unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The base URL is not an HTTP URL.
    #[error("streaming URLs cannot begin with {url:?}: it must be http:// or https:// with a host")]
    BaseUrl {
        /// The configured base URL.
        url: String,
    },
}

// === impl Server ===

impl Server {
    /// Listens, and reads the certificate. Connections wait until [`Server::run`] is polled.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub async fn bind(config: Config) -> Result<Self, BindError> {
        let tls = config
            .tls
            .as_ref()
            .map(TlsConfig::read)
            .transpose()?
            .map(Certificate::new);
        let listen = |source| BindError::Listen {
            address: config.address,
            source,
        };
        let listener = TcpListener::bind(config.address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let base = match &config.base_url {
            Some(url) => url.clone(),
            None => {
                // A URL has no place for the zone of an address.
                let url = format!("{scheme}://{address}");
                Url::parse(&url).map_err(|_| BindError::BaseUrl { url })?
            }
        };
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(BindError::BaseUrl { url: base.into() });
        }
        let sessions = Sessions::new(base, Tokens::new(config.token_lifetime, config.max_tokens));
        Ok(Self {
            listener,
            address,
            tls,
            config,
            sessions,
        })
    }

    /// The address that it listens on; the port is never 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The handle with which the certificate is replaced; `None` if the server speaks plain HTTP.
    #[must_use]
    pub fn certificate(&self) -> Option<Certificate> {
        self.tls.clone()
    }

    /// The handle with which frontends register sessions.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        self.sessions.clone()
    }

    /// Serves until `stop`. Then it accepts no more connections, gives open sessions
    /// [`Config::drain_timeout`] to end, and cancels the rest. All tasks of the server have ended when this
    /// returns, and when it is dropped.
    pub async fn run(self, stop: CancellationToken) {
        let Self {
            listener,
            address: _,
            tls,
            config,
            sessions,
        } = self;
        let config = Arc::new(config);
        let end = CancellationToken::new();
        let mut connections = JoinSet::new();
        let mut waiting = PendingConnections::default();
        let mut sweep = interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failure_logged = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = sweep.tick() => sessions.tokens().expire(tokio::time::Instant::now()),
                Some(ended) = connections.join_next() => log_panic(ended),
                accepted = listener.accept(), if waiting.make_room(connections.len(), &config) => match accepted {
                    Ok((socket, _)) => {
                        failure_logged = false;
                        let tls = tls.as_ref().map(Certificate::acceptor);
                        let config = Arc::clone(&config);
                        let sessions = sessions.clone();
                        let end = end.child_token();
                        let eviction = waiting.admit(&config);
                        connections
                            .spawn(async move { connection(socket, tls, &config, &sessions, eviction, end).await });
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut failure_logged, true) {
                            warn!(%error, "cannot accept a streaming connection; retrying");
                        }
                        sleep(NO_ACCEPT).await;
                    }
                },
            }
        }
        // New connections are refused at once, instead of waiting in a backlog that nobody accepts from.
        drop(listener);
        // First sessions may end by themselves. Then they are cancelled, with time to notify processes.
        for limit in [config.drain_timeout, ENDING] {
            let ended = async {
                while let Some(ended) = connections.join_next().await {
                    log_panic(ended);
                }
            };
            if timeout(limit, ended).await.is_ok() {
                return;
            }
            end.cancel();
        }
        warn!(
            left = connections.len(),
            "streaming sessions did not end in time and are aborted"
        );
        connections.shutdown().await;
    }
}

/// The connections without a valid token yet, the oldest first. Any process can open them, so they do not
/// count as sessions.
#[derive(Default)]
struct PendingConnections(VecDeque<Weak<EvictionToken>>);

/// Held by a connection until it becomes a session; cancelled to close the connection in favour of another
/// one.
type EvictionToken = CancellationToken;

impl PendingConnections {
    /// Returns whether one more connection may be accepted.
    fn make_room(&mut self, connections: usize, config: &Config) -> bool {
        self.0.retain(|eviction| eviction.strong_count() > 0);
        // Those without a request do not count: they have a limit of their own, and are evicted.
        connections.saturating_sub(self.0.len()) < config.max_connections
    }

    /// Adds a connection; if there are too many, the oldest is closed.
    fn admit(&mut self, config: &Config) -> Arc<EvictionToken> {
        while self.0.len() >= config.max_waiting.max(1) {
            if let Some(oldest) = self.0.pop_front().and_then(|eviction| eviction.upgrade()) {
                debug!(
                    "closing the oldest streaming connection without a request to make room for another"
                );
                oldest.cancel();
            }
        }
        let eviction = Arc::new(EvictionToken::new());
        self.0.push_back(Arc::downgrade(&eviction));
        eviction
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        warn!(%error, "a streaming connection failed");
    }
}

/// Serves one connection to its end.
async fn connection(
    socket: TcpStream,
    tls: Option<Acceptor>,
    config: &Config,
    sessions: &Sessions,
    eviction: Arc<EvictionToken>,
    end: CancellationToken,
) {
    // A keystroke must not wait until the client has acknowledged earlier bytes.
    let probe = match socket.set_nodelay(true).and_then(|()| Probe::of(&socket)) {
        Ok(probe) => probe,
        Err(error) => return debug!(%error, "a streaming connection cannot be served"),
    };
    let request = async {
        match tls {
            None => {
                let (redeemed, socket, read_ahead) = request(socket, sessions).await?;
                let (reader, writer) = socket.into_split();
                Some((redeemed, io(reader, writer, read_ahead, probe)))
            }
            Some(tls) => {
                let socket = tls
                    .accept(socket)
                    .await
                    .map_err(|error| debug!(%error, "no TLS"))
                    .ok()?;
                let (redeemed, socket, read_ahead) = request(socket, sessions).await?;
                let (reader, writer) = split(socket);
                Some((redeemed, io(reader, writer, read_ahead, probe)))
            }
        }
    };
    let answered = tokio::select! {
        answered = timeout(config.request_timeout, request) => answered,
        () = eviction.cancelled() => return,
        () = end.cancelled() => return,
    };
    // It has a request now, and is not evicted for others any more.
    drop(eviction);
    match answered {
        Ok(Some((redeemed, io))) => {
            let _opened = sessions.opened(redeemed.kind());
            carry::carry(redeemed, io, config, end).await;
        }
        Ok(None) => {}
        Err(_) => debug!("a client took too long for its request"),
    }
}

fn io(
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    read_ahead: BytesMut,
    probe: Probe,
) -> Io {
    let activity = Arc::new(Activity::new());
    Io {
        reader: Box::new(reader),
        writer: Box::new(writer),
        read_ahead,
        probe,
        activity,
    }
}

/// Answers the single request of a connection; returns the session that it was upgraded to, and the bytes
/// that were read after the request.
async fn request<S>(socket: S, sessions: &Sessions) -> Option<(Redeemed, S, BytesMut)>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let slot: Mutex<Option<(Redeemed, OnUpgrade)>> = Mutex::new(None);
    let service = service_fn(|mut request: Request<Body>| {
        let (response, redeemed) = answer(sessions, &request);
        if let Some(redeemed) = redeemed {
            let upgrade = hyper::upgrade::on(&mut request);
            *slot.lock() = Some((redeemed, upgrade));
        }
        async move { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .max_buf_size(MAX_REQUEST)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        debug!(%error, "a streaming connection sent no valid request");
        return None;
    }
    let (redeemed, upgrade) = slot.into_inner()?;
    let upgraded = upgrade
        .await
        .map_err(|error| debug!(%error, "no upgrade"))
        .ok()?;
    let parts = upgraded
        .downcast::<TokioIo<S>>()
        .expect("it is what was given to hyper");
    Some((
        redeemed,
        parts.io.into_inner(),
        BytesMut::from(&parts.read_buf[..]),
    ))
}
