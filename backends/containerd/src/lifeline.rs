//! The connection over which processes are started and ended, held by the logkeeper too: what containerd does for us it carries to
//! its end although we are killed.
//!
//! containerd calls off a call whose connection closes. Called off in the middle of making or deleting a task it forgets what it
//! has made: shims, bundles, cgroups. The kernel closes a connection with the last descriptor of its socket, so the logkeeper,
//! which outlives us, is given one. Calls that should end with us (downloads, waits) go over another connection.

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

/// Before the logkeeper is looked for again.
const RETRY: Duration = Duration::from_millis(200);

/// The socket that is to be held, if there is one now.
type Socket = Option<Arc<OwnedFd>>;

/// Where connections that are to be held are told of.
#[derive(Debug, Clone)]
pub(crate) struct SharedSocket {
    socket: watch::Sender<Socket>,
}

/// A connection that is told of for as long as it stands.
#[derive(Debug)]
pub(crate) struct SharedStream {
    stream: UnixStream,
    duplicate: Arc<OwnedFd>,
    shared: SharedSocket,
}

// === impl Held ===

impl SharedSocket {
    pub(crate) fn new() -> Self {
        Self { socket: watch::Sender::new(None) }
    }

    /// Connects, and tells of the connection.
    pub(crate) async fn connect(self, address: &Path) -> io::Result<SharedStream> {
        let stream = UnixStream::connect(address).await?;
        let duplicate = Arc::new(stream.as_fd().try_clone_to_owned()?);
        self.socket.send_replace(Some(Arc::clone(&duplicate)));
        Ok(SharedStream { stream, duplicate, shared: self })
    }

    /// Has the logkeeper at `keeper` hold the connection that stands, whichever that is, until `stop`. Without a logkeeper all goes
    /// on as if nobody held it, until there is one again.
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

/// Hands over each connection as it comes, and takes back what has gone, until the logkeeper goes.
async fn hand_over(
    keeper: &Path,
    sockets: &mut watch::Receiver<Socket>,
) -> Result<(), switchyard_logkeeper::Error> {
    let mut lifeline = Lifeline::connect(keeper).await?;
    loop {
        let socket = sockets.borrow_and_update().clone();
        // Those before it are closed, or there is none at all.
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

// === impl HeldStream ===

impl Drop for SharedStream {
    fn drop(&mut self) {
        // A duplicate of ours would keep it open too. Another connection may stand in its place already.
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
