//! A WebSocket client with one sub-protocol, and the byte stream of a tunnel.

use std::io;

use tokio::io::join;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use url::Url;

use super::{UpgradeRefused, UpgradedStream, connect, request};
use crate::websocket::bytes;

/// A WebSocket, on the client's side.
pub type WebSocket = WebSocketStream<Box<dyn UpgradedStream>>;

/// Opens a URL, offering these sub-protocols in one line; none if it is empty.
///
/// # Errors
///
/// Those of the connection; the inner error is the answer if it is not an upgrade.
pub async fn websocket(
    url: &Url,
    protocols: &str,
) -> io::Result<Result<WebSocket, UpgradeRefused>> {
    websocket_over(Box::new(connect(url).await?), url, protocols).await
}

/// As [`websocket`], over an existing connection.
///
/// # Errors
///
/// Those of the connection; the inner error is the answer if it is not an upgrade.
pub async fn websocket_over(
    mut stream: Box<dyn UpgradedStream>,
    url: &Url,
    protocols: &str,
) -> io::Result<Result<WebSocket, UpgradeRefused>> {
    let key = generate_key();
    let mut lines = vec![
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", &*key),
    ];
    if !protocols.is_empty() {
        lines.push(("Sec-WebSocket-Protocol", protocols));
    }
    match request(&mut stream, "GET", url, &lines).await? {
        Ok(read_ahead) => Ok(Ok(WebSocketStream::from_partially_read(
            stream,
            read_ahead.into(),
            Role::Client,
            None,
        )
        .await)),
        Err(refused) => Ok(Err(refused)),
    }
}

/// The byte stream that is carried in the messages of a WebSocket.
#[must_use]
pub fn tunnel(socket: WebSocket) -> Box<dyn UpgradedStream> {
    let (reader, writer) = bytes(socket);
    Box::new(join(reader, writer))
}
