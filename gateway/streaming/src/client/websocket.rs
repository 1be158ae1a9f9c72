//! A WebSocket client with one sub-protocol.

use std::io;

use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use url::Url;

use super::{Refused, connect, request};

/// A WebSocket, on the client's side.
pub type WebSocket = WebSocketStream<TcpStream>;

/// Opens a URL, offering these sub-protocols in one line; none if it is empty.
///
/// # Errors
///
/// Those of the connection; inside, the answer if it is no upgrade.
pub async fn websocket(url: &Url, protocols: &str) -> io::Result<Result<WebSocket, Refused>> {
    let mut socket = connect(url).await?;
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
    match request(&mut socket, "GET", url, &lines).await? {
        Ok(read_ahead) => {
            Ok(Ok(WebSocketStream::from_partially_read(socket, read_ahead.into(), Role::Client, None).await))
        }
        Err(refused) => Ok(Err(refused)),
    }
}
