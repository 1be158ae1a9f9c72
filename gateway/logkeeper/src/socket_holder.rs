//! Sockets that the keeper holds open for the daemon, so that what the other end does for the daemon outlives its kill.
//!
//! A server whose client's socket closes calls off what it was doing for it. The kernel closes a socket with its last descriptor,
//! so one more here keeps it open after a kill. Nothing is read or written: the keeper is in nobody's way.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use crate::protocol::{Fault, FaultKind};

/// How many sockets are held at most.
const MOST: usize = 40;

/// How long a socket is held after the daemon that handed it over has gone: longer than any call to containerd that starts or
/// ends a process may take.
pub(crate) const LINGER: Duration = Duration::from_secs(180);

/// Between two looks whether the other end has closed a socket that lingers.
const LOOK: Duration = Duration::from_secs(1);

/// The sockets that are held, by all connections together.
#[derive(Debug, Clone)]
pub(crate) struct SocketHolder {
    permits: Arc<Semaphore>,
}

/// A socket that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldSocket {
    socket: OwnedFd,
    /// The other end has done its work as soon as it says something.
    one_call: bool,
    _permit: OwnedSemaphorePermit,
}

// === impl Held ===

impl SocketHolder {
    pub(crate) fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(MOST)) }
    }

    /// Takes the socket that comes with the next byte on `stream`, as [`crate::protocol::Request::Hold`] says. Not cancel-safe.
    ///
    /// # Errors
    /// The connection is of no use then: nobody knows what has been read of it.
    pub(crate) async fn receive(
        &self,
        stream: &UnixStream,
        one_call: bool,
    ) -> io::Result<Result<HeldSocket, Fault>> {
        let socket = loop {
            stream.readable().await?;
            match stream.try_io(Interest::READABLE, || take(stream)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => break other?,
            }
        };
        Ok(match (socket, Arc::clone(&self.permits).try_acquire_owned()) {
            (Some(socket), Ok(place)) => Ok(HeldSocket { socket, one_call, _permit: place }),
            (None, _) => Err(Fault::new(FaultKind::InvalidArgument, "no socket came with the byte")),
            (Some(_), Err(_)) => {
                Err(Fault::new(FaultKind::Busy, format!("{MOST} sockets are held, which is the most")))
            }
        })
    }
}

/// Reads one byte and the descriptor that comes with it, if one does.
fn take(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let read = recvmsg(stream, &mut [io::IoSliceMut::new(&mut byte)], &mut control, flags)?;
    if read.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let sockets = control.drain().filter_map(|message| {
        let RecvAncillaryMessage::ScmRights(sockets) = message else { return None };
        Some(sockets)
    });
    Ok(sockets.flatten().next())
}

// === impl HeldSocket ===

impl HeldSocket {
    /// Holds on until the other end closes, or has answered the one call, at most until `end`. Cancel-safe: dropped, the socket is let
    /// go.
    pub(crate) async fn linger(self, end: Instant) {
        while Instant::now() < end && !self.is_over() {
            sleep(LOOK).await;
        }
        tracing::debug!("a socket of a daemon that has gone is let go");
    }

    /// Whether the other end has closed it, or has answered the one call that it may have been asked. Of several calls an answer says
    /// nothing: others may go on.
    fn is_over(&self) -> bool {
        let answer = if self.one_call { PollFlags::IN } else { PollFlags::empty() };
        let mut socket = [PollFd::new(&self.socket, answer)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A look that fails is repeated; the time to linger is bounded anyway.
        poll(&mut socket, Some(&now)).is_ok()
            && socket[0].revents().intersects(answer | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
    }
}
