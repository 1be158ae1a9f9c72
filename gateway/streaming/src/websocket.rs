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

/// The most bytes that may wait to be written: a message, and the library's answers to pings, which it queues
/// without limit while the client does not read.
const MAX_UNWRITTEN: usize = 1024 * 1024;

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
        .max_write_buffer_size(MAX_UNWRITTEN)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    WebSocketStream::from_partially_read(
        join(reader, writer),
        read_ahead,
        Role::Server,
        Some(config),
    )
    .await
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use futures::{SinkExt, StreamExt};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};

    use super::{MAX_UNWRITTEN, socket};

    #[tokio::test]
    async fn answers_to_pings_that_the_client_does_not_read_are_bounded() {
        const CONTENT: u8 = 125;
        let (ours, mut client) = duplex(4096);
        let (reader, writer) = split(ours);
        let mut socket = socket(Box::new(reader), Box::new(writer), Vec::new()).await;
        let mut ping = BytesMut::new();
        ping.put_slice(&[0x89, 0x80 | CONTENT, 0, 0, 0, 0]);
        ping.put_bytes(7, CONTENT.into());
        let flood = async {
            for _ in 0..3 * MAX_UNWRITTEN / usize::from(CONTENT) {
                client.write_all(&ping).await.expect("the server reads on");
            }
        };
        let take = async { while socket.next().await.is_some_and(|message| message.is_ok()) {} };
        tokio::select! {
            () = take => panic!("the server has ended the connection"),
            () = flood => {}
        }
        let answer = async move { socket.flush().await.expect("the client reads") };
        let mut answers = Vec::new();
        let (read, ()) = tokio::join!(client.read_to_end(&mut answers), answer);
        read.expect("the server is there until it has answered");
        assert!(
            answers.len() <= MAX_UNWRITTEN + 2 * 4096,
            "{} bytes",
            answers.len()
        );
    }
}
