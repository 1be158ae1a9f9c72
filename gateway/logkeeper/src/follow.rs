//! Attached clients: each reads a container's output from the spool at its own pace, and nothing waits for
//! any of them.
//!
//! While a stream is followed, its last [`WINDOW`] bytes stay in the spool after they are logged, however
//! many clients there are. A client that falls further behind misses what it has not read, and continues with
//! the most recent output: neither the container nor the log waits, and the log is complete. Disconnecting
//! such a client instead would end the standard input of a container with `stdin_once`.
//!
//! A client is served on the thread of its container. Its task does not yield between checking how far it may
//! read and reading, so the range that is being read is not released meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::sendfile::sendfile;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fs_thread::FsThread;
use crate::spool::Spool;

/// How far a client may fall behind, in bytes. This is also the most memory that a followed stream takes
/// beyond that of an unfollowed one.
pub(crate) const WINDOW: u64 = 8 << 20;

/// How many bytes of the most recent output a client gets after it has fallen too far behind.
const RECENT: u64 = 64 << 10;

/// The most bytes that are sent to a client before other tasks run.
const CHUNK: usize = 256 * 1024;

/// How long a client may read nothing after the end of the output before the rest is dropped.
const LINGER: Duration = Duration::from_secs(30);

/// The range of a stream that can be read.
#[derive(Debug, Clone, Copy, Default)]
struct Readable {
    floor: u64,
    end: u64,
}

/// The followers of one stream, as the container's task sees them. Dropping it tells them that the output has
/// ended.
#[derive(Debug)]
pub(crate) struct Feed {
    readable: watch::Sender<Readable>,
    followed: bool,
}

/// One client that follows a stream.
#[derive(Debug)]
pub(crate) struct Follower {
    spool: File,
    readable: watch::Receiver<Readable>,
    offset: u64,
    missed: u64,
    fs_thread: Arc<FsThread>,
    _permit: OwnedSemaphorePermit,
}

// === impl Feed ===

impl Default for Feed {
    fn default() -> Self {
        Self { readable: watch::Sender::new(Readable::default()), followed: false }
    }
}

impl Feed {
    /// A client that reads from now on, or from the offset `from` if that is still in the spool.
    pub(crate) fn follow(
        &mut self,
        spool: &Spool,
        from: Option<u64>,
        fs_thread: &Arc<FsThread>,
        place: OwnedSemaphorePermit,
    ) -> io::Result<Follower> {
        let at = from.unwrap_or(spool.end()).clamp(spool.floor(), spool.end());
        let follower = Follower {
            spool: spool.reader()?,
            readable: self.readable.subscribe(),
            offset: at,
            missed: 0,
            fs_thread: Arc::clone(fs_thread),
            _permit: place,
        };
        self.followed = true;
        self.publish(spool);
        Ok(follower)
    }

    /// Whether any client follows.
    pub(crate) fn is_followed(&self) -> bool {
        self.readable.receiver_count() > 0
    }

    /// Publishes the range that can be read.
    pub(crate) fn publish(&self, spool: &Spool) {
        self.readable.send_replace(Readable { floor: spool.floor(), end: spool.end() });
    }

    /// Returns when the last follower is gone; never if there was none since [`Feed::forget`]. Cancel-safe.
    pub(crate) async fn wait_unfollowed(&self) {
        if self.followed {
            self.readable.closed().await;
        } else {
            std::future::pending().await
        }
    }

    /// Resets the memory that the stream was followed, unless it is followed now.
    pub(crate) fn forget(&mut self) {
        self.followed = self.is_followed();
    }
}

// === impl Follower ===

impl Follower {
    /// The offset of the next byte.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Sends the stream to a client until its end, or until the client disconnects. Cancel-safe: dropping the
    /// future disconnects the client.
    pub(crate) async fn run(self, client: UnixStream) {
        let fs_thread = Arc::clone(&self.fs_thread);
        // A `JoinSet` aborts its tasks when it is dropped.
        let mut task = JoinSet::new();
        task.spawn_on(self.copy_to_client(client), fs_thread.handle());
        if let Some(Err(error)) = task.join_next().await
            && error.is_panic()
        {
            tracing::error!(%error, "the task of an attached client panicked");
        }
    }

    async fn copy_to_client(mut self, client: UnixStream) {
        loop {
            let caught_up = self.offset >= self.readable.borrow_and_update().end;
            if caught_up {
                tokio::select! {
                    changed = self.readable.changed() => if changed.is_err() {
                        return;
                    },
                    () = wait_closed(&client) => return,
                }
                continue;
            }
            match timeout(LINGER, client.writable()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_elapsed) if self.readable.has_changed().is_err() => return,
                Err(_elapsed) => continue,
            }
            if let Err(error) = self.send_available(&client) {
                tracing::debug!(%error, "an attached client has disconnected");
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sends the available bytes, as far as the client accepts them now.
    fn send_available(&mut self, client: &UnixStream) -> io::Result<()> {
        let Readable { floor, end } = *self.readable.borrow();
        if self.offset < floor {
            self.skip_ahead(end);
        }
        let rest = usize::try_from(end - self.offset).unwrap_or(usize::MAX).min(CHUNK);
        let mut offset = i64::try_from(self.offset).map_err(io::Error::other)?;
        let sent = client.try_io(Interest::WRITABLE, || {
            Ok(sendfile(client.as_fd(), self.spool.as_fd(), Some(&mut offset), rest)?)
        });
        match sent {
            Ok(sent) => self.offset += u64::try_from(sent).map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.raw_os_error() == Some(Errno::EINTR as i32) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Continues with the most recent output.
    fn skip_ahead(&mut self, end: u64) {
        if self.missed == 0 {
            tracing::warn!("an attached client reads too slowly and misses output");
        }
        let on = end.saturating_sub(RECENT).max(self.offset);
        self.missed += on - self.offset;
        self.offset = on;
    }
}

/// Returns when a client, which sends nothing, has closed its end.
async fn wait_closed(client: &UnixStream) {
    while client.readable().await.is_ok() {
        match client.try_read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => return,
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if self.missed > 0 {
            tracing::info!(bytes = self.missed, "an attached client has missed output");
        }
    }
}
