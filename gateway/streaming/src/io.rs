//! The transport of a session: a TCP connection, with or without TLS, or the tunnel inside a WebSocket.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fmt, io};

use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use crate::unsent::unsent;

/// Interval at which the socket of a client that is not read is checked for a hang-up.
const PROBE: Duration = Duration::from_millis(500);

/// A connection after its upgrade.
pub(crate) struct Io {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// The bytes that were read together with the request.
    pub(crate) read_ahead: BytesMut,
    pub(crate) probe: Probe,
    pub(crate) activity: Arc<Activity>,
}

/// Checks the socket for a hang-up of its peer without reading: a connection is not read while what was read
/// before waits for room in a queue.
#[derive(Debug)]
pub(crate) struct Probe(OwnedFd);

/// Time of the last transfer of bytes over a connection, in either direction.
#[derive(Debug)]
pub(crate) struct Activity {
    begin: Instant,
    /// Milliseconds since `begin`.
    last: AtomicU64,
    /// Number of times that something has arrived, which may be no transfer, such as a ping.
    heard: AtomicU64,
}

// === impl Io ===

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io")
            .field("probe", &self.probe)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Io {
    /// A connection to a client within this process; its probe watches the last value.
    pub(crate) fn in_memory(
        buffer: usize,
    ) -> (
        Self,
        tokio::io::DuplexStream,
        std::os::unix::net::UnixStream,
    ) {
        let (ours, theirs) = tokio::io::duplex(buffer);
        let (reader, writer) = tokio::io::split(ours);
        let (socket, peer) = std::os::unix::net::UnixStream::pair().expect("sockets can be made");
        let io = Self {
            reader: Box::new(reader),
            writer: Box::new(writer),
            read_ahead: BytesMut::new(),
            probe: Probe::of(&socket).expect("a descriptor is left"),
            activity: Arc::new(Activity::new()),
        };
        (io, theirs, peer)
    }
}

// === impl Probe ===

impl Probe {
    /// # Errors
    ///
    /// No file descriptor is available.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        Ok(Self(rustix::io::fcntl_dupfd_cloexec(socket, 0)?))
    }

    /// Runs what a reader does between two reads; `None` if the peer hangs up while it waits.
    pub(crate) async fn unless_hung_up<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let hung_up = async {
            loop {
                sleep(PROBE).await;
                if self.hung_up() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = hung_up => None,
        }
    }

    /// The number of bytes that the peer has not acknowledged; 0 if it cannot be told.
    pub(crate) async fn unsent(&self) -> u64 {
        let counted = match rustix::io::fcntl_dupfd_cloexec(&self.0, 0) {
            Ok(socket) => spawn_blocking(move || unsent(&File::from(socket)))
                .await
                .unwrap_or_else(|lost| Err(io::Error::other(lost))),
            Err(error) => Err(error.into()),
        };
        match counted {
            Ok(unsent) => unsent.unwrap_or(0),
            Err(error) => {
                debug!(%error, "the send queue of a streaming connection cannot be read");
                0
            }
        }
    }

    /// Returns whether the peer has closed its side, or the connection is broken.
    fn hung_up(&self) -> bool {
        let mut sockets = [PollFd::new(&self.0, PollFlags::RDHUP)];
        match poll(&mut sockets, Some(&Timespec::default())) {
            Ok(_) => sockets[0]
                .revents()
                .intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR),
            // The call was interrupted; the next check decides.
            Err(_) => false,
        }
    }
}

// === impl Activity ===

impl Activity {
    pub(crate) fn new() -> Self {
        Self {
            begin: Instant::now(),
            last: AtomicU64::new(0),
            heard: AtomicU64::new(0),
        }
    }

    /// Records that something has arrived.
    pub(crate) fn hear(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of times that something has arrived.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Records a transfer.
    pub(crate) fn record(&self) {
        let now = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// Waits until nothing was transferred for `limit`. Cancel-safe.
    pub(crate) async fn idle(&self, limit: Duration) {
        loop {
            let last = self.begin + Duration::from_millis(self.last.load(Ordering::Relaxed));
            match last.checked_add(limit) {
                Some(until) if until > Instant::now() => sleep_until(until).await,
                Some(_) => return,
                None => std::future::pending().await,
            }
        }
    }
}
