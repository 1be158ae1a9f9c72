//! The launcher: the process that an agent starts as its plugin. It runs until the agent, or the daemon, ends
//! it. It outlives daemons while its agent may be recovering tasks.
//!
//! ```text
//! start ─► handshake line ─► serving ─┬─ Shutdown call of the agent ────────► exit within two seconds
//!                                     ├─ the connected daemon ends ─┬───────► exit at once
//!                                     │                             └ while the agent may be recovering its tasks:
//!                                     │                               continue with the next daemon, repeat calls
//!                                     ├─ SIGTERM ───────────────────────────► exit at once
//!                                     └─ the agent exits without a call ────► keep running for reattachment
//! ```
//!
//! It never starts a process. It keeps standard output and standard error open until it exits (an agent takes
//! the end of both, and nothing else, for the exit of its plugin), and writes only its first line to standard
//! output.

use std::fmt;
use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;

mod calls;
mod delayed_error;
mod exit_deadline;
mod fallback;
mod forward;
mod handshake;
mod launch;
mod link;
mod local;
mod outputs;
mod recovery;
mod routing;
mod service;
mod socket;
#[cfg(test)]
mod tests;

pub use handshake::{COOKIE, HandshakeError, check_cookie};
pub use launch::{Launch, Role, SocketEnv};
pub use socket::SocketError;

use exit_deadline::ExitDeadline;
use link::Link;
use service::PluginService;
use socket::PluginSocket;

use crate::transport::tune;

/// The reason why a launcher exited normally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The agent requested it.
    Requested,
    /// The daemon that it was connected to has ended, and the agent was not recovering its tasks.
    DaemonGone,
    /// SIGTERM.
    Signal,
}

/// The reason why a launcher could not run.
#[derive(Debug)]
pub enum LaunchError {
    /// No directory for its socket is usable.
    Socket(SocketError),
    /// The handshake line could not be written.
    Handshake(io::Error),
    /// Signal handlers could not be installed.
    Signals(io::Error),
    /// The server failed.
    Serve(tonic::transport::Error),
}

/// Runs a launcher until it ends. `say` prints the one line of the handshake on standard output.
///
/// # Errors
/// [`LaunchError`]. An error before the handshake appears to the agent as a plugin that does not start.
pub async fn run(
    launch: Launch,
    say: impl FnOnce(&str) -> io::Result<()>,
) -> Result<End, LaunchError> {
    // From here on SIGINT, which a terminal sends to all processes of an agent, has no effect.
    let _interrupts = signal(SignalKind::interrupt()).map_err(LaunchError::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(LaunchError::Signals)?;
    let socket = PluginSocket::bind(&launch).map_err(LaunchError::Socket)?;
    say(&socket.line()).map_err(LaunchError::Handshake)?;

    let ending = ExitDeadline::default();
    let (link, link_task) = Link::new(&launch);
    let service = PluginService::new(&launch, link, ending.clone());
    let incoming = socket.into_incoming();
    let server = tune(Server::builder());
    tokio::select! {
        served = server.serve_with_incoming(service, incoming) => served.map(|()| End::Requested).map_err(LaunchError::Serve),
        () = ending.wait() => Ok(End::Requested),
        link::DaemonGone = link_task.run() => {
            tracing::warn!("the daemon has gone: this plugin ends, so that the agent starts it again and recovers its tasks");
            Ok(End::DaemonGone)
        }
        _ = terminate.recv() => Ok(End::Signal),
    }
}

// === impl LaunchError ===

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Socket(_) => "cannot make a socket for the agent",
            Self::Handshake(_) => "cannot report the plugin's address to the agent",
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
