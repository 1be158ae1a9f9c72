//! Sessions over WebSocket: channels in messages, and the tunnel that carries SPDY.

mod channels;
mod session;
mod tunnel;

use tokio::io::{AsyncRead, AsyncWrite, Join, join};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

pub(crate) use session::{port_forward, remote_command};
#[cfg(feature = "client")]
pub(crate) use tunnel::bytes;
pub(crate) use tunnel::tunnel;

/// The largest message, in bytes. Real clients send 32 KiB.
pub(crate) const MAX_MESSAGE: usize = 1024 * 1024;

pub(crate) type Socket =
    WebSocketStream<Join<Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>>>;

/// The WebSocket on a connection that was upgraded to it.
pub(crate) async fn socket(
    reader: Box<dyn AsyncRead + Send + Unpin>,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    read_ahead: Vec<u8>,
) -> Socket {
    let config = WebSocketConfig::default()
        .read_buffer_size(64 * 1024)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    WebSocketStream::from_partially_read(join(reader, writer), read_ahead, Role::Server, Some(config)).await
}
