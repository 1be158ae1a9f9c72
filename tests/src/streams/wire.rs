//! The streams of one exec or attach, by name, over either protocol.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use switchyard_streaming::Streams;
use switchyard_streaming::client::{ClientEvent, Spdy, WebSocket};
use tokio_tungstenite::tungstenite::Message;
use url::Url;

use super::{StreamProtocol, Transport};

/// The channels of a WebSocket, by number.
const CHANNELS: [&str; 5] = ["stdin", "stdout", "stderr", "error", "resize"];
/// The message that closes the channel which its second byte names.
const CLOSE: [u8; 2] = [255, 0];

/// An opened session.
#[derive(Debug)]
pub(super) enum SessionStreams {
    Spdy {
        spdy: Spdy,
        names: HashMap<u32, &'static str>,
    },
    WebSocket(WebSocket),
}

impl SessionStreams {
    /// Opens a session with these streams. Standard input can be ended over either protocol: WebSocket uses
    /// `v5.channel.k8s.io`.
    pub(super) async fn open(way: &Transport, url: &Url, streams: Streams) -> io::Result<Self> {
        match way.protocol {
            StreamProtocol::WebSocket => Ok(Self::WebSocket(
                way.websocket(url, "v5.channel.k8s.io").await?,
            )),
            StreamProtocol::Spdy => {
                let mut spdy = way.spdy(url, "v4.channel.k8s.io").await?;
                let Streams {
                    stdin,
                    stdout,
                    stderr,
                    tty,
                } = streams;
                let wanted = [
                    ("error", true),
                    ("stdin", stdin),
                    ("stdout", stdout),
                    ("stderr", stderr),
                    ("resize", tty),
                ];
                let mut names = HashMap::new();
                for (name, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
                    names.insert(spdy.sender.open(&[("streamtype", name)]).await?, name);
                }
                Ok(Self::Spdy { spdy, names })
            }
        }
    }

    /// Sends bytes in a stream.
    pub(super) async fn send(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Spdy { spdy, names } => spdy.sender.data(stream(names, name), bytes, false).await,
            Self::WebSocket(socket) => {
                let channel = CHANNELS
                    .iter()
                    .zip(0_u8..)
                    .find(|(channel, _)| **channel == name);
                let (_, channel) = channel.expect("streams have the names of channels");
                let message = Message::Binary([&[channel], bytes].concat().into());
                socket.send(message).await.map_err(io::Error::other)
            }
        }
    }

    /// Ends standard input alone.
    pub(super) async fn end_input(&mut self) -> io::Result<()> {
        match self {
            Self::Spdy { spdy, names } => spdy.sender.data(stream(names, "stdin"), &[], true).await,
            Self::WebSocket(socket) => socket
                .send(Message::Binary(CLOSE.to_vec().into()))
                .await
                .map_err(io::Error::other),
        }
    }

    /// The next data, and its stream; `None` at the end of the connection. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<(&'static str, Bytes)> {
        match self {
            Self::Spdy { spdy, names } => loop {
                match spdy.receiver.event().await {
                    Ok(Some(ClientEvent::Data { stream, bytes, .. })) => {
                        let name = names.get(&stream).copied();
                        return Some((
                            name.unwrap_or_else(|| panic!("data of stream {stream}")),
                            bytes,
                        ));
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return None,
                }
            },
            Self::WebSocket(socket) => loop {
                match socket.next().await {
                    Some(Ok(Message::Binary(bytes))) => {
                        let channel = bytes
                            .first()
                            .and_then(|number| CHANNELS.get(usize::from(*number)));
                        let name =
                            channel.unwrap_or_else(|| panic!("a message of no channel: {bytes:?}"));
                        return Some((name, bytes.slice(1..)));
                    }
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                    Some(Ok(_)) => {}
                }
            },
        }
    }
}

/// The number of the stream with this name.
fn stream(names: &HashMap<u32, &'static str>, wanted: &str) -> u32 {
    let found = names
        .iter()
        .find(|(_, name)| **name == wanted)
        .map(|(stream, _)| *stream);
    found.unwrap_or_else(|| panic!("the client did not ask for {wanted}"))
}
