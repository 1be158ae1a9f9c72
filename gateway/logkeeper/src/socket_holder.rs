//! Holds sockets open for the daemon, so that work of the other end for the daemon survives a kill of the
//! daemon.
//!
//! A server cancels a call when its client's socket closes. The kernel closes a socket with its last
//! descriptor, so a duplicate in the logkeeper keeps it open after the daemon was killed. The logkeeper
//! neither reads from it nor writes to it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::passing;
use crate::protocol::{Fault, FaultKind};

/// The most sockets that are held. A daemon that runs hands over fewer, but daemons that are killed and started again and
/// again leave more: the oldest of those that are gone gives its place to one that runs.
const MOST: usize = 40;

/// Time for which a socket is held after the daemon that handed it over is gone: longer than any call to
/// containerd that starts or ends a process may take.
pub(crate) const LINGER: Duration = Duration::from_secs(180);

/// Pause between two checks whether the other end has closed a lingering socket.
const LOOK: Duration = Duration::from_secs(1);

/// Time for a socket to give its place away.
const REPLACEMENT: Duration = Duration::from_secs(1);

/// The sockets that are held, for all connections together.
#[derive(Debug, Clone)]
pub(crate) struct SocketHolder {
    permits: Arc<Semaphore>,
    /// Those of daemons that are gone, the oldest first: each is closed when it is sent something.
    lingering: Arc<Mutex<VecDeque<oneshot::Sender<()>>>>,
}

/// A socket that is held open until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldSocket {
    socket: OwnedFd,
    /// The other end has done its work as soon as it sends anything.
    one_call: bool,
    _permit: OwnedSemaphorePermit,
}

// === impl SocketHolder ===

impl SocketHolder {
    pub(crate) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(MOST)),
            lingering: Arc::default(),
        }
    }

    /// Receives the socket that comes with the next byte on `stream`, see [`crate::protocol::Request::Hold`].
    /// Not cancel-safe.
    ///
    /// # Errors
    /// The connection must be closed then: it is unknown how much was read from it.
    pub(crate) async fn receive(
        &self,
        stream: &UnixStream,
        one_call: bool,
    ) -> io::Result<Result<HeldSocket, Fault>> {
        let Some(socket) = passing::receive(stream).await? else {
            return Ok(Err(Fault::new(
                FaultKind::InvalidArgument,
                "no socket came with the byte",
            )));
        };
        Ok(match self.place().await {
            Some(place) => Ok(HeldSocket {
                socket,
                one_call,
                _permit: place,
            }),
            None => Err(Fault::new(
                FaultKind::Busy,
                format!("{MOST} sockets are held, which is the most"),
            )),
        })
    }

    /// A place for a socket, if need be that of one whose daemon is gone.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        let replacement = async {
            if self.replace_oldest() {
                sleep(REPLACEMENT).await;
            }
        };
        tokio::select! {
            // The place is asked for before the oldest gives its own away, so that nobody else gets that one.
            biased;
            place = Arc::clone(&self.permits).acquire_owned() => place.ok(),
            () = replacement => None,
        }
    }

    /// Has the oldest socket closed whose daemon is gone; `false` if there is none.
    fn replace_oldest(&self) -> bool {
        let mut lingering = self.lingering.lock();
        // One that has just been closed by itself does not listen any more.
        while let Some(oldest) = lingering.pop_front() {
            if oldest.send(()).is_ok() {
                return true;
            }
        }
        false
    }

    /// Holds the sockets of a daemon that is gone, each until the other end closes it or has answered the one call, at
    /// most until `end`, and until a daemon that runs needs its place. Cancel-safe: dropping the future closes them.
    pub(crate) async fn linger(&self, sockets: Vec<HeldSocket>, end: Instant) {
        let mut lingering = JoinSet::new();
        for socket in sockets {
            lingering.spawn(self.clone().linger_until_replaced(socket, end));
        }
        while lingering.join_next().await.is_some() {}
    }

    async fn linger_until_replaced(self, socket: HeldSocket, end: Instant) {
        let (replace, replaced) = oneshot::channel();
        self.lingering.lock().push_back(replace);
        tokio::select! {
            () = socket.linger(end) => tracing::debug!("closing a held socket of a daemon that is gone"),
            _ = replaced => tracing::debug!("closing a held socket of a daemon that is gone: its place is needed"),
        }
        self.lingering.lock().retain(|other| !other.is_closed());
    }
}

// === impl HeldSocket ===

impl HeldSocket {
    async fn linger(self, end: Instant) {
        while Instant::now() < end && !self.is_over() {
            sleep(LOOK).await;
        }
    }

    /// Returns whether the other end has closed the socket, or has answered its one call. With several
    /// concurrent calls, an answer means nothing: others may still run.
    fn is_over(&self) -> bool {
        let answer = if self.one_call {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut socket = [PollFd::new(&self.socket, answer)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A poll that fails is repeated; the time to linger is bounded anyway.
        poll(&mut socket, Some(&now)).is_ok()
            && socket[0]
                .revents()
                .intersects(answer | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Wake, Waker};

    use super::*;

    /// Has a place. When it is notified to give it away, it does so, and requests another one at once.
    struct Rival {
        permits: Arc<Semaphore>,
        place: Mutex<Option<OwnedSemaphorePermit>>,
    }

    impl Wake for Rival {
        fn wake(self: Arc<Self>) {
            let mut place = self.place.lock();
            drop(place.take());
            *place = Arc::clone(&self.permits).try_acquire_owned().ok();
        }
    }

    #[tokio::test]
    async fn place_that_is_given_away_goes_to_the_one_who_needs_it() {
        let holder = SocketHolder::new();
        let permits = &holder.permits;
        let _others = Arc::clone(permits)
            .try_acquire_many_owned(u32::try_from(MOST).unwrap() - 1)
            .unwrap();
        let last = Arc::clone(permits).try_acquire_owned().unwrap();
        let rival = Arc::new(Rival {
            permits: Arc::clone(permits),
            place: Mutex::new(Some(last)),
        });
        let (replace, mut replaced) = oneshot::channel();
        holder.lingering.lock().push_back(replace);
        let waker = Waker::from(Arc::clone(&rival));
        let asked = Pin::new(&mut replaced).poll(&mut Context::from_waker(&waker));
        assert!(asked.is_pending());
        let given = holder.place().await;
        assert!(given.is_some());
        assert!(rival.place.lock().is_none());
        assert!(
            holder.place().await.is_none(),
            "nobody is left who gives a place away"
        );
    }
}
