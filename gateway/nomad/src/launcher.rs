//! The launcher: what an agent starts as its plugin, and keeps until the agent, or the daemon, goes.
//!
//! ```text
//! start ─► handshake line on stdout ─► serving ─┬─ Shutdown of the agent ─────────────► end, within two seconds
//!                                               ├─ the daemon that was there has gone ─► end, at once
//!                                               ├─ SIGTERM ───────────────────────────► end, at once
//!                                               └─ the agent has gone without a word ─► nothing: the next one reattaches
//! ```
//!
//! It never starts a process, keeps standard output and standard error open to its end (an agent takes the end of both for ours, and
//! nothing else), and says nothing on standard output but its first line.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;

mod calls;
mod delayed_error;
mod exit_deadline;
mod fallback;
mod handshake;
mod link;
mod local;
mod routing;
mod service;
mod socket;

pub use handshake::{COOKIE, HandshakeError, check_cookie};
pub use socket::{SocketEnv, SocketError};

use exit_deadline::ExitDeadline;
use link::Link;
use service::PluginService;
use socket::PluginSocket;

/// Streams at once on one connection, unless the daemon's configuration says otherwise. Each task has a few that do not end, and an agent
/// whose streams are all in use stands still: it is far more than all tasks of a node need.
pub const MAX_STREAMS: u32 = 100_000;

/// How much of one stream may wait for its reader.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;

/// The same for a connection. It never becomes the narrow place: a stream that nobody reads must not hold up the others.
pub(crate) const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Which plugin a launcher is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The task driver.
    Driver,
    /// The device plugin.
    Device,
}

/// What a launcher is told when it is started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Which plugin it is.
    pub role: Role,
    /// The name that jobs know the plugin by; `None` is [`Role::default_name`].
    pub name: Option<String>,
    /// Where the daemon serves launchers.
    pub daemon: PathBuf,
    /// The version that the agent is told: a semantic one.
    pub version: &'static str,
    /// What the agent says of sockets.
    pub socket_env: SocketEnv,
}

/// Why a launcher ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The agent asked for it.
    Asked,
    /// The daemon that was there has gone.
    DaemonGone,
    /// SIGTERM.
    Signal,
}

/// Why a launcher could not run.
#[derive(Debug)]
pub enum LaunchError {
    /// No place for its socket.
    Socket(SocketError),
    /// The agent cannot be told where it is.
    Handshake(io::Error),
    /// Signals cannot be received.
    Signals(io::Error),
    /// The server broke.
    Serve(tonic::transport::Error),
}

/// Runs a launcher to its end. `say` prints the one line of the handshake on standard output.
///
/// # Errors
/// [`LaunchError`]. Before the handshake the agent takes it for a plugin that does not start.
pub async fn run(launch: Launch, say: impl FnOnce(&str) -> io::Result<()>) -> Result<End, LaunchError> {
    // From here on SIGINT, which a terminal sends to all processes of an agent, does nothing.
    let _interrupts = signal(SignalKind::interrupt()).map_err(LaunchError::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(LaunchError::Signals)?;
    let place = PluginSocket::bind(&launch).map_err(LaunchError::Socket)?;
    say(&place.line()).map_err(LaunchError::Handshake)?;

    let ending = ExitDeadline::default();
    let (link, kept) = Link::new(&launch);
    let front = PluginService::new(&launch, link, ending.clone());
    let incoming = place.into_incoming();
    let server = crate::tune(Server::builder(), MAX_STREAMS);
    tokio::select! {
        served = server.serve_with_incoming(front, incoming) => served.map(|()| End::Asked).map_err(LaunchError::Serve),
        () = ending.wait() => Ok(End::Asked),
        link::DaemonGone = kept.run() => {
            tracing::warn!("the daemon has gone: this plugin ends, so that the agent starts it anew and recovers its tasks");
            Ok(End::DaemonGone)
        }
        _ = terminate.recv() => Ok(End::Signal),
    }
}

// === impl Role ===

impl Role {
    /// The name of the plugin if it is given none.
    #[must_use]
    pub const fn default_name(self) -> &'static str {
        match self {
            Self::Driver => "switchyard",
            Self::Device => "switchyard-device",
        }
    }

    /// One word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Device => "device",
        }
    }
}

// === impl Launch ===

impl Launch {
    /// The name that jobs know the plugin by.
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.role.default_name())
    }
}

// === impl LaunchError ===

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Socket(_) => "cannot make a socket for the agent",
            Self::Handshake(_) => "cannot tell the agent where the plugin is",
            Self::Signals(_) => "cannot listen to signals",
            Self::Serve(_) => "cannot serve the agent",
        })
    }
}

impl std::error::Error for LaunchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(match self {
            Self::Socket(source) => source,
            Self::Handshake(source) | Self::Signals(source) => source,
            Self::Serve(source) => source,
        })
    }
}
