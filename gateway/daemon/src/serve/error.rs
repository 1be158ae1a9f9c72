//! The reasons for which the daemon does not start, or ends.

use std::io;
use std::net::SocketAddr;

use switchyard_socket::listener::ListenError;
use switchyard_streaming::BindError;
use switchyard_telemetry::TraceSettingsError;

use crate::credentials::CredentialError;
use crate::lock::LockError;

/// The reason why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The directories cannot be used, or another daemon uses them.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A socket cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The admin address cannot be served.
    #[error("cannot listen on {address}: choose another address in admin.listen")]
    Admin {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The streaming server cannot be set up.
    #[error("cannot serve exec, attach and port-forward: see [cri.streaming] of the configuration")]
    Streaming(#[source] BindError),
    /// The metrics address cannot be served.
    #[error("cannot listen on {address}: choose another address in admin.metrics_listen")]
    MetricsListener {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The certificate or the token of the metrics address is unusable.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// Traces cannot be exported.
    #[error(transparent)]
    Traces(#[from] TraceSettingsError),
    /// A metric has a name that Prometheus does not allow.
    #[error("cannot set up metrics")]
    Metrics(#[source] prometheus::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
    /// The backend's settings are invalid.
    #[error("cannot set up the backend")]
    Backend(#[source] switchyard_core::Error),
    /// A part failed.
    #[error("{0}")]
    Part(String),
}
