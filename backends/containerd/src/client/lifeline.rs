//! Shares the socket of the connection to containerd with the logkeeper, so that containerd finishes a call
//! although this daemon is killed meanwhile.
//!
//! containerd cancels a call whose connection closes. When that happens while it creates or deletes a task,
//! it leaks shims, bundles and cgroups. The kernel closes a connection only with the last descriptor of its
//! socket, so the logkeeper, which outlives this daemon, is given a duplicate. Calls that start or end
//! processes go over the shared connection; calls that should end with the daemon (downloads, waits) go over
//! another one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use switchyard_logkeeper::Lifeline;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The pause before the next try to connect to the logkeeper.
const RETRY: Duration = Duration::from_millis(200);

/// The socket that the logkeeper is to hold; `None` without a connection to containerd.
type Socket = Option<Arc<OwnedFd>>;

/// Publishes the socket of the current connection to containerd to the task that hands it to the logkeeper.
#[derive(Debug, Clone)]
pub(crate) struct SharedSocket {
    socket: watch::Sender<Socket>,
}

/// A connection to containerd, published from [`SharedSocket::connect`] until it is dropped.
#[derive(Debug)]
pub(crate) struct SharedStream {
    stream: UnixStream,
    duplicate: Arc<OwnedFd>,
    shared: SharedSocket,
}

// === impl SharedSocket ===

impl SharedSocket {
    pub(crate) fn new() -> Self {
        Self { socket: watch::Sender::new(None) }
    }

    /// Connects, and publishes the connection's socket.
    pub(crate) async fn connect(self, address: &Path) -> io::Result<SharedStream> {
        let stream = UnixStream::connect(address).await?;
        let duplicate = Arc::new(stream.as_fd().try_clone_to_owned()?);
        self.socket.send_replace(Some(Arc::clone(&duplicate)));
        Ok(SharedStream { stream, duplicate, shared: self })
    }

    /// Has the logkeeper at `keeper` hold the socket of the current connection, until `stop`. Calls work
    /// without a logkeeper too; it is retried until it answers.
    pub(crate) async fn share_with_logkeeper(self, keeper: PathBuf, stop: CancellationToken) {
        let mut sockets = self.socket.subscribe();
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = hand_over(&keeper, &mut sockets) => ended,
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "the logkeeper does not hold the connection to containerd");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }
}

/// Has the logkeeper hold the socket of each new connection and release that of the one before, until the
/// connection to the logkeeper breaks.
async fn hand_over(
    keeper: &Path,
    sockets: &mut watch::Receiver<Socket>,
) -> Result<(), switchyard_logkeeper::Error> {
    let mut lifeline = Lifeline::connect(keeper).await?;
    loop {
        let socket = sockets.borrow_and_update().clone();
        // The connection of the socket that the logkeeper may hold is closed by now.
        lifeline.release().await?;
        if let Some(socket) = socket {
            lifeline.hold(socket.as_fd(), false).await?;
        }
        tokio::select! {
            () = lifeline.broken() => return Ok(()),
            changed = sockets.changed() => if changed.is_err() { return Ok(()) },
        }
    }
}

// === impl SharedStream ===

impl Drop for SharedStream {
    fn drop(&mut self) {
        // The published duplicate would keep the connection open. A newer connection may have replaced it
        // already, and stays.
        self.shared.socket.send_if_modified(|socket| {
            let ours = socket.as_ref().is_some_and(|held| Arc::ptr_eq(held, &self.duplicate));
            if ours {
                *socket = None;
            }
            ours
        });
    }
}

impl AsyncRead for SharedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for SharedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
