//! WebSocket messages from arbitrary frames.

use std::time::Duration;

use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::session::Script;
use crate::websocket::{MAX_MESSAGE, socket};

/// The timeout for reading the frames that the client has sent; it takes milliseconds.
const LIMIT: Duration = Duration::from_secs(20);

/// The bytes that a client sends.
#[derive(Default)]
struct Sent {
    bytes: Vec<u8>,
    /// The messages of the leading frames that are each one whole message.
    whole: Vec<Vec<u8>>,
    is_whole: bool,
}

/// Reads the frames that `data` describes, valid or not; the first byte is the number of bytes that arrived
/// together with the upgrade. Whole messages are received as they were sent, no more bytes are received than
/// were sent, no message exceeds the limit, and the answers are bounded by the input.
///
/// # Panics
/// If a property does not hold.
pub fn websocket(data: &[u8]) {
    let Some((ahead, script)) = data.split_first() else {
        return;
    };
    let sent = frames(script);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be made");
    let (messages, answered) = runtime.block_on(run(&sent.bytes, usize::from(*ahead)));
    let received: usize = messages.iter().map(Vec::len).sum();
    assert!(
        received <= sent.bytes.len(),
        "{received} bytes came out of {}",
        sent.bytes.len()
    );
    assert!(messages.iter().all(|message| message.len() <= MAX_MESSAGE));
    assert!(
        messages.starts_with(&sent.whole),
        "a message is not as it was sent"
    );
    assert!(
        answered <= sent.bytes.len() + 256,
        "{answered} bytes were sent for {}",
        sent.bytes.len()
    );
}

/// Reads until the end; returns the messages, and how many bytes the client received.
async fn run(sent: &[u8], ahead: usize) -> (Vec<Vec<u8>>, usize) {
    let (ours, mut client) = duplex(4096);
    let (ahead, rest) = sent.split_at(ahead.min(sent.len()));
    let (reader, writer) = split(ours);
    let server = async {
        let mut socket = socket(Box::new(reader), Box::new(writer), ahead.to_vec()).await;
        let mut messages = Vec::new();
        while let Some(Ok(message)) = socket.next().await {
            match message {
                Message::Binary(bytes) => messages.push(bytes.to_vec()),
                Message::Text(text) => messages.push(text.as_bytes().to_vec()),
                Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => {}
            }
        }
        messages
    };
    let client = async {
        let (mut reader, mut writer) = split(&mut client);
        let send = async {
            // The server may have closed the connection at an invalid frame.
            let _closed = writer.write_all(rest).await;
            let _closed = writer.shutdown().await;
        };
        let receive = async {
            let mut buffer = vec![0; 4096];
            let mut received = 0;
            while let Ok(read @ 1..) = reader.read(&mut buffer).await {
                received += read;
            }
            received
        };
        tokio::join!(send, receive).1
    };
    let both = async { tokio::join!(server, client) };
    timeout(LIMIT, both)
        .await
        .expect("the connection ends when its client has sent all")
}

/// The frames that a script describes: each has its first byte, a byte that describes the errors in the rest,
/// and its content.
fn frames(script: &[u8]) -> Sent {
    let mut script = Script(script);
    let mut sent = Sent {
        is_whole: true,
        ..Sent::default()
    };
    while !script.0.is_empty() {
        let first = script.byte();
        let form = script.byte();
        match form % 8 {
            0 => {
                sent.is_whole = false;
                sent.bytes.extend_from_slice(script.counted());
            }
            1 => {
                let length = u64::from(script.number()) << (form & 0x20);
                sent.frame(first, form, length, script.counted());
            }
            _ => {
                let content = script.counted();
                sent.frame(first, form, content.len() as u64, content);
            }
        }
    }
    sent
}

// === impl Sent ===

impl Sent {
    /// Adds a frame with this length field. In `form`, 0x80 omits the mask, and 0x40 uses the longest
    /// encoding of the length.
    fn frame(&mut self, first: u8, form: u8, length: u64, content: &[u8]) {
        let is_masked = form & 0x80 == 0;
        let is_long = form & 0x40 != 0;
        let is_honest = length == content.len() as u64;
        self.is_whole &= first == 0x82 && is_masked && !is_long && is_honest;
        if self.is_whole {
            self.whole.push(content.to_vec());
        }
        let mask = if is_masked { 0x80 } else { 0 };
        self.bytes.push(first);
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(short @ ..=125), _) if !is_long => self.bytes.push(mask | short),
            (_, Ok(medium)) if !is_long => {
                self.bytes.push(mask | 126);
                self.bytes.extend_from_slice(&medium.to_be_bytes());
            }
            (Ok(_) | Err(_), _) => {
                self.bytes.push(mask | 127);
                self.bytes.extend_from_slice(&length.to_be_bytes());
            }
        }
        let key = [form, 0x5a, first, 0xc3];
        if is_masked {
            self.bytes.extend_from_slice(&key);
        }
        let masked = content
            .iter()
            .zip(key.iter().cycle())
            .map(|(byte, key)| byte ^ key);
        if is_masked {
            self.bytes.extend(masked)
        } else {
            self.bytes.extend_from_slice(content)
        }
    }
}
