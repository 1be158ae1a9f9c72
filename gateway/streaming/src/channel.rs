//! One direction of one stream of a session, independent of the transport.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::budget::{Item, Piece};
use crate::gone::Gone;
use crate::spdy::Flow;

/// Maximum number of pieces that are queued for a connection's writer.
pub(crate) const OUT_QUEUE: usize = 4;

/// An item for the writer of a connection.
#[derive(Debug)]
pub(crate) enum Out {
    /// Bytes of a channel; `end` with the last ones.
    Data {
        channel: u32,
        bytes: Bytes,
        end: bool,
    },
    /// The channel has failed: nothing follows on it, and nothing that arrives for it is accepted.
    Reset { channel: u32 },
    /// Nothing follows: closes the connection.
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
    /// Consumed bytes that the peer has not been sent a window update for.
    unacknowledged: u32,
}

// === impl Outbound ===

impl Outbound {
    pub(crate) fn new(channel: u32, out: mpsc::Sender<Out>, flow: Option<Arc<Flow>>) -> Self {
        Self { channel, out, flow }
    }

    /// Sends bytes, as the client's window permits.
    pub(crate) async fn send(&mut self, mut bytes: Bytes) -> Result<(), Gone> {
        while !bytes.is_empty() {
            let length = match &self.flow {
                Some(flow) => flow.reserve(self.channel, bytes.len()).await?,
                None => bytes.len(),
            };
            let piece = Out::Data {
                channel: self.channel,
                bytes: bytes.split_to(length),
                end: false,
            };
            self.out.send(piece).await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    /// Sends as many of these bytes as the client's window permits now, and drops the rest.
    pub(crate) async fn send_what_fits(&mut self, mut bytes: Bytes) {
        if let Some(flow) = &self.flow {
            bytes.truncate(flow.reserve_now(self.channel, bytes.len()));
        }
        if !bytes.is_empty() {
            let _gone = self
                .out
                .send(Out::Data {
                    channel: self.channel,
                    bytes,
                    end: false,
                })
                .await;
        }
    }

    /// Ends this direction. If the client is gone, nothing happens.
    pub(crate) async fn finish(&mut self) {
        if self
            .flow
            .as_ref()
            .is_none_or(|flow| flow.send_end(self.channel))
        {
            let end = Out::Data {
                channel: self.channel,
                bytes: Bytes::new(),
                end: true,
            };
            let _gone = self.out.send(end).await;
        }
    }

    /// Resets the stream after what was sent, unless both directions have ended.
    pub(crate) async fn reset(&mut self) {
        if self
            .flow
            .as_ref()
            .is_some_and(|flow| flow.reset(self.channel))
        {
            let _gone = self
                .out
                .send(Out::Reset {
                    channel: self.channel,
                })
                .await;
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
        Self {
            channel,
            queue,
            flow,
            unacknowledged: untold,
        }
    }

    /// The next bytes; `None` is the end of file. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, Gone> {
        match self.queue.recv().await.ok_or(Gone)? {
            Item::Piece(piece) => Ok(Some(piece)),
            Item::End => Ok(None),
        }
    }

    /// Marks bytes as consumed: the client may send as many more.
    pub(crate) async fn consumed(&mut self, length: usize) {
        if let Some(flow) = &self.flow {
            self.unacknowledged = self
                .unacknowledged
                .saturating_add(u32::try_from(length).unwrap_or(u32::MAX));
            flow.stream_consumed(self.channel, &mut self.unacknowledged, length)
                .await;
        }
    }
}

impl Drop for Inbound {
    /// Bytes that are dropped unread are given back to the connection's window.
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
