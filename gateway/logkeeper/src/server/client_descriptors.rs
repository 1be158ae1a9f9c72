//! The descriptors that one client hands over to be held or stored, and takes.

use std::io;
use std::os::fd::AsFd;

use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};

use super::{WRITE_LIMIT, encode, refuse, send_reply};
use crate::descriptor_store::{DescriptorStore, StoreAccess};
use crate::passing;
use crate::protocol::{Done, Request, Taken};
use crate::socket_holder::{HeldSocket, LINGER, SocketHolder};

/// The descriptors that one client has handed over and may take.
pub(super) struct ClientDescriptors {
    holder: SocketHolder,
    held: Vec<HeldSocket>,
    stored: StoreAccess,
}

// === impl ClientDescriptors ===

impl ClientDescriptors {
    /// Those of a client that has just connected.
    pub(super) fn new(holder: &SocketHolder, store: &DescriptorStore) -> Self {
        Self {
            holder: holder.clone(),
            held: Vec::new(),
            stored: store.access(),
        }
    }

    /// Closes the held sockets.
    pub(super) fn release(&mut self) {
        self.held.clear();
    }

    /// Carries out a request that is about descriptors; returns the answer that ends it.
    pub(super) async fn answer(
        &mut self,
        request: Request,
        stream: &mut BufReader<UnixStream>,
    ) -> io::Result<Vec<u8>> {
        match request {
            Request::Hold { one_call } => {
                send_reply(stream, &encode(Ok(Done {}))?).await?;
                // The client waits for the answer before it sends the byte, so the buffer is empty.
                let received = self.holder.receive(stream.get_ref(), one_call).await?;
                encode(received.map(|socket| {
                    self.held.push(socket);
                    Done {}
                }))
            }
            Request::Put { name, note } => match self.stored.check(&name, &note) {
                Err(fault) => encode::<Done>(Err(fault)),
                Ok(()) => {
                    send_reply(stream, &encode(Ok(Done {}))?).await?;
                    // As above.
                    let received = self.stored.receive(stream.get_ref(), name, note).await?;
                    encode(received.map(|()| Done {}))
                }
            },
            Request::Take { name } => self.hand_out(&name, stream).await,
            Request::Descriptors => encode(Ok(self.stored.list())),
            Request::Hello { .. }
            | Request::Open(_)
            | Request::Reopen { .. }
            | Request::Finish { .. }
            | Request::Abandon { .. }
            | Request::List { .. }
            | Request::Stats
            | Request::Release
            | Request::Attach { .. }
            | Request::Shutdown => refuse("the request is about no descriptor"),
        }
    }

    /// Sends a stored descriptor to the client.
    async fn hand_out(
        &self,
        name: &str,
        stream: &mut BufReader<UnixStream>,
    ) -> io::Result<Vec<u8>> {
        let taken = match self.stored.take(name) {
            Err(fault) => return encode::<Taken>(Err(fault)),
            Ok(taken) => taken,
        };
        let (note, descriptor) = taken;
        send_reply(stream, &encode(Ok(Taken { note }))?).await?;
        // The client sends a byte when it has read the answer: its buffer would swallow the descriptor otherwise.
        let passed = timeout(WRITE_LIMIT, async {
            stream.read_exact(&mut [0]).await?;
            passing::send(stream.get_ref(), descriptor.as_fd()).await
        });
        passed
            .await
            .map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))??;
        encode(Ok(Done {}))
    }

    /// Keeps the descriptors of a client that is gone, each for its time.
    pub(super) async fn linger(self) {
        let Self {
            holder,
            held,
            stored,
        } = self;
        tokio::join!(
            holder.linger(held, Instant::now() + LINGER),
            stored.expire()
        );
    }
}
