//! The way to the daemon: one connection and one session, opened when a call first needs them, and never a second one: when they
//! end, so does the launcher.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use switchyard_proto::switchyard::nomad::v1 as wire;
use switchyard_proto::switchyard::nomad::v1::sessions_client::SessionsClient;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::{CONNECTION_WINDOW, Launch, Role, STREAM_WINDOW};

/// Between two attempts to reach a daemon that is away.
const RETRY: Duration = Duration::from_millis(200);

/// How long the daemon may take to open a session.
const OPENING: Duration = Duration::from_secs(10);

/// The daemon that was there has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DaemonGone;

/// What calls see of the daemon. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Link {
    desired: Arc<watch::Sender<DesiredSession>>,
    session: watch::Receiver<Option<SessionHandle>>,
}

/// Keeps the link, for the life of a launcher.
#[derive(Debug)]
pub(super) struct LinkTask {
    daemon: PathBuf,
    desired: watch::Receiver<DesiredSession>,
    session: watch::Sender<Option<SessionHandle>>,
}

/// An open session.
#[derive(Debug, Clone)]
pub(super) struct SessionHandle {
    /// The connection.
    pub(super) channel: Channel,
    /// The session, as calls name it.
    pub(super) session: MetadataValue<Ascii>,
    /// The wish that it was opened for.
    generation: u64,
}

/// The session that is wanted.
#[derive(Debug, Clone, PartialEq)]
struct DesiredSession {
    /// Somebody needs it. An agent also starts launchers only to ask what they are.
    needed: bool,
    request: wire::OpenRequest,
    /// How often the request has changed.
    generation: u64,
}

/// A session and the stream that it lives by.
struct OpenSession {
    handle: SessionHandle,
    stream: Streaming<wire::OpenResponse>,
}

// === impl Link ===

impl Link {
    /// A link that nobody needs yet.
    pub(super) fn new(launch: &Launch) -> (Self, LinkTask) {
        let request = wire::OpenRequest {
            role: match launch.role {
                Role::Driver => wire::Role::Driver,
                Role::Device => wire::Role::Device,
            }
            .into(),
            name: launch.name().to_owned(),
            msgpack_config: Vec::new(),
            nomad_config: Vec::new(),
            version: launch.version.to_owned(),
        };
        let (wish, wished) = watch::channel(DesiredSession { needed: false, request, generation: 0 });
        let (up, ups) = watch::channel(None);
        (
            Self { desired: Arc::new(wish), session: ups },
            LinkTask { daemon: launch.daemon.clone(), desired: wished, session: up },
        )
    }

    /// Takes the agent's configuration for the session; one that is open already is opened anew with it.
    pub(super) fn configure(&self, msgpack_config: Vec<u8>, nomad_config: Vec<u8>) {
        self.desired.send_if_modified(|wish| {
            let request = wire::OpenRequest { msgpack_config, nomad_config, ..wish.request.clone() };
            let changed = wish.request != request;
            wish.request = request;
            wish.generation += u64::from(changed);
            changed
        });
    }

    /// Has the session opened, if it is not yet.
    pub(super) fn need(&self) {
        self.desired.send_if_modified(|wish| !std::mem::replace(&mut wish.needed, true));
    }

    /// The session with the configuration that was set last, for as long as it takes until the daemon has opened it. Cancel-safe.
    pub(super) async fn session(&self) -> SessionHandle {
        self.need();
        let turn = self.desired.borrow().generation;
        let mut up = self.session.clone();
        let opened = up.wait_for(|up| up.as_ref().is_some_and(|up| up.generation >= turn)).await;
        match opened.map(|up| (*up).clone()) {
            Ok(Some(up)) => up,
            // The keeper has ended, and with it the launcher.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}

// === impl Keeper ===

impl LinkTask {
    /// Opens the session when it is needed, tries until it can, and holds it until the daemon ends it.
    pub(super) async fn run(mut self) -> DaemonGone {
        // The link lives as long as the launcher.
        let _ = self.desired.wait_for(|wish| wish.needed).await;
        let mut session = self.first_session().await;
        loop {
            self.session.send_replace(Some(session.handle.clone()));
            tokio::select! {
                _ = session.stream.message() => return DaemonGone,
                Ok(()) = self.desired.changed() => {
                    let wish = self.desired.borrow_and_update().clone();
                    if wish.generation == session.handle.generation {
                        continue;
                    }
                    match open(session.handle.channel.clone(), wish).await {
                        Ok(other) => session = other,
                        Err(status) => {
                            // The daemon that served the first one would serve this one: it is going.
                            tracing::warn!(status = %status.message(), "the daemon does not open the session anew");
                            return DaemonGone;
                        }
                    }
                }
            }
        }
    }

    async fn first_session(&mut self) -> OpenSession {
        let mut told = String::new();
        loop {
            let wish = self.desired.borrow_and_update().clone();
            let why = match connect(&self.daemon).await {
                Ok(channel) => match open(channel, wish).await {
                    Ok(session) => return session,
                    Err(status) => status.message().to_owned(),
                },
                Err(error) => error.to_string(),
            };
            if told != why {
                let daemon = self.daemon.display();
                tracing::warn!(%daemon, why, "the switchyard daemon is away: calls about tasks wait until it is back");
                told = why;
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// One connection, which is not made again: a later daemon knows nothing of our session.
async fn connect(socket: &Path) -> io::Result<Channel> {
    let stream = Arc::new(Mutex::new(Some(UnixStream::connect(socket).await?)));
    let connector = tower::service_fn(move |_| {
        let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        std::future::ready(stream.map(TokioIo::new).ok_or(io::Error::from(io::ErrorKind::NotConnected)))
    });
    // The address is never looked up: the connector has the connection.
    let endpoint = Endpoint::from_static("http://localhost")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    endpoint.connect_with_connector(connector).await.map_err(io::Error::other)
}

async fn open(channel: Channel, wish: DesiredSession) -> Result<OpenSession, Status> {
    let opening = async {
        let mut stream = SessionsClient::new(channel.clone()).open(wish.request).await?.into_inner();
        let opened = stream.message().await?.unwrap_or_default();
        let session = opened.session_id.parse::<MetadataValue<Ascii>>();
        let session = session.ok().filter(|session| !session.is_empty()).ok_or_else(unnamed)?;
        Ok(OpenSession { handle: SessionHandle { channel, session, generation: wish.generation }, stream })
    };
    match tokio::time::timeout(OPENING, opening).await {
        Ok(opened) => opened,
        Err(_) => Err(crate::status::status(&switchyard_core::Error::deadline(format!(
            "the switchyard daemon has not opened a session within {OPENING:?}"
        )))),
    }
}

fn unnamed() -> Status {
    crate::status::status(&switchyard_core::Error::internal(
        "the switchyard daemon opened a session without a name",
    ))
}
