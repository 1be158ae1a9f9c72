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
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use switchyard_logkeeper::Lifeline;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The pause before the next try to connect to the logkeeper.
const RETRY: Duration = Duration::from_millis(200);

/// Limit for which a new connection waits for the logkeeper to hold its socket before it is used.
const HOLD_LIMIT: Duration = Duration::from_millis(300);

/// The socket that the logkeeper is to hold; `None` without a connection to containerd.
type Socket = Option<Arc<OwnedFd>>;

/// Publishes the socket of the current connection to containerd to the task that hands it to the logkeeper.
#[derive(Debug, Clone)]
pub(crate) struct SharedSocket {
    socket: watch::Sender<Socket>,
    /// The socket that the logkeeper holds. Weak, because a descriptor here would keep the connection open too.
    held: watch::Sender<Weak<OwnedFd>>,
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
        Self {
            socket: watch::Sender::new(None),
            held: watch::Sender::new(Weak::new()),
        }
    }

    /// Connects, publishes the connection's socket, and waits until the logkeeper holds it: a call that is made sooner would
    /// be cancelled if this daemon were killed. Without an answer of the logkeeper the connection is used after
    /// [`HOLD_LIMIT`].
    pub(crate) async fn connect(self, address: &Path) -> io::Result<SharedStream> {
        let stream = UnixStream::connect(address).await?;
        let duplicate = Arc::new(stream.as_fd().try_clone_to_owned()?);
        let stream = SharedStream {
            stream,
            duplicate: Arc::clone(&duplicate),
            shared: self.clone(),
        };
        self.socket.send_replace(Some(Arc::clone(&duplicate)));
        let mut held = self.held.subscribe();
        let is_held = held.wait_for(|held| held.ptr_eq(&Arc::downgrade(&duplicate)));
        if tokio::time::timeout(HOLD_LIMIT, is_held).await.is_err() {
            tracing::debug!(
                "calls to containerd are made before the logkeeper holds their connection"
            );
        }
        Ok(stream)
    }

    /// Has the logkeeper at `keeper` hold the socket of the current connection, until `stop`. Calls work
    /// without a logkeeper too; it is retried until it answers.
    pub(crate) async fn share_with_logkeeper(self, keeper: PathBuf, stop: CancellationToken) {
        let mut sockets = self.socket.subscribe();
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = hand_over(&keeper, &mut sockets, &self.held) => ended,
            };
            self.held.send_replace(Weak::new());
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
    held: &watch::Sender<Weak<OwnedFd>>,
) -> Result<(), switchyard_logkeeper::Error> {
    let mut lifeline = Lifeline::connect(keeper).await?;
    loop {
        let socket = sockets.borrow_and_update().clone();
        // The connection of the socket that the logkeeper may hold is closed by now.
        lifeline.release().await?;
        if let Some(socket) = &socket {
            lifeline.hold(socket.as_fd(), false).await?;
        }
        held.send_replace(socket.as_ref().map_or_else(Weak::new, Arc::downgrade));
        drop(socket);
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
            let ours = socket
                .as_ref()
                .is_some_and(|held| Arc::ptr_eq(held, &self.duplicate));
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

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn connection_is_used_once_the_logkeeper_holds_it_and_not_never() {
        let dir = tempfile::tempdir().unwrap();
        let address = dir.path().join("socket");
        let _listener = UnixListener::bind(&address).unwrap();
        let shared = SharedSocket::new();
        let mut connecting = Box::pin(shared.clone().connect(&address));
        let mut sockets = shared.socket.subscribe();
        let published = tokio::select! {
            _ = &mut connecting => panic!("the logkeeper does not hold it yet"),
            socket = sockets.wait_for(Option::is_some) => socket.unwrap().clone(),
        };
        shared
            .held
            .send_replace(Arc::downgrade(&published.unwrap()));
        let stream = connecting.await.unwrap();
        drop(stream);
        assert!(
            sockets.borrow().is_none(),
            "a connection that is closed is not to be held"
        );
        // There is no logkeeper.
        shared.held.send_replace(Weak::new());
        shared.clone().connect(&address).await.unwrap();
    }
}
