//! Connections of the daemon to its own servers, for its self-check. They are accepted where those of clients are,
//! and count towards no limit, so that clients who use up the limits do not make the daemon seem dead.

use std::io;

use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// Opens connections to one of our own servers. Clones share it.
#[derive(Debug, Clone)]
pub struct OwnConnector(mpsc::Sender<UnixStream>);

/// The connections that a server has to accept besides those of its listener.
#[derive(Debug)]
pub struct OwnConnections(Option<mpsc::Receiver<UnixStream>>);

/// A connector, and its connections for the server.
#[must_use]
pub fn own_connections() -> (OwnConnector, OwnConnections) {
    let (sender, connections) = mpsc::channel(1);
    (OwnConnector(sender), OwnConnections(Some(connections)))
}

// === impl OwnConnector ===

impl OwnConnector {
    /// Opens a connection; waits until the server has accepted the last one. Cancel-safe.
    ///
    /// # Errors
    /// The server has ended, or there are no more descriptors.
    pub async fn connect(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        let sent = self.0.send(theirs).await;
        sent.map_err(|_closed| {
            io::Error::new(io::ErrorKind::ConnectionRefused, "the server has ended")
        })?;
        Ok(ours)
    }
}

// === impl OwnConnections ===

impl OwnConnections {
    /// For a server that the daemon does not check.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// The next connection. Cancel-safe.
    pub async fn next(&mut self) -> UnixStream {
        if let Some(connections) = &mut self.0
            && let Some(stream) = connections.recv().await
        {
            return stream;
        }
        // Nobody asks any more.
        self.0 = None;
        std::future::pending().await
    }
}
