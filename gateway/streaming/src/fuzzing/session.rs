//! A complete session: a client that sends arbitrary frames, the server after the upgrade, and a process that
//! echoes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use http::HeaderValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::carry::carry;
use crate::config::Config;
use crate::ends::{Connection, Input, Output};
use crate::io::{Activity, Io, Probe};
use crate::remote_command::Version;
use crate::request::Redeemed;
use crate::session::{Command, Control, Dial, Outcome, Process, Refusal, Size, Streams};
use crate::sessions::Kind;
use crate::spdy::frame;
use crate::spdy::header::Deflater;
use crate::upgrade::{Carrier, Forwarding, Upgrade};

/// The timeout after which a session must have ended whose client is gone; it takes milliseconds.
const LIMIT: Duration = Duration::from_secs(20);

/// The ports of a session that forwards them over channels.
const PORTS: [u16; 2] = [80, 443];

/// The headers of the streams that clients open.
const HEADERS: [&[(&str, &str)]; 12] = [
    &[("streamtype", "error")],
    &[("streamtype", "stdin")],
    &[("streamtype", "stdout")],
    &[("streamtype", "stderr")],
    &[("streamtype", "resize")],
    &[("streamtype", "error"), ("port", "80"), ("requestid", "0")],
    &[("streamtype", "data"), ("port", "80"), ("requestid", "0")],
    &[("streamtype", "error"), ("port", "80")],
    &[("streamtype", "data"), ("port", "80")],
    &[
        ("streamtype", "data"),
        ("port", "99999"),
        ("requestid", "1"),
    ],
    &[("streamtype", "none"), ("streamtype", "error")],
    &[],
];

/// Serves a session to a client that sends what `data` describes and disconnects: the first byte selects the
/// protocol, each further one a frame, valid or not, followed by the frame's parts. The session ends, and the
/// bytes that it sends are bounded by a multiple of those it has received.
///
/// # Panics
/// If a property does not hold.
pub fn session(data: &[u8]) {
    let Some((kind, script)) = data.split_first() else {
        return;
    };
    let (redeemed, tunnelled, messages) = redeemed(*kind);
    let sent = if messages {
        channels(script)
    } else {
        frames(script)
    };
    let sent = if tunnelled { message(&sent) } else { sent };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let received = runtime
        .expect("a runtime can be made")
        .block_on(run(redeemed, &sent));
    assert!(
        received <= sent.len() * 16 + 4096,
        "{received} bytes were sent for {}",
        sent.len()
    );
}

/// Runs the session to its end; returns how many bytes the client received.
async fn run(redeemed: Redeemed, sent: &[u8]) -> usize {
    let (ours, mut client) = UnixStream::pair().expect("sockets can be made");
    let probe = Probe::of(&ours).expect("a descriptor is left");
    let (reader, writer) = ours.into_split();
    let io = Io {
        reader: Box::new(reader),
        writer: Box::new(writer),
        read_ahead: BytesMut::new(),
        probe,
        activity: Arc::new(Activity::new()),
    };
    let config = Config::default();
    let served = timeout(
        LIMIT,
        carry(redeemed, io, &config, CancellationToken::new()),
    );
    let client = async {
        let (mut reader, mut writer) = client.split();
        let send = async {
            // The server may have closed the connection at an invalid frame.
            let _closed = writer.write_all(sent).await;
            let _closed = writer.shutdown().await;
        };
        let receive = async {
            let mut buffer = vec![0; 64 * 1024];
            let mut received = 0;
            while let Ok(read @ 1..) = reader.read(&mut buffer).await {
                received += read;
            }
            received
        };
        tokio::join!(send, receive).1
    };
    let (served, received) = tokio::join!(served, client);
    served.expect("the session ends when its client goes");
    received
}

/// A session; whether its bytes are in WebSocket messages, and whether these are messages of channels.
fn redeemed(kind: u8) -> (Redeemed, bool, bool) {
    let key = || Carrier::WebSocket {
        key: HeaderValue::from_static("x"),
    };
    let process = |carrier, version| Redeemed::Process {
        kind: Kind::Exec,
        upgrade: Upgrade {
            carrier,
            name: None,
            version: Version(version),
        },
        streams: Streams {
            stdin: true,
            stdout: true,
            stderr: kind & 0x80 == 0,
            tty: kind & 0x80 != 0,
        },
        command: Box::new(Echo),
    };
    let ports = |carrier, version| Redeemed::Ports {
        upgrade: Upgrade {
            carrier,
            name: None,
            version,
        },
        ports: PORTS.to_vec(),
        dial: Arc::new(Echo),
    };
    match kind % 6 {
        0 => (process(Carrier::Spdy, 4), false, false),
        1 => (process(Carrier::Spdy, 2), false, false),
        2 => (ports(Carrier::Spdy, Forwarding::Tunnel), false, false),
        3 => (ports(key(), Forwarding::Tunnel), true, false),
        4 => (ports(key(), Forwarding::Messages), false, true),
        _ => (process(key(), 5), false, true),
    }
}

// === the client's frames ===

/// Takes the parts of frames from a script; returns zeros at its end.
pub(super) struct Script<'d>(pub(super) &'d [u8]);

impl<'d> Script<'d> {
    pub(super) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    pub(super) fn number(&mut self) -> u32 {
        self.bytes(4)
            .iter()
            .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
    }

    fn bytes(&mut self, most: usize) -> &'d [u8] {
        let (bytes, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// The number of bytes that the next byte gives.
    pub(super) fn counted(&mut self) -> &'d [u8] {
        let most = usize::from(self.byte());
        self.bytes(most)
    }
}

/// The SPDY frames that a script describes.
fn frames(script: &[u8]) -> Vec<u8> {
    let mut script = Script(script);
    let mut sent = Vec::new();
    let mut deflater = Deflater::new();
    while !script.0.is_empty() {
        let kind = script.byte();
        let stream = u32::from(script.byte());
        match kind % 10 {
            0 => sent.extend_from_slice(script.counted()),
            1 | 2 => {
                let headers = HEADERS[usize::from(script.byte()) % HEADERS.len()];
                sent.extend_from_slice(&frame::open(stream, headers, kind >= 128, &mut deflater));
            }
            3 => {
                let value = String::from_utf8_lossy(script.counted()).into_owned();
                let headers = [
                    ("streamtype", "data"),
                    ("port", &*value),
                    ("requestid", &*value),
                ];
                sent.extend_from_slice(&frame::open(stream, &headers, false, &mut deflater));
            }
            4 | 5 => {
                let bytes = script.counted();
                sent.extend_from_slice(&frame::data(stream, bytes.len(), kind >= 128));
                sent.extend_from_slice(bytes);
            }
            6 => sent.extend_from_slice(&frame::reset(stream, frame::Status::Cancel)),
            7 => sent.extend_from_slice(&frame::window(stream, script.number())),
            8 => sent.extend_from_slice(&frame::initial_window(script.number())),
            _ => sent.extend_from_slice(&frame::ping(stream)),
        }
    }
    sent
}

/// The channel messages that a script describes.
fn channels(script: &[u8]) -> Vec<u8> {
    let mut script = Script(script);
    let mut sent = Vec::new();
    while !script.0.is_empty() {
        match script.byte() % 4 {
            0 => sent.extend_from_slice(script.counted()),
            _ => sent.extend_from_slice(&message(script.counted())),
        }
    }
    sent
}

/// A binary message with a zero mask.
fn message(bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![0x82, 0xff];
    message.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(bytes);
    message
}

// === the server's side ===

/// A process and a port that echo their input.
struct Echo;

/// The end of a process: it exits when the client has disconnected.
#[derive(Default)]
struct End(Notify);

#[async_trait]
impl Command for Echo {
    async fn open(self: Box<Self>) -> Result<Process, Refusal> {
        let (input, output) = duplex(4096);
        Ok(Process {
            stdin: Some(Input::new(input)),
            stdout: Some(Output::new(output)),
            stderr: None,
            control: Arc::new(End::default()),
        })
    }
}

#[async_trait]
impl Control for End {
    async fn resize(&self, size: Size) -> Result<(), Refusal> {
        if size.width.get() == 1 {
            Err(Refusal::Failed("too narrow".to_owned()))
        } else {
            Ok(())
        }
    }

    async fn wait(&self) -> Outcome {
        self.0.notified().await;
        Outcome::Exited(0)
    }

    async fn hang_up(&self) {
        self.0.notify_one();
    }
}

#[async_trait]
impl Dial for Echo {
    async fn dial(&self, port: u16) -> Result<Connection, Refusal> {
        if port == 0 {
            return Err(Refusal::Failed("nobody listens".to_owned()));
        }
        let (input, output) = duplex(4096);
        Ok(Connection {
            input: Input::new(input),
            output: Output::new(output),
        })
    }
}
