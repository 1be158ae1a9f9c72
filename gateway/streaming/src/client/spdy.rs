//! A SPDY/3.1 client that sends any frames, valid or not.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use url::Url;

use super::{UpgradeRefused, UpgradedStream, connect, request};
use crate::spdy::frame::{self, Decoder, Status};
use crate::spdy::header::Deflater;

/// A SPDY connection.
#[derive(Debug)]
pub struct Spdy {
    /// The sending half.
    pub sender: Sender,
    /// The receiving half.
    pub receiver: Receiver,
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct Sender {
    io: WriteHalf<Box<dyn UpgradedStream>>,
    deflater: Deflater,
    next: u32,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Receiver {
    io: ReadHalf<Box<dyn UpgradedStream>>,
    buffer: BytesMut,
    decoder: Decoder,
}

/// An event that the server has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the frames")]
pub enum ClientEvent {
    /// SYN_REPLY.
    Replied { stream: u32 },
    /// Some bytes of a data frame; `end` with the last ones of a frame with FIN.
    Data {
        stream: u32,
        bytes: Bytes,
        end: bool,
    },
    /// RST_STREAM.
    Reset { stream: u32, status: u32 },
    /// PING.
    Ping { id: u32 },
    /// GOAWAY.
    GoAway { status: u32 },
    /// WINDOW_UPDATE; stream 0 is the connection.
    Window { stream: u32, delta: u32 },
    /// A frame that no streaming server sends.
    Other,
}

impl Spdy {
    /// Opens a URL as kubelet does, offering these protocols.
    ///
    /// # Errors
    ///
    /// Those of the connection; the inner error is the answer if it is not an upgrade.
    pub async fn open(url: &Url, protocols: &[&str]) -> io::Result<Result<Self, UpgradeRefused>> {
        Self::over(Box::new(connect(url).await?), url, protocols).await
    }

    /// As [`Spdy::open`], over an existing connection.
    ///
    /// # Errors
    ///
    /// Those of the connection; the inner error is the answer if it is not an upgrade.
    pub async fn over(
        mut stream: Box<dyn UpgradedStream>,
        url: &Url,
        protocols: &[&str],
    ) -> io::Result<Result<Self, UpgradeRefused>> {
        let mut lines = vec![("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")];
        lines.extend(
            protocols
                .iter()
                .map(|protocol| ("X-Stream-Protocol-Version", *protocol)),
        );
        let answer = request(&mut stream, "POST", url, &lines).await?;
        Ok(answer.map(|read_ahead| Self::begin(stream, read_ahead)))
    }

    /// Speaks SPDY over a connection that was upgraded.
    #[must_use]
    pub fn begin(stream: Box<dyn UpgradedStream>, read_ahead: BytesMut) -> Self {
        let (reader, writer) = split(stream);
        Self {
            sender: Sender {
                io: writer,
                deflater: Deflater::new(),
                next: 1,
            },
            receiver: Receiver {
                io: reader,
                buffer: read_ahead,
                decoder: Decoder::new(),
            },
        }
    }
}

impl Sender {
    /// Opens the next stream with these headers.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub async fn open(&mut self, headers: &[(&str, &str)]) -> io::Result<u32> {
        let stream = self.next;
        self.next += 2;
        let frame = frame::open(stream, headers, false, &mut self.deflater);
        self.raw(&frame).await?;
        Ok(stream)
    }

    /// Sends bytes in one data frame.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub async fn data(&mut self, stream: u32, bytes: &[u8], end: bool) -> io::Result<()> {
        self.raw(&frame::data(stream, bytes.len(), end)).await?;
        self.raw(bytes).await
    }

    /// Resets a stream.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub async fn reset(&mut self, stream: u32) -> io::Result<()> {
        self.raw(&frame::reset(stream, Status::Cancel)).await
    }

    /// Sends a PING, which the server echoes.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub async fn ping(&mut self, id: u32) -> io::Result<()> {
        self.raw(&frame::ping(id)).await
    }

    /// Increases a window; stream 0 is the connection.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub async fn window(&mut self, stream: u32, delta: u32) -> io::Result<()> {
        self.raw(&frame::window(stream, delta)).await
    }

    /// Sets the initial window of streams.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub async fn initial_window(&mut self, window: u32) -> io::Result<()> {
        self.raw(&frame::initial_window(window)).await
    }

    /// Closes the sending direction of the connection.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.io.shutdown().await
    }

    /// Sends any bytes.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub async fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.io.write_all(bytes).await?;
        // The transport may buffer writes.
        self.io.flush().await
    }
}

impl Receiver {
    /// The next event; `None` if the server has closed the connection after a whole frame. Cancel-safe.
    ///
    /// # Errors
    ///
    /// Those of the connection, invalid frames, and `UnexpectedEof` within a frame.
    pub async fn event(&mut self) -> io::Result<Option<ClientEvent>> {
        loop {
            let event = self
                .decoder
                .next(&mut self.buffer)
                .map_err(io::Error::other)?;
            match event {
                Some(frame::Event::Replied { stream, .. }) => {
                    return Ok(Some(ClientEvent::Replied { stream }));
                }
                Some(frame::Event::Data { stream, bytes, end }) => {
                    return Ok(Some(ClientEvent::Data { stream, bytes, end }));
                }
                Some(frame::Event::Reset { stream, status }) => {
                    return Ok(Some(ClientEvent::Reset { stream, status }));
                }
                Some(frame::Event::Ping { id }) => return Ok(Some(ClientEvent::Ping { id })),
                Some(frame::Event::GoAway { status }) => {
                    return Ok(Some(ClientEvent::GoAway { status }));
                }
                Some(frame::Event::Window { stream, delta }) => {
                    return Ok(Some(ClientEvent::Window { stream, delta }));
                }
                Some(
                    frame::Event::Opened { .. }
                    | frame::Event::Settings { .. }
                    | frame::Event::Ignored,
                ) => {
                    return Ok(Some(ClientEvent::Other));
                }
                None => {}
            }
            self.buffer.reserve(256 * 1024);
            if self.io.read_buf(&mut self.buffer).await? == 0 {
                return if self.decoder.is_between_frames(&self.buffer) {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events that a client receives from a server that sends these bytes and closes the connection.
    async fn events(sent: &[u8]) -> io::Result<Vec<ClientEvent>> {
        let (client, mut server) = tokio::io::duplex(1024);
        server.write_all(sent).await?;
        drop(server);
        let mut receiver = Spdy::begin(Box::new(client), BytesMut::new()).receiver;
        let mut events = Vec::new();
        while let Some(event) = receiver.event().await? {
            events.push(event);
        }
        Ok(events)
    }

    #[tokio::test]
    async fn connection_that_ends_within_a_frame_is_an_error() {
        let ping = frame::ping(2);
        let mut data = frame::data(1, 4, true).to_vec();
        data.extend(b"data");
        assert!(events(b"").await.unwrap().is_empty());
        assert_eq!(events(&ping).await.unwrap(), [ClientEvent::Ping { id: 2 }]);
        assert_eq!(events(&data).await.unwrap().len(), 1);
        // Within a head, within a control frame, between a head and its data, and within data.
        for cut in [&ping[..3], &ping[..10], &data[..8], &data[..10]] {
            let error = events(cut).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut:?}");
        }
    }
}
