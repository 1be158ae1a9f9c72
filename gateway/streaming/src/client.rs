//! Clients for tests and benchmarks, which behave like kubelet, crictl and kubectl: they open a URL once and
//! speak its protocol.

mod exec;
mod spdy;
mod websocket;

use std::{fmt, io};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use url::Url;

pub use exec::{Ended, exec};
pub use spdy::{ClientEvent, Receiver, Sender, Spdy};
pub use websocket::{WebSocket, tunnel, websocket, websocket_over};

/// The answer to a request that was not upgraded.
#[derive(Debug)]
pub struct UpgradeRefused {
    /// The status code of the answer.
    pub status: u16,
    /// The lines of the answer's head.
    pub head: String,
}

/// A connection after its upgrade.
pub trait UpgradedStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> UpgradedStream for T {}

impl fmt::Debug for dyn UpgradedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

/// Connects to the host of a URL.
///
/// # Errors
///
/// Those of the connection.
pub async fn connect(url: &Url) -> io::Result<TcpStream> {
    let addresses = url.socket_addrs(|| None)?;
    let socket = TcpStream::connect(&addresses[..]).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Sends a request for `url` with these header lines, and reads the head of the answer. If it was upgraded,
/// returns the bytes that came after the head.
///
/// # Errors
///
/// Those of the connection, and a malformed answer.
pub async fn request(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    method: &str,
    url: &Url,
    lines: &[(&str, &str)],
) -> io::Result<Result<BytesMut, UpgradeRefused>> {
    let mut head = format!(
        "{method} {} HTTP/1.1\r\nHost: {}\r\n",
        url.path(),
        url.authority()
    );
    for (name, value) in lines {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    socket.write_all(head.as_bytes()).await?;
    let mut buffer = BytesMut::new();
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if socket.read_buf(&mut buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let head = String::from_utf8_lossy(&buffer.split_to(end)).into_owned();
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, head.clone()))?;
    let connection = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("connection")
            .then(|| value.trim())
    });
    // Go's clients do not accept an upgrade with further words in this header, such as `close`.
    let upgraded =
        status == 101 && connection.is_some_and(|value| value.eq_ignore_ascii_case("upgrade"));
    Ok(if upgraded {
        Ok(buffer)
    } else {
        Err(UpgradeRefused { status, head })
    })
}
