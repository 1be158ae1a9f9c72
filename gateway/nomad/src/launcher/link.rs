//! The link to the daemon: one connection and one session, opened when a call first needs them. When they end, the
//! launcher exits, or opens others with the next daemon, as [`RecoveryWatch`] decides.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use switchyard_proto::switchyard::nomad::v1 as wire;
use switchyard_proto::switchyard::nomad::v1::sessions_client::SessionsClient;
use switchyard_socket::channel::is_attended_at;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::launch::{Launch, Role};
use super::recovery::RecoveryWatch;
use crate::status::is_permanent;
use crate::transport::{CONNECTION_WINDOW, STREAM_WINDOW};

/// The interval between attempts to reach the daemon.
const RETRY: Duration = Duration::from_millis(200);

/// Limit for the daemon to accept the connection, and to open a session.
const OPENING: Duration = Duration::from_secs(10);

/// The reason for a connection that nobody would accept.
const UNATTENDED: &str = "no daemon runs, and its socket is kept open for the next one";

/// The daemon that the launcher was connected to has ended, and the launcher is to end with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DaemonGone;

/// The link as seen by calls. Clones share state.
#[derive(Debug, Clone)]
pub(super) struct Link {
    /// The calls of the agent that decide whether the launcher outlives its session.
    pub(super) recovery: RecoveryWatch,
    desired: Arc<watch::Sender<DesiredSession>>,
    session: watch::Receiver<Option<SessionHandle>>,
}

/// Maintains the link during the life of a launcher.
#[derive(Debug)]
pub(super) struct LinkTask {
    daemon: PathBuf,
    recovery: RecoveryWatch,
    /// Number of connections to daemons on which a session was opened.
    connections: u64,
    desired: watch::Receiver<DesiredSession>,
    session: watch::Sender<Option<SessionHandle>>,
}

/// An open session.
#[derive(Debug, Clone)]
pub(super) struct SessionHandle {
    /// The connection to the daemon.
    pub(super) channel: Channel,
    /// The session id, as sent in the metadata of calls.
    pub(super) session: MetadataValue<Ascii>,
    /// The generation of the request that it was opened for.
    generation: u64,
    /// The number of its connection. A session that is reopened on the same one is not another one to calls.
    connection: u64,
}

/// The desired session.
#[derive(Debug, Clone, PartialEq)]
struct DesiredSession {
    /// True if a call needs a session. An agent also starts launchers only to query their identity.
    needed: bool,
    request: wire::OpenRequest,
    /// Number of changes of the request.
    generation: u64,
}

/// The reason why no session could be opened. The launcher tries again in any case: an agent takes a failed recovery
/// of a task for its end, and starts it a second time.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Obstacle {
    /// The daemon is not there, or cannot open a session at the moment.
    Away(String),
    /// The daemon does not accept this launcher, as one of another version may not.
    Refused(String),
}

/// A session and the stream that keeps it open.
struct OpenSession {
    handle: SessionHandle,
    stream: Streaming<wire::OpenResponse>,
}

// === impl Link ===

impl Link {
    /// A link that is not needed yet.
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
        let (desired_tx, desired_rx) = watch::channel(DesiredSession {
            needed: false,
            request,
            generation: 0,
        });
        let (session_tx, session_rx) = watch::channel(None);
        let recovery = RecoveryWatch::new(launch.role);
        (
            Self {
                recovery: recovery.clone(),
                desired: Arc::new(desired_tx),
                session: session_rx,
            },
            LinkTask {
                daemon: launch.daemon.clone(),
                recovery,
                connections: 0,
                desired: desired_rx,
                session: session_tx,
            },
        )
    }

    /// Sets the agent's configuration for the session; an open session is reopened with it.
    pub(super) fn configure(&self, msgpack_config: Vec<u8>, nomad_config: Vec<u8>) {
        self.desired.send_if_modified(|desired| {
            let request = wire::OpenRequest {
                msgpack_config,
                nomad_config,
                ..desired.request.clone()
            };
            let changed = desired.request != request;
            desired.request = request;
            desired.generation += u64::from(changed);
            changed
        });
    }

    /// Requests that the session is opened.
    pub(super) fn need(&self) {
        self.desired
            .send_if_modified(|desired| !std::mem::replace(&mut desired.needed, true));
    }

    /// The session with the configuration set last; waits until the daemon has opened it. Cancel-safe.
    pub(super) async fn session(&self) -> SessionHandle {
        self.need();
        let generation = self.desired.borrow().generation;
        let mut up = self.session.clone();
        let opened = up
            .wait_for(|up| up.as_ref().is_some_and(|up| up.generation >= generation))
            .await;
        match opened.map(|up| (*up).clone()) {
            Ok(Some(up)) => up,
            // The link task has ended; the launcher is about to exit.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Returns when this session has ended and the launcher outlives it; never if the launcher is about to exit.
    /// Cancel-safe.
    pub(super) async fn ended(&self, session: &SessionHandle) {
        let connection = session.connection;
        let mut up = self.session.clone();
        let is_outlived = up
            .wait_for(|up| up.as_ref().is_none_or(|up| up.connection != connection))
            .await
            .is_ok();
        if !is_outlived {
            std::future::pending::<()>().await;
        }
    }

    /// Returns whether [`Link::ended`] returns within this time. Cancel-safe.
    pub(super) async fn ended_within(&self, session: &SessionHandle, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.ended(session))
            .await
            .is_ok()
    }
}

// === impl LinkTask ===

impl LinkTask {
    /// Opens the session when it is needed, retries until that succeeds, and holds it until the daemon ends
    /// it; then the same with the next daemon, as long as the launcher outlives its sessions.
    pub(super) async fn run(mut self) -> DaemonGone {
        // The link lives as long as the launcher.
        let _ = self.desired.wait_for(|desired| desired.needed).await;
        loop {
            let session = self.next_session().await;
            self.recovery.opened();
            self.hold(session).await;
            if !self.recovery.outlives_session() {
                return DaemonGone;
            }
            tracing::warn!(
                "the session has ended while the agent may be recovering its tasks: this plugin continues with the next daemon"
            );
            self.session.send_replace(None);
        }
    }

    /// Publishes a session, and returns when the daemon has ended it. Reopens it when the request changes.
    async fn hold(&mut self, mut session: OpenSession) {
        loop {
            self.session.send_replace(Some(session.handle.clone()));
            tokio::select! {
                _ = session.stream.message() => return,
                Ok(()) = self.desired.changed() => {
                    let desired = self.desired.borrow_and_update().clone();
                    if desired.generation == session.handle.generation {
                        continue;
                    }
                    let SessionHandle { channel, connection, .. } = session.handle.clone();
                    match open(channel, desired, connection).await {
                        Ok(other) => session = other,
                        Err(status) => {
                            // The daemon that served the first session would serve this one too, so it must
                            // be shutting down.
                            tracing::warn!(status = %status.message(), "the daemon did not reopen the session: assuming that it is shutting down");
                            return;
                        }
                    }
                }
            }
        }
    }

    async fn next_session(&mut self) -> OpenSession {
        self.connections += 1;
        let mut logged = None;
        loop {
            let desired = self.desired.borrow_and_update().clone();
            let obstacle = match connect(&self.daemon).await {
                Ok(channel) => match open(channel, desired, self.connections).await {
                    Ok(session) => return session,
                    Err(status) => Obstacle::of_status(&status),
                },
                Err(error) => Obstacle::of_connection(&error),
            };
            if logged.as_ref() != Some(&obstacle) {
                obstacle.log(&self.daemon);
                logged = Some(obstacle);
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

// === impl Obstacle ===

impl Obstacle {
    fn of_connection(error: &io::Error) -> Self {
        let why = error.to_string();
        if error.kind() == io::ErrorKind::PermissionDenied {
            Self::Refused(why)
        } else {
            Self::Away(why)
        }
    }

    fn of_status(status: &Status) -> Self {
        // A daemon without the method says nothing more than the code.
        let why = match status.message() {
            "" => status.code().description().to_owned(),
            message => message.to_owned(),
        };
        if is_permanent(status) {
            Self::Refused(why)
        } else {
            Self::Away(why)
        }
    }

    fn log(&self, daemon: &Path) {
        let daemon = daemon.display();
        match self {
            Self::Away(why) => {
                tracing::warn!(%daemon, reason = why, "the switchyard daemon is away: calls about tasks wait until it is back");
            }
            Self::Refused(why) => {
                tracing::warn!(%daemon, reason = why, "the switchyard daemon refuses this plugin: calls about tasks wait until it accepts it");
            }
        }
    }
}

/// A single connection that is never re-established: a later daemon would not know this session.
///
/// It is made to a daemon that listens, and does not wait at a listener that has outlived its daemon: the next daemon may
/// bind another one, as one of an older version does, and the driver would be undetected for [`OPENING`].
async fn connect(socket: &Path) -> io::Result<Channel> {
    let stream = UnixStream::connect(socket).await?;
    if !is_attended_at(&stream)? {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, UNATTENDED));
    }
    let stream = Arc::new(Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_| {
        let stream = stream.lock().take();
        std::future::ready(
            stream
                .map(TokioIo::new)
                .ok_or(io::Error::from(io::ErrorKind::NotConnected)),
        )
    });
    // A placeholder that is never resolved: the connector provides the connection.
    let endpoint = Endpoint::from_static("http://localhost")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    // A daemon may end just now, and its listener keeps connections waiting.
    tokio::time::timeout(OPENING, endpoint.connect_with_connector(connector))
        .await
        .map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))?
        .map_err(io::Error::other)
}

async fn open(
    channel: Channel,
    desired: DesiredSession,
    connection: u64,
) -> Result<OpenSession, Status> {
    let opening = async {
        let mut stream = SessionsClient::new(channel.clone())
            .open(desired.request)
            .await?
            .into_inner();
        let opened = stream.message().await?.unwrap_or_default();
        let session = opened.session_id.parse::<MetadataValue<Ascii>>();
        let session = session
            .ok()
            .filter(|session| !session.is_empty())
            .ok_or_else(unnamed)?;
        Ok(OpenSession {
            handle: SessionHandle {
                channel,
                session,
                generation: desired.generation,
                connection,
            },
            stream,
        })
    };
    match tokio::time::timeout(OPENING, opening).await {
        Ok(opened) => opened,
        Err(_) => Err(crate::status::status(&switchyard_core::Error::deadline(
            format!("the switchyard daemon has not opened a session within {OPENING:?}"),
        ))),
    }
}

fn unnamed() -> Status {
    crate::status::status(&switchyard_core::Error::internal(
        "the switchyard daemon opened a session without a name",
    ))
}

#[cfg(test)]
mod tests {
    use switchyard_core::Error;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn listener_that_nobody_serves_is_taken_for_a_daemon_that_is_away() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nomad.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let desired = DesiredSession {
            needed: true,
            request: wire::OpenRequest::default(),
            generation: 0,
        };
        let obstacle = match connect(&socket).await {
            Ok(channel) => {
                let opened = open(channel, desired, 1).await;
                Obstacle::of_status(&opened.err().expect("nobody opens a session"))
            }
            Err(error) => Obstacle::of_connection(&error),
        };
        assert!(matches!(obstacle, Obstacle::Away(_)), "{obstacle:?}");
    }

    #[test]
    fn daemon_that_refuses_is_not_taken_for_one_that_is_away() {
        for error in [
            Error::invalid("config", "unknown key"),
            Error::unimplemented("/switchyard.nomad.v1.Sessions/Open"),
        ] {
            let obstacle = Obstacle::of_status(&crate::status::status(&error));
            assert_eq!(obstacle, Obstacle::Refused(error.report()));
        }
        let silent = Obstacle::of_status(&Status::unimplemented(""));
        assert!(matches!(silent, Obstacle::Refused(why) if why.contains("not implemented")));
        for status in [
            crate::status::shutting_down(),
            crate::status::status(&Error::deadline("not opened in time")),
            crate::status::status(&Error::internal("draw a name")),
        ] {
            let obstacle = Obstacle::of_status(&status);
            assert_eq!(obstacle, Obstacle::Away(status.message().to_owned()));
        }
        let connection = |kind: io::ErrorKind| Obstacle::of_connection(&kind.into());
        for kind in [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused] {
            assert!(matches!(connection(kind), Obstacle::Away(_)), "{kind}");
        }
        let denied = connection(io::ErrorKind::PermissionDenied);
        assert!(matches!(denied, Obstacle::Refused(_)), "{denied:?}");
    }
}
