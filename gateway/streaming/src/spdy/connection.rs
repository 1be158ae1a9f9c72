//! A SPDY/3.1 connection: its reader, its writer, and the session between them, all in one task.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::flow::{Flow, STREAM_UNACKNOWLEDGED};
use super::frame::{self, Decoder, Event, FrameError, Status};
use super::header::{Deflater, Headers};
use super::table::{OpenError, Target};
use crate::batch::{Batch, CLOSING, within};
use crate::budget::{Budget, Item};
use crate::buffers::Buffers;
use crate::channel::{Inbound, OUT_QUEUE, Out, Outbound};
use crate::io::{Activity, Io, Probe};
use crate::parts::{ENDING, run};

/// The most streams that a client may have open: forwarded connections take two each.
pub(crate) const MAX_STREAMS: usize = 1024;

/// Maximum number of control frames that are queued for the writer. A client that sends requests and does not
/// read the answers is no longer read.
const CONTROL_QUEUE: usize = 64;

/// Maximum number of opened streams that are queued for their session.
const INCOMING_QUEUE: usize = 16;

/// Number of data frames that are written together.
const BATCH: usize = 16;

/// The first and the largest size of reads: it grows on busy connections.
const READ: (usize, usize) = (8 * 1024, 128 * 1024);

/// A stream that the client has opened.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// The stream id, which is odd.
    pub(crate) id: u32,
    /// The headers that the client sent.
    pub(crate) headers: Headers,
    /// The receiving direction.
    pub(crate) inbound: Inbound,
    /// The sending direction.
    pub(crate) outbound: Outbound,
}

/// Reason why a connection ended before its session did.
#[derive(Debug, thiserror::Error)]
enum SpdyError {
    #[error("the client has closed the connection")]
    Closed,
    #[error("the connection is broken")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the client opened stream {0} out of order")]
    Order(u32),
    #[error("the client opened the window of the connection too far")]
    Window,
}

struct SpdyReader {
    io: Box<dyn AsyncRead + Send + Unpin>,
    buffer: BytesMut,
    decoder: Decoder,
    deflater: Deflater,
    flow: Arc<Flow>,
    incoming: mpsc::Sender<Incoming>,
    out: mpsc::Sender<Out>,
    budget: Budget,
    activity: Arc<Activity>,
}

struct SpdyWriter {
    io: Box<dyn AsyncWrite + Send + Unpin>,
    flow: Arc<Flow>,
    control: mpsc::Receiver<Bytes>,
    out: mpsc::Receiver<Out>,
    activity: Arc<Activity>,
}

/// Runs `session` over the connection until the session ends. `end` is cancelled when the client disconnects:
/// the session must end then. It may also be cancelled from outside, to end the session.
pub(crate) async fn serve<F>(
    io: Io,
    end: CancellationToken,
    session: impl FnOnce(mpsc::Receiver<Incoming>) -> F,
) where
    F: Future<Output = ()>,
{
    let (control, controls) = mpsc::channel(CONTROL_QUEUE);
    let (out, outs) = mpsc::channel(OUT_QUEUE);
    let (incoming, streams) = mpsc::channel(INCOMING_QUEUE);
    let flow = Arc::new(Flow::new(MAX_STREAMS, control, end.clone()));
    let mut reader = SpdyReader {
        io: io.reader,
        buffer: io.read_ahead,
        decoder: Decoder::new(),
        deflater: Deflater::new(),
        flow: Arc::clone(&flow),
        incoming,
        out: out.clone(),
        budget: Budget::new(),
        activity: Arc::clone(&io.activity),
    };
    let writer = SpdyWriter {
        io: io.writer,
        flow,
        control: controls,
        out: outs,
        activity: Arc::clone(&io.activity),
    };
    let protocol = CancellationToken::new();
    let reading = async {
        let broken = reader.run(&io.probe).await;
        debug!(
            reason = &broken as &dyn std::error::Error,
            "streaming connection ends"
        );
        if !matches!(broken, SpdyError::Closed | SpdyError::Io(_)) {
            protocol.cancel();
        }
    };
    let reading = pin!(reading);
    let session = pin!(session(streams));
    let writing = pin!(writer.run(&end, &protocol));
    run(
        reading,
        session,
        writing,
        &out,
        (&io.probe, &io.activity),
        &end,
    )
    .await;
}

// === impl SpdyReader ===

impl SpdyReader {
    /// Reads until the connection ends, and returns the reason.
    async fn run(&mut self, probe: &Probe) -> SpdyError {
        let mut buffers = Buffers::default();
        let mut size = READ.0;
        loop {
            match probe.unless_hung_up(self.handle_all()).await {
                Some(Ok(())) => {}
                Some(Err(broken)) => return broken,
                None => return SpdyError::Closed,
            }
            buffers.make_room(&mut self.buffer, size / 2, size);
            let room = self.buffer.capacity() - self.buffer.len();
            match self.io.read_buf(&mut self.buffer).await {
                Ok(0) => return SpdyError::Closed,
                Ok(read) if read == room => size = (size * 2).min(READ.1),
                Ok(_) => {}
                Err(error) => return error.into(),
            }
            self.activity.hear();
            self.activity.record();
        }
    }

    async fn handle_all(&mut self) -> Result<(), SpdyError> {
        while let Some(event) = self.decoder.next(&mut self.buffer)? {
            self.handle(event).await?;
        }
        Ok(())
    }

    async fn handle(&mut self, event: Event) -> Result<(), SpdyError> {
        match event {
            Event::Opened {
                stream,
                headers,
                end,
            } => self.open(stream, headers, end).await,
            Event::Data { stream, bytes, end } => self.data(stream, bytes, end).await,
            Event::Reset { stream, .. } => {
                self.flow.reset(stream);
                Ok(())
            }
            Event::Settings {
                initial_window: Some(window),
            } => {
                let set = self.flow.table().set_initial_window(window);
                self.flow.wake();
                set.map_err(|_| SpdyError::Window)
            }
            Event::Window { stream, delta } => {
                let opened = self.flow.table().open_window(stream, delta);
                self.flow.wake();
                match opened {
                    Ok(()) => Ok(()),
                    Err(_) if stream == 0 => Err(SpdyError::Window),
                    Err(_) => {
                        self.flow.reset(stream);
                        self.flow
                            .send(frame::reset(stream, Status::FlowControl))
                            .await;
                        Ok(())
                    }
                }
            }
            Event::Ping { id } => {
                // Pings with even ids would be answers to pings of this side, which sends none.
                if id % 2 == 1 {
                    self.flow.send(frame::ping(id)).await;
                }
                Ok(())
            }
            Event::Settings {
                initial_window: None,
            }
            | Event::Replied { .. }
            | Event::GoAway { .. }
            | Event::Ignored => Ok(()),
        }
    }

    async fn open(&mut self, id: u32, headers: Headers, end: bool) -> Result<(), SpdyError> {
        let (sender, queue) = mpsc::unbounded_channel();
        let opened = self.flow.table().open(id, sender);
        match opened {
            Ok(()) => {}
            Err(OpenError::Protocol) => return Err(SpdyError::Order(id)),
            Err(OpenError::Limit) => {
                self.flow.send(frame::reset(id, Status::Refused)).await;
                return Ok(());
            }
        }
        let Ok(slot) = self.incoming.reserve().await else {
            // The session accepts no further streams.
            self.flow.reset(id);
            self.flow.send(frame::reset(id, Status::Refused)).await;
            return Ok(());
        };
        // Clients drop data that arrives before the reply.
        self.flow.send(frame::reply(id, &mut self.deflater)).await;
        let flow = Some(Arc::clone(&self.flow));
        slot.send(Incoming {
            id,
            headers,
            inbound: Inbound::new(id, queue, flow.clone(), STREAM_UNACKNOWLEDGED),
            outbound: Outbound::new(id, self.out.clone(), flow),
        });
        if end {
            self.received_end(id);
        }
        Ok(())
    }

    async fn data(&mut self, id: u32, bytes: Bytes, end: bool) -> Result<(), SpdyError> {
        let target = self.flow.table().target(id);
        match target {
            Target::Queue(queue) if !bytes.is_empty() => {
                let length = bytes.len();
                let piece = self.budget.admit(bytes).await;
                // Nobody reads the stream: its bytes must not use up the connection's window.
                if queue.send(Item::Piece(piece)).is_err() {
                    self.flow.connection_consumed(length).await;
                }
            }
            Target::Queue(_) => {}
            Target::Nowhere => self.flow.connection_consumed(bytes.len()).await,
            Target::Unknown => {
                self.flow.connection_consumed(bytes.len()).await;
                self.flow
                    .send(frame::reset(id, Status::InvalidStream))
                    .await;
            }
        }
        if end {
            self.received_end(id);
        }
        Ok(())
    }

    fn received_end(&self, id: u32) {
        let queue = self.flow.table().received_end(id);
        if let Some(queue) = queue {
            let _nobody_reads = queue.send(Item::End);
        }
    }
}

// === impl SpdyWriter ===

impl SpdyWriter {
    /// Writes the queues until a close is queued, or for [`ENDING`] after `end` is cancelled. The queues are
    /// closed with it, so that no sender waits.
    async fn run(self, end: &CancellationToken, protocol: &CancellationToken) -> io::Result<()> {
        within(end, ENDING, self.write(end, protocol)).await
    }

    async fn write(
        mut self,
        end: &CancellationToken,
        protocol: &CancellationToken,
    ) -> io::Result<()> {
        let mut batch = Batch::default();
        loop {
            let mut open = tokio::select! {
                biased;
                Some(frame) = self.control.recv() => { batch.push(frame); true }
                Some(out) = self.out.recv() => push(&mut batch, out),
                else => false,
            };
            // All control frames come first, as the reply to a stream does before its data. No more come meanwhile: the
            // reader is in the same task. So a client that keeps asking for answers keeps nothing else from being written.
            while let Ok(frame) = self.control.try_recv() {
                batch.push(frame);
            }
            let mut frames = 0;
            while open
                && frames < BATCH
                && let Ok(out) = self.out.try_recv()
            {
                open = push(&mut batch, out);
                frames += 1;
            }
            if !open {
                batch.push(frame::go_away(
                    self.flow.table().last(),
                    protocol.is_cancelled(),
                ));
            }
            batch.write(&mut self.io, &self.activity, end).await?;
            if !open {
                return within(end, CLOSING, self.io.shutdown()).await;
            }
        }
    }
}

/// Adds a data frame; returns false if it was the last.
fn push(batch: &mut Batch, out: Out) -> bool {
    match out {
        Out::Data {
            channel,
            bytes,
            end,
        } => {
            batch.push(Bytes::copy_from_slice(&frame::data(
                channel,
                bytes.len(),
                end,
            )));
            if !bytes.is_empty() {
                batch.push(bytes);
            }
            true
        }
        Out::Reset { channel } => {
            batch.push(frame::reset(channel, Status::Cancel));
            true
        }
        Out::Close => false,
    }
}

#[cfg(test)]
mod tests;
