//! Clients that read a container's output along: each reads the spool at its own pace, and nobody waits for any of them.
//!
//! While a stream is followed, the last [`WINDOW`] bytes of it stay in its spool after they are logged, however many clients there
//! are. A client that falls further behind misses what it has not read and goes on with what came last: neither the container
//! nor the log waits, and the log has it all. Cutting such a client off instead would end the standard input of a container that
//! has it once.
//!
//! A client is served on the thread of the container, and no task waits between looking how far it may read and reading: what is being
//! read is not given back meanwhile.

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

/// How far a client may fall behind, in bytes: the memory that a followed stream takes at most, beyond that of any other.
pub(crate) const WINDOW: u64 = 8 << 20;

/// How much of what came last a client gets that has fallen too far behind.
const RECENT: u64 = 64 << 10;

/// The most that is handed to a client before others get their turn.
const CHUNK: usize = 256 * 1024;

/// How long a client may take nothing after the end of the output before the rest is not for it any more.
const LINGER: Duration = Duration::from_secs(30);

/// What part of a stream can be read.
#[derive(Debug, Clone, Copy, Default)]
struct Readable {
    floor: u64,
    end: u64,
}

/// Those who follow one stream, as the container's task sees them. Dropped, it tells them that the output has ended.
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
    /// A client that reads from here on, or from `from` if that is still there.
    pub(crate) fn follow(
        &mut self,
        spool: &Spool,
        from: Option<u64>,
        lane: &Arc<FsThread>,
        place: OwnedSemaphorePermit,
    ) -> io::Result<Follower> {
        let at = from.unwrap_or(spool.end()).clamp(spool.floor(), spool.end());
        let follower = Follower {
            spool: spool.reader()?,
            readable: self.readable.subscribe(),
            offset: at,
            missed: 0,
            fs_thread: Arc::clone(lane),
            _permit: place,
        };
        self.followed = true;
        self.publish(spool);
        Ok(follower)
    }

    /// Whether anybody follows.
    pub(crate) fn is_followed(&self) -> bool {
        self.readable.receiver_count() > 0
    }

    /// Tells how far the stream has come.
    pub(crate) fn publish(&self, spool: &Spool) {
        self.readable.send_replace(Readable { floor: spool.floor(), end: spool.end() });
    }

    /// Returns when the last of those who followed has gone; never if nobody did since [`Feed::forget`]. Cancel-safe.
    pub(crate) async fn wait_unfollowed(&self) {
        if self.followed {
            self.readable.closed().await;
        } else {
            std::future::pending().await
        }
    }

    /// Forgets that it was followed, unless it is again.
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

    /// Hands the stream to a client until its end or until the client has gone. Cancel-safe: dropped, the client is let go.
    pub(crate) async fn run(self, client: UnixStream) {
        let lane = Arc::clone(&self.fs_thread);
        // A set ends its tasks when it is dropped.
        let mut task = JoinSet::new();
        task.spawn_on(self.copy_to_client(client), lane.handle());
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
                tracing::debug!(%error, "an attached client has gone");
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Hands on what there is, as far as the client takes it now.
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

    /// Goes on with what came last.
    fn skip_ahead(&mut self, end: u64) {
        if self.missed == 0 {
            tracing::warn!(
                "a client is too slow for the output that it is attached to, and misses some of it"
            );
        }
        let on = end.saturating_sub(RECENT).max(self.offset);
        self.missed += on - self.offset;
        self.offset = on;
    }
}

/// Returns when a client that has nothing to say has closed its end.
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
