//! One direction of one stream of a session, whatever carries it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::io::Probe;
use crate::spdy::Flow;

/// How many pieces may wait to be written to a connection.
pub(crate) const OUT_QUEUE: usize = 4;

/// The most bytes that a connection keeps for streams whose readers are slow. Beyond it, the connection is not read.
pub(crate) const BUDGET: u32 = 4 * 1024 * 1024;

/// What a piece counts towards the budget beside its bytes.
const PIECE_COST: usize = 128;

/// Pieces shorter than this are copied, so that a short one does not keep the buffer it was read into.
const COPIED: usize = 16 * 1024;

/// How long a client that has got everything may take to close. Closing before it would cut off what it has not read.
pub(crate) const LINGER: Duration = Duration::from_secs(3);

/// How often a client that cannot be read is asked whether it is still there.
const PROBE: Duration = Duration::from_millis(500);

/// The client has reset the stream, or has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client has closed the stream")]
pub(crate) struct Gone;

/// What a writer is given to write.
#[derive(Debug)]
pub(crate) enum Out {
    /// Bytes of a channel; its last ones if `end`.
    Data { channel: u32, bytes: Bytes, end: bool },
    /// The channel has failed: nothing of it follows, and nothing for it is taken.
    Reset { channel: u32 },
    /// Nothing follows: close the connection.
    Close,
}

/// The sending direction of a stream.
#[derive(Debug)]
pub(crate) struct Outbound {
    channel: u32,
    out: mpsc::Sender<Out>,
    flow: Option<Arc<Flow>>,
}

/// The receiving direction of a stream.
#[derive(Debug)]
pub(crate) struct Inbound {
    channel: u32,
    queue: mpsc::UnboundedReceiver<Item>,
    flow: Option<Arc<Flow>>,
    /// Bytes taken that the peer has not yet been told of.
    unacknowledged: u32,
}

/// What comes in a stream.
#[derive(Debug)]
pub(crate) enum Item {
    Piece(Piece),
    /// The client has ended the stream: end of file.
    End,
}

/// Some bytes that came, which count towards the connection's budget until they are dropped.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

/// What bounds the bytes that wait in all queues of a connection, which have no other bound.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

// === impl Outbound ===

impl Outbound {
    pub(crate) fn new(channel: u32, out: mpsc::Sender<Out>, flow: Option<Arc<Flow>>) -> Self {
        Self { channel, out, flow }
    }

    /// Sends bytes, when the client is ready for them.
    pub(crate) async fn send(&mut self, mut bytes: Bytes) -> Result<(), Gone> {
        while !bytes.is_empty() {
            let length = match &self.flow {
                Some(flow) => flow.reserve(self.channel, bytes.len()).await?,
                None => bytes.len(),
            };
            let piece = Out::Data { channel: self.channel, bytes: bytes.split_to(length), end: false };
            self.out.send(piece).await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    /// Ends this direction. That the client has gone matters no more.
    pub(crate) async fn finish(&mut self) {
        if self.flow.as_ref().is_none_or(|flow| flow.send_end(self.channel)) {
            let end = Out::Data { channel: self.channel, bytes: Bytes::new(), end: true };
            let _gone = self.out.send(end).await;
        }
    }

    /// Ends both directions after what was sent, unless both have ended.
    pub(crate) async fn reset(&mut self) {
        if self.flow.as_ref().is_some_and(|flow| flow.reset(self.channel)) {
            let _gone = self.out.send(Out::Reset { channel: self.channel }).await;
        }
    }
}

// === impl Inbound ===

impl Inbound {
    pub(crate) fn new(
        channel: u32,
        queue: mpsc::UnboundedReceiver<Item>,
        flow: Option<Arc<Flow>>,
        untold: u32,
    ) -> Self {
        Self { channel, queue, flow, unacknowledged: untold }
    }

    /// What comes next; `None` is the end of file. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, Gone> {
        match self.queue.recv().await.ok_or(Gone)? {
            Item::Piece(piece) => Ok(Some(piece)),
            Item::End => Ok(None),
        }
    }

    /// These bytes are as good as taken: the client may send as many more.
    pub(crate) async fn consumed(&mut self, length: usize) {
        if let Some(flow) = &self.flow {
            self.unacknowledged =
                self.unacknowledged.saturating_add(u32::try_from(length).unwrap_or(u32::MAX));
            flow.stream_consumed(self.channel, &mut self.unacknowledged, length).await;
        }
    }
}

impl Drop for Inbound {
    /// What nobody will take any more must not be missing from the connection's window.
    fn drop(&mut self) {
        self.queue.close();
        while let (Some(flow), Ok(item)) = (&self.flow, self.queue.try_recv()) {
            match item {
                Item::Piece(piece) => flow.connection_dropped(piece.bytes.len()),
                Item::End => {}
            }
        }
    }
}

// === impl Budget ===

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET as usize)))
    }

    /// Waits until there is room for these bytes. While there is none the connection is not read, so `probe` is asked
    /// now and then whether the client has gone: then `None`. Cancel-safe.
    pub(crate) async fn admit(&self, bytes: Bytes, probe: &Probe) -> Option<Piece> {
        let cost = u32::try_from(bytes.len() + PIECE_COST).unwrap_or(BUDGET).min(BUDGET);
        loop {
            match timeout(PROBE, Arc::clone(&self.0).acquire_many_owned(cost)).await {
                Ok(permit) => {
                    let bytes = if bytes.len() < COPIED { Bytes::copy_from_slice(&bytes) } else { bytes };
                    return Some(Piece { bytes, _permit: permit.expect("the budget is never closed") });
                }
                Err(_) if probe.hung_up() => return None,
                Err(_) => {}
            }
        }
    }
}
