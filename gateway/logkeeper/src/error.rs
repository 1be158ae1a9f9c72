//! The errors of the logkeeper and of its client.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::protocol::Fault;

/// Reason why the logkeeper ended, or why a call to it failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation of the logkeeper failed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The operation, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another logkeeper uses the same state directory.
    #[error("state directory {} is in use by another logkeeper; stop it or use another directory", .0.display())]
    StateInUse(PathBuf),
    /// Another process answers on the control socket.
    #[error("control socket {} is served by another process; stop it or use another socket", .0.display())]
    SocketInUse(PathBuf),
    /// The state directory's file system lacks operations that crash safety needs.
    #[error("state directory {} is on a file system without splice and hole punching; put it on tmpfs", path.display())]
    UnfitStateDir {
        /// The state directory.
        path: PathBuf,
        /// The error of the probe.
        #[source]
        source: io::Error,
    },
    /// The process cannot handle its signals, or cannot build a runtime.
    #[error("cannot set up the logkeeper process")]
    Process(#[source] io::Error),
    /// The logkeeper refused a request, or failed to carry it out.
    #[error("logkeeper refused {op}: {fault}")]
    Refused {
        /// The request's name.
        op: &'static str,
        /// Kind and message, from the logkeeper.
        fault: Fault,
    },
    /// No logkeeper answers on the socket, or it closed the connection twice.
    #[error("logkeeper on {} is not available", socket.display())]
    Unavailable {
        /// The control socket.
        socket: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The logkeeper did not answer in time; the request may or may not have been carried out.
    #[error("logkeeper did not answer {op} within {limit:?}")]
    Deadline {
        /// The request's name.
        op: &'static str,
        /// Duration of the call.
        limit: Duration,
    },
    /// A request or reply cannot be encoded or decoded.
    #[error("cannot encode or decode {op} in the logkeeper protocol")]
    Encoding {
        /// The request's name.
        op: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

// === impl Error ===

impl Error {
    /// Wraps a failed file operation.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }

    /// The keeper's fault, if that is what failed the call.
    #[must_use]
    pub const fn fault(&self) -> Option<&Fault> {
        if let Self::Refused { fault, .. } = self {
            Some(fault)
        } else {
            None
        }
    }
}
