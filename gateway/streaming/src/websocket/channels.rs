//! The channels of a WebSocket: each message begins with a byte that is the channel number.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{Socket, socket};
use crate::batch::{CLOSING, within};
use crate::budget::{Budget, Item};
use crate::channel::{Inbound, OUT_QUEUE, Out, Outbound};
use crate::io::{Activity, Io, Probe};
use crate::parts::{ENDING, run};

/// In version 5, a message on this channel closes the channel in its second byte.
const CLOSE: u8 = 255;

/// The channels of a session, for the server.
#[derive(Debug)]
pub(super) struct Channels {
    inputs: HashMap<u8, Inbound>,
    out: mpsc::Sender<Out>,
}

/// The channels to serve, and the protocol's features.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The channels on which the client sends.
    pub(super) inputs: Vec<u8>,
    /// True if the client can close a channel.
    pub(super) closes: bool,
}

struct ChannelReader {
    stream: SplitStream<Socket>,
    queues: HashMap<u8, mpsc::UnboundedSender<Item>>,
    closes: bool,
    budget: Budget,
    activity: Arc<Activity>,
}

struct ChannelWriter {
    sink: SplitSink<Socket, Message>,
    out: mpsc::Receiver<Out>,
    activity: Arc<Activity>,
}

/// Reason why a connection ended before its session did.
#[derive(Debug, thiserror::Error)]
enum ChannelError {
    #[error("the client has closed the connection")]
    Closed,
    #[error(transparent)]
    Socket(#[from] Error),
}

/// Runs `session` over the connection until the session ends. `end` is cancelled when the client disconnects:
/// the session must end then. It may also be cancelled from outside, to end the session.
pub(super) async fn serve<F>(
    io: Io,
    wanted: Wanted,
    end: CancellationToken,
    session: impl FnOnce(Channels) -> F,
) where
    F: Future<Output = ()>,
{
    let Io {
        reader,
        writer,
        read_ahead,
        probe,
        activity,
    } = io;
    let (sink, stream) = socket(reader, writer, read_ahead.into()).await.split();
    let (out, outs) = mpsc::channel(OUT_QUEUE);
    let mut queues = HashMap::new();
    let mut inputs = HashMap::new();
    for channel in wanted.inputs {
        let (sender, queue) = mpsc::unbounded_channel();
        queues.insert(channel, sender);
        inputs.insert(channel, Inbound::new(channel.into(), queue, None, 0));
    }
    let budget = Budget::new();
    let closes = wanted.closes;
    let mut reader = ChannelReader {
        stream,
        queues,
        closes,
        budget,
        activity: Arc::clone(&activity),
    };
    let writer = ChannelWriter {
        sink,
        out: outs,
        activity: Arc::clone(&activity),
    };
    let last = OnceLock::new();
    let reading = async {
        let broken = reader.run(&probe).await;
        debug!(
            reason = &broken as &dyn std::error::Error,
            "streaming connection ends"
        );
        if let ChannelError::Socket(error) = broken {
            let _first = last.set(farewell(&error));
        }
    };
    let session = session(Channels {
        inputs,
        out: out.clone(),
    });
    let reading = pin!(reading);
    let session = pin!(session);
    let writing = pin!(writer.run(&end, &last));
    run(reading, session, writing, &out, (&probe, &activity), &end).await;
}

/// The close frame for a client that has violated the protocol.
fn farewell(error: &Error) -> CloseFrame {
    let code = if matches!(error, Error::Capacity(_)) {
        CloseCode::Size
    } else {
        CloseCode::Protocol
    };
    // The reason of a close frame has at most 123 bytes.
    let reason: String = error
        .to_string()
        .chars()
        .filter(char::is_ascii)
        .take(120)
        .collect();
    CloseFrame {
        code,
        reason: reason.into(),
    }
}

// === impl Channels ===

impl Channels {
    /// The receiving direction of an input channel; returned once per channel.
    pub(super) fn inbound(&mut self, channel: u8) -> Option<Inbound> {
        self.inputs.remove(&channel)
    }

    /// The sending direction of any channel.
    pub(super) fn outbound(&self, channel: u8) -> Outbound {
        Outbound::new(channel.into(), self.out.clone(), None)
    }

    /// Sends a message on a channel unchanged, even if it is empty.
    pub(super) async fn send(&self, channel: u8, bytes: Bytes) {
        let _gone = self
            .out
            .send(Out::Data {
                channel: channel.into(),
                bytes,
                end: false,
            })
            .await;
    }
}

// === impl ChannelReader ===

impl ChannelReader {
    /// Reads until the connection ends, and returns the reason.
    async fn run(&mut self, probe: &Probe) -> ChannelError {
        loop {
            let message = self.stream.next().await;
            self.activity.hear();
            let bytes = match message {
                Some(Ok(Message::Binary(bytes))) => bytes,
                Some(Ok(Message::Text(text))) => text.into(),
                // The WebSocket library answers pings; they do not count as activity.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Ok(Message::Close(_))) | None => return ChannelError::Closed,
                Some(Err(error)) => return error.into(),
            };
            self.activity.record();
            if probe.unless_hung_up(self.message(bytes)).await.is_none() {
                return ChannelError::Closed;
            }
        }
    }

    /// Handles a message.
    async fn message(&mut self, bytes: Bytes) {
        match bytes.first() {
            None => {}
            Some(&CLOSE) if self.closes => {
                if let Some(queue) = bytes.get(1).and_then(|channel| self.queues.remove(channel)) {
                    let _nobody_reads = queue.send(Item::End);
                }
            }
            Some(channel) if bytes.len() > 1 => {
                if let Some(queue) = self.queues.get(channel) {
                    let piece = self.budget.admit(bytes.slice(1..)).await;
                    let _nobody_reads = queue.send(Item::Piece(piece));
                }
            }
            Some(_) => {}
        }
    }
}

// === impl ChannelWriter ===

impl ChannelWriter {
    /// Writes the queue until a close is queued, or for [`ENDING`] after `end` is cancelled. The queue is
    /// closed with it, so that no sender waits.
    async fn run(
        self,
        end: &CancellationToken,
        last: &OnceLock<CloseFrame>,
    ) -> Result<(), std::io::Error> {
        within(end, ENDING, self.write(end, last)).await
    }

    /// Writes the queue until a close is queued; then writes the close frame in `last`, if set.
    async fn write(
        mut self,
        end: &CancellationToken,
        last: &OnceLock<CloseFrame>,
    ) -> Result<(), std::io::Error> {
        while let Some(out) = self.out.recv().await {
            match out {
                Out::Data { end: true, .. } | Out::Reset { .. } => {}
                Out::Data {
                    channel,
                    bytes,
                    end: false,
                } => {
                    let channel =
                        u8::try_from(channel).expect("the channels of messages are bytes");
                    let mut message = BytesMut::with_capacity(1 + bytes.len());
                    message.put_u8(channel);
                    message.put(bytes);
                    self.send(Message::Binary(message.freeze()), end).await?;
                    self.activity.record();
                }
                Out::Close => {
                    let frame = last.get().cloned().unwrap_or_else(|| CloseFrame {
                        code: CloseCode::Normal,
                        reason: "".into(),
                    });
                    return self.send(Message::Close(Some(frame)), end).await;
                }
            }
        }
        Ok(())
    }

    /// Writes a message, and flushes if no other one is queued.
    async fn send(
        &mut self,
        message: Message,
        end: &CancellationToken,
    ) -> Result<(), std::io::Error> {
        let flush = self.out.is_empty() || matches!(message, Message::Close(_));
        let write = async {
            self.sink
                .feed(message)
                .await
                .map_err(std::io::Error::other)?;
            if flush {
                self.sink.flush().await.map_err(std::io::Error::other)
            } else {
                Ok(())
            }
        };
        within(end, CLOSING, write).await
    }
}
