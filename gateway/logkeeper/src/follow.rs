//! Attached clients: each reads a container's output from the spool at its own pace, and nothing waits for
//! any of them.
//!
//! While a stream is followed, what its slowest client has not read stays in the spool after it is logged, up to some
//! MiB, and as far as the budget of all streams permits ([`crate::window_budget`]). A client that falls further behind
//! misses what it has not read, and continues with the most recent output: neither the container nor the log waits,
//! and the log is complete. Disconnecting such a client instead would end the standard input of a container with
//! `stdin_once`.
//!
//! A client is served on the thread of its container. Its task does not yield between checking how far it may
//! read and reading, so the range that is being read is not released meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::sendfile::sendfile;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fs_thread::FsThread;
use crate::spool::{BUSY_SLACK, Spool};
use crate::window_budget::{RECENT, SpoolWindow, WindowBudget};

/// The most bytes that are sent to a client before other tasks run.
const CHUNK: usize = 256 * 1024;

/// Time for which a client may read nothing after the end of the output before the rest is dropped.
const LINGER: Duration = Duration::from_secs(30);

/// The range of a stream that can be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Readable {
    floor: u64,
    end: u64,
    /// Number of bytes that were logged without the spool, which had no room for them.
    unshown: u64,
}

/// The followers of one stream, as the container's task sees them. Dropping it reports the end of the output
/// to them.
#[derive(Debug)]
pub(crate) struct Feed {
    readable: watch::Sender<Readable>,
    budget: Arc<WindowBudget>,
    /// While the stream is followed.
    window: Option<SpoolWindow>,
    /// The offsets of the clients.
    offsets: Vec<Weak<AtomicU64>>,
    /// Notified when a client that was far behind has caught up or is gone.
    caught_up: Arc<Notify>,
    unshown: u64,
}

/// One client that follows a stream.
#[derive(Debug)]
pub(crate) struct Follower {
    spool: File,
    readable: watch::Receiver<Readable>,
    offset: Arc<AtomicU64>,
    caught_up: Arc<Notify>,
    /// True if it was far behind since it had last caught up.
    was_behind: bool,
    /// Number of bytes it was not sent, and number of the stream's unshown bytes that it knows.
    missed: u64,
    unshown: u64,
    fs_thread: Arc<FsThread>,
    _permit: OwnedSemaphorePermit,
}

// === impl Feed ===

impl Feed {
    /// A stream that nobody follows.
    pub(crate) fn new(budget: &Arc<WindowBudget>) -> Self {
        Self {
            readable: watch::Sender::new(Readable::default()),
            budget: Arc::clone(budget),
            window: None,
            offsets: Vec::new(),
            caught_up: Arc::default(),
            unshown: 0,
        }
    }

    /// A client that reads from now on, or from the offset `from` if that is still in the spool.
    ///
    /// # Errors
    /// The spool has no further descriptor. `QuotaExceeded` if there is no window left for the stream.
    pub(crate) fn follow(
        &mut self,
        spool: &Spool,
        from: Option<u64>,
        fs_thread: &Arc<FsThread>,
        place: OwnedSemaphorePermit,
    ) -> io::Result<Follower> {
        let reader = spool.reader()?;
        if self.window.is_none() {
            let window = self.budget.window().ok_or_else(|| {
                let why =
                    "the state directory's file system has no room for the output of more streams";
                io::Error::new(io::ErrorKind::QuotaExceeded, why)
            })?;
            self.window = Some(window);
        }
        let at = from
            .unwrap_or(spool.end())
            .clamp(spool.floor(), spool.end());
        let offset = Arc::new(AtomicU64::new(at));
        self.offsets.retain(|offset| offset.strong_count() > 0);
        self.offsets.push(Arc::downgrade(&offset));
        let follower = Follower {
            spool: reader,
            readable: self.readable.subscribe(),
            offset,
            caught_up: Arc::clone(&self.caught_up),
            was_behind: false,
            missed: 0,
            unshown: self.unshown,
            fs_thread: Arc::clone(fs_thread),
            _permit: place,
        };
        self.publish(spool);
        Ok(follower)
    }

    /// Fits the window to the slowest client, and returns how many logged bytes are to be kept, and how many more than
    /// these may be; `None` if nobody follows the stream.
    pub(crate) fn fit_window(&mut self, spool: &Spool) -> Option<(u64, u64)> {
        if self.readable.receiver_count() == 0 {
            return None;
        }
        let behind = self.behind(spool);
        self.window.as_mut().map(|window| window.fit(behind))
    }

    /// Returns what the window does not need; after the spool's space was released.
    pub(crate) fn shrink_window(&mut self, spool: &Spool) {
        let behind = self.behind(spool);
        if let Some(window) = &mut self.window {
            window.shrink(behind);
        }
    }

    /// Number of bytes by which the slowest client is behind. A client that has missed output does not count:
    /// it continues with the most recent output, which is kept anyway.
    fn behind(&self, spool: &Spool) -> u64 {
        let offsets = self.offsets.iter().filter_map(Weak::upgrade);
        let offsets = offsets.map(|offset| offset.load(Ordering::Relaxed));
        let slowest = offsets.filter(|offset| *offset >= spool.floor()).min();
        slowest.map_or(0, |offset| spool.end().saturating_sub(offset))
    }

    /// Counts bytes that were logged without the spool.
    pub(crate) fn note_unshown(&mut self, len: usize) {
        self.unshown = self.unshown.saturating_add(len as u64);
    }

    #[cfg(test)]
    pub(crate) const fn unshown(&self) -> u64 {
        self.unshown
    }

    /// Publishes the range that can be read.
    pub(crate) fn publish(&self, spool: &Spool) {
        let now = Readable {
            floor: spool.floor(),
            end: spool.end(),
            unshown: self.unshown,
        };
        self.readable
            .send_if_modified(|readable| std::mem::replace(readable, now) != now);
    }

    /// Returns when a client that was far behind has caught up or is gone, and when the last follower is
    /// gone, unless [`Feed::forget_gone`] has reported that. Cancel-safe.
    pub(crate) async fn wait_releasable(&self) {
        if self.window.is_none() {
            return std::future::pending().await;
        }
        tokio::select! {
            () = self.readable.closed() => {}
            () = self.caught_up.notified() => {}
        }
    }

    /// Forgets the clients that are gone, and the window if nobody follows the stream any more.
    pub(crate) fn forget_gone(&mut self) {
        self.offsets.retain(|offset| offset.strong_count() > 0);
        if self.readable.receiver_count() == 0 {
            self.window = None;
        }
    }
}

// === impl Follower ===

impl Follower {
    /// The offset of the next byte.
    pub(crate) fn offset(&self) -> u64 {
        self.offset.load(Ordering::Relaxed)
    }

    fn set_offset(&self, offset: u64) {
        self.offset.store(offset, Ordering::Relaxed);
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
            // Marked as seen, so that `changed` below waits for later changes alone.
            let readable = *self.readable.borrow_and_update();
            self.note_unshown(readable.unshown);
            let behind = readable.end.saturating_sub(self.offset());
            self.was_behind |= behind > BUSY_SLACK;
            if behind == 0 {
                if std::mem::take(&mut self.was_behind) {
                    self.caught_up.notify_one();
                }
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
                // The output has ended, and the client reads nothing: the rest is dropped.
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
        let Readable {
            floor,
            end,
            unshown: _,
        } = *self.readable.borrow();
        // Below the floor the spool is a hole, which would be sent as zeros.
        if self.offset() < floor {
            self.skip_ahead(end);
        }
        let rest = usize::try_from(end - self.offset())
            .unwrap_or(usize::MAX)
            .min(CHUNK);
        let mut offset = i64::try_from(self.offset()).map_err(io::Error::other)?;
        let sent = client.try_io(Interest::WRITABLE, || {
            Ok(sendfile(
                client.as_fd(),
                self.spool.as_fd(),
                Some(&mut offset),
                rest,
            )?)
        });
        match sent {
            Ok(sent) => {
                self.set_offset(self.offset() + u64::try_from(sent).map_err(io::Error::other)?);
            }
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
        let on = end.saturating_sub(RECENT).max(self.offset());
        self.missed += on - self.offset();
        self.set_offset(on);
    }

    /// Counts output that never was in the spool as missed.
    fn note_unshown(&mut self, unshown: u64) {
        let more = unshown.saturating_sub(self.unshown);
        if more > 0 && self.missed == 0 {
            tracing::warn!(
                "an attached client misses output, which is logged without the full spool"
            );
        }
        self.missed += more;
        self.unshown = unshown;
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
        let behind = self.readable.borrow().end.saturating_sub(self.offset());
        if self.was_behind || behind > BUSY_SLACK {
            // It counts as one that needs nothing, until its offset is gone too.
            self.set_offset(u64::MAX);
            self.caught_up.notify_one();
        }
    }
}
