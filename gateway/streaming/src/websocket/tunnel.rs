//! The tunnel: binary messages whose concatenated content is a SPDY connection.

use std::io;

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt, future};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

use super::socket;
use crate::io::Io;

/// The byte stream in the messages of a connection.
pub(crate) async fn tunnel(io: Io) -> Io {
    let Io {
        reader,
        writer,
        read_ahead,
        probe,
        activity,
    } = io;
    let (reader, writer) = bytes(socket(reader, writer, read_ahead.into()).await);
    Io {
        reader,
        writer,
        read_ahead: BytesMut::new(),
        probe,
        activity,
    }
}

/// The byte stream that is read from, and written to, the messages of a WebSocket.
pub(crate) fn bytes<S>(
    socket: WebSocketStream<S>,
) -> (
    Box<dyn AsyncRead + Send + Unpin>,
    Box<dyn AsyncWrite + Send + Unpin>,
)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sink, stream) = socket.split();
    let bytes = stream.filter_map(|message| {
        future::ready(match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(Message::Text(text)) => Some(Ok(Bytes::from(text))),
            // The WebSocket library answers pings; nothing follows a close frame.
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_)) => None,
            Err(error) => Some(Err(to_io(error))),
        })
    });
    let messages = sink
        .sink_map_err(to_io)
        .with(|bytes: Bytes| future::ready(io::Result::Ok(Message::Binary(bytes))));
    (
        Box::new(StreamReader::new(bytes)),
        Box::new(SinkWriter::new(CopyToBytes::new(messages))),
    )
}

fn to_io(error: Error) -> io::Error {
    if let Error::Io(error) = error {
        error
    } else {
        io::Error::other(error)
    }
}
