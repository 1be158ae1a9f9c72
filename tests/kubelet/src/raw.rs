//! One gRPC call over hand-written HTTP/2: no client library sends a path as `:authority`.

use std::io;
use std::path::Path;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The most bytes of a frame that are read.
const FRAME_MAX: usize = 1 << 20;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Calls a method, such as `/v1beta1.DevicePlugin/Allocate`, as the plugin watcher does.
pub(crate) async fn unary<T: Message + Default>(
    socket: &Path,
    method: &str,
    request: &impl Message,
) -> io::Result<T> {
    let mut stream = UnixStream::connect(socket).await?;
    let authority = percent_encoded(&socket.to_string_lossy());
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", &authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A literal header field without indexing, with a literal name (RFC 7541).
        headers.push(0);
        literal(&mut headers, name);
        literal(&mut headers, value);
    }
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).map_err(io::Error::other)?;
    let data = [&[0][..], &length.to_be_bytes(), &message].concat();
    let mut sent = PREFACE.to_vec();
    frame(&mut sent, SETTINGS, 0, 0, &[]);
    frame(&mut sent, HEADERS, END_HEADERS, 1, &headers);
    frame(&mut sent, DATA, END_STREAM, 1, &data);
    stream.write_all(&sent).await?;
    let answer = body(&mut stream).await?;
    let message = answer
        .get(5..)
        .ok_or_else(|| io::Error::other(format!("{method} was refused")))?;
    T::decode(message).map_err(io::Error::other)
}

/// The content of all DATA frames until the end of the stream.
async fn body(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, ..] = head;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).map_err(io::Error::other)?;
        if length > FRAME_MAX {
            return Err(io::Error::other("a frame is too long"));
        }
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await?;
        match kind {
            DATA => body.extend(payload),
            RST_STREAM | GOAWAY => {
                return Err(io::Error::other(format!("the call was reset: {payload:?}")));
            }
            SETTINGS if flags & ACK == 0 => {
                let mut sent = Vec::new();
                frame(&mut sent, SETTINGS, ACK, 0, &[]);
                stream.write_all(&sent).await?;
            }
            _ => {}
        }
        if (kind == DATA || kind == HEADERS) && flags & END_STREAM != 0 {
            return Ok(body);
        }
    }
}

fn frame(sent: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [.., a, b, c] = payload.len().to_be_bytes();
    sent.extend_from_slice(&[a, b, c, kind, flags]);
    sent.extend_from_slice(&stream.to_be_bytes());
    sent.extend_from_slice(payload);
}

/// An HPACK string without Huffman coding.
fn literal(block: &mut Vec<u8>, text: &str) {
    let mut left = text.len();
    if left < 127 {
        block.extend(u8::try_from(left));
    } else {
        block.push(127);
        left -= 127;
        while left >= 128 {
            block.extend(u8::try_from(left % 128 + 128));
            left /= 128;
        }
        block.extend(u8::try_from(left));
    }
    block.extend_from_slice(text.as_bytes());
}

fn percent_encoded(path: &str) -> String {
    path.replace('/', "%2F")
}
