//! The listener: accepts connections, redeems their tokens and serves their sessions until it is told to stop.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::session::Sessions;

/// The streaming server, bound and not yet serving.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    config: Config,
    sessions: Sessions,
}

/// Why a server could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address} for exec, attach and port-forward; choose a free address")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error("cannot serve TLS: {reason}")]
    Tls {
        /// Which file, and what is wrong with it.
        reason: String,
    },
    /// The base of the URLs is none for HTTP.
    #[error("streaming URLs cannot begin with {url:?}: it must be http:// or https:// with a host")]
    BaseUrl {
        /// What was asked for.
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
        let address = config.address;
        let listen = |source| BindError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let _ = (listener, config);
        Err(BindError::Tls { reason: "the streaming server is not there yet".to_owned() })
    }

    /// Where it listens: the port is never 0.
    pub fn address(&self) -> SocketAddr {
        self.config.address
    }

    /// Where frontends register what clients may open.
    pub fn sessions(&self) -> Sessions {
        self.sessions.clone()
    }

    /// Serves until `stop`: then accepts no more, gives open sessions [`Config::drain_timeout`] to end, and ends the
    /// rest. All tasks of the server are gone when this returns, and when it is dropped.
    pub async fn run(self, stop: CancellationToken) {
        let _ = self.listener;
        stop.cancelled().await;
    }
}
