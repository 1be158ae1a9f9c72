//! Blocking clients of exec, attach and port-forward: what kubectl does with the URLs that CRI returns.

mod transport;
mod wire;

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use serde_json::Value;
use switchyard_proto::cri::v1 as cri;
use switchyard_streaming::Streams;
use switchyard_streaming::client::{ClientEvent, Spdy, tunnel};
use tonic::Status;
use url::Url;

pub use self::transport::{StreamProtocol, Transport, certificate};
use self::wire::SessionStreams;
use crate::cri::Cri;

/// The timeout of every wait.
const LIMIT: Duration = Duration::from_secs(60);
/// The largest chunk that is sent at a time.
const MAX_CHUNK: usize = 32 * 1024;

/// All streams, without a terminal.
pub const PIPES: Streams = Streams {
    stdin: true,
    stdout: true,
    stderr: true,
    tty: false,
};
/// Standard output and standard error alone.
pub const OUTPUTS: Streams = Streams {
    stdin: false,
    ..PIPES
};
/// A terminal with input.
pub const TERMINAL: Streams = Streams {
    stdin: true,
    stdout: true,
    stderr: false,
    tty: true,
};

/// A client of one exec or attach. Dropping it closes the connection.
#[derive(Debug)]
pub struct StreamSession {
    cri: Cri,
    wire: SessionStreams,
    /// The output so far.
    pub received: ReceivedOutput,
}

/// Everything that a client has received.
#[derive(Debug, Default)]
pub struct ReceivedOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// The text of the error stream.
    pub status: String,
    /// True if the server has closed the connection.
    pub closed: bool,
}

/// A client of one port-forward. Dropping it closes the connection and all forwarded connections.
#[derive(Debug)]
pub struct ForwardSession {
    cri: Cri,
    spdy: Spdy,
    connections: u32,
    received: HashMap<u32, StreamData>,
}

/// The data of one stream.
#[derive(Debug, Default, Clone)]
pub struct StreamData {
    /// The bytes so far.
    pub bytes: Vec<u8>,
    /// True if the stream has ended.
    pub ended: bool,
}

/// One forwarded connection.
#[derive(Debug, Clone, Copy)]
pub struct ForwardedConnection {
    error: u32,
    data: u32,
}

// === impl StreamSession ===

impl StreamSession {
    /// Runs a command in a container, over SPDY. The client has opened its streams when this returns.
    ///
    /// # Panics
    /// When the call is refused or the session cannot be opened.
    #[track_caller]
    #[must_use]
    pub fn exec(cri: &Cri, container: &str, words: &[&str], streams: Streams) -> Self {
        Self::exec_over(&Transport::default(), cri, container, words, streams)
    }

    /// As [`StreamSession::exec`], over another transport.
    ///
    /// # Panics
    /// As [`StreamSession::exec`].
    #[track_caller]
    #[must_use]
    pub fn exec_over(
        way: &Transport,
        cri: &Cri,
        container: &str,
        words: &[&str],
        streams: Streams,
    ) -> Self {
        let url = cri.exec_url(exec_request(container, words, streams));
        Self::open(
            way,
            cri,
            &url.unwrap_or_else(|status| panic!("Exec: {status}")),
            streams,
        )
    }

    /// Attaches to a container, over SPDY.
    ///
    /// # Panics
    /// As [`StreamSession::exec`].
    #[track_caller]
    #[must_use]
    pub fn attach(cri: &Cri, container: &str, streams: Streams) -> Self {
        Self::attach_over(&Transport::default(), cri, container, streams)
    }

    /// The same over another transport.
    ///
    /// # Panics
    /// As [`StreamSession::exec`].
    #[track_caller]
    #[must_use]
    pub fn attach_over(way: &Transport, cri: &Cri, container: &str, streams: Streams) -> Self {
        let url = cri.attach_url(attach_request(container, streams));
        Self::open(
            way,
            cri,
            &url.unwrap_or_else(|status| panic!("Attach: {status}")),
            streams,
        )
    }

    fn open(way: &Transport, cri: &Cri, url: &str, streams: Streams) -> Self {
        let url = Url::parse(url).expect("the server gives URLs");
        let opened = cri.block_on(SessionStreams::open(way, &url, streams));
        let wire = opened.unwrap_or_else(|error| panic!("{url} cannot be opened: {error}"));
        Self {
            cri: cri.clone(),
            wire,
            received: ReceivedOutput::default(),
        }
    }

    /// Sends standard input.
    ///
    /// # Panics
    /// When the connection breaks or the session has no input stream.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let sent = self.cri.clone().block_on(async {
            for piece in bytes.as_ref().chunks(MAX_CHUNK) {
                self.wire.send("stdin", piece).await?;
            }
            io::Result::Ok(())
        });
        sent.expect("the connection stands");
    }

    /// Ends standard input and keeps the session.
    ///
    /// # Panics
    /// As [`StreamSession::send`].
    #[track_caller]
    pub fn end_input(&mut self) {
        self.cri
            .clone()
            .block_on(self.wire.end_input())
            .expect("the connection stands");
    }

    /// Sends the size of the terminal.
    ///
    /// # Panics
    /// When the connection breaks or there is no terminal.
    #[track_caller]
    pub fn resize(&mut self, width: u16, height: u16) {
        let size = format!("{{\"Width\":{width},\"Height\":{height}}}");
        self.cri
            .clone()
            .block_on(self.wire.send("resize", size.as_bytes()))
            .expect("the connection stands");
    }

    /// Waits until standard output contains this text.
    ///
    /// # Panics
    /// When it does not within a minute, or the session ends before.
    #[track_caller]
    pub fn wait_stdout(&mut self, text: &str) {
        let held = self.receive_until(|received| {
            received
                .stdout
                .windows(text.len())
                .any(|window| window == text.as_bytes())
        });
        assert!(held, "{text:?} is not said: {:?}", self.received);
    }

    /// Waits for the end of the session; whether it ended within a minute.
    pub fn wait_end(&mut self) -> bool {
        self.receive_until(|received| received.closed)
    }

    /// Waits for the end of the session; the exit code of its command.
    ///
    /// # Panics
    /// When the session does not end within a minute, or does not report how the command ended.
    #[track_caller]
    pub fn wait_exit_code(&mut self) -> i32 {
        assert!(
            self.wait_end(),
            "the session does not end: {:?}",
            self.received
        );
        exit_code(&self.received.status)
            .unwrap_or_else(|| panic!("no exit code: {:?}", self.received))
    }

    /// Receives until a condition holds; false if the session ended before, or after a minute.
    fn receive_until(&mut self, holds: impl Fn(&ReceivedOutput) -> bool) -> bool {
        let limited = async {
            while !holds(&self.received) {
                if self.received.closed {
                    return false;
                }
                match self.wire.next().await {
                    Some(("stdout", bytes)) => self.received.stdout.extend_from_slice(&bytes),
                    Some(("stderr", bytes)) => self.received.stderr.extend_from_slice(&bytes),
                    Some((_, bytes)) => self
                        .received
                        .status
                        .push_str(&String::from_utf8_lossy(&bytes)),
                    None => self.received.closed = true,
                }
            }
            true
        };
        self.cri
            .clone()
            .block_on(async { tokio::time::timeout(LIMIT, limited).await.unwrap_or(false) })
    }
}

/// The request of an exec.
#[must_use]
pub fn exec_request(container: &str, words: &[&str], streams: Streams) -> cri::ExecRequest {
    let Streams {
        stdin,
        stdout,
        stderr,
        tty,
    } = streams;
    let cmd = words.iter().map(|word| (*word).to_owned()).collect();
    cri::ExecRequest {
        container_id: container.to_owned(),
        cmd,
        tty,
        stdin,
        stdout,
        stderr,
    }
}

/// The request of an attach.
#[must_use]
pub fn attach_request(container: &str, streams: Streams) -> cri::AttachRequest {
    let Streams {
        stdin,
        stdout,
        stderr,
        tty,
    } = streams;
    cri::AttachRequest {
        container_id: container.to_owned(),
        stdin,
        tty,
        stdout,
        stderr,
    }
}

/// The exit code in the error stream's status.
fn exit_code(status: &str) -> Option<i32> {
    let status: Value = serde_json::from_str(status).ok()?;
    if status["status"] == "Success" {
        return Some(0);
    }
    let causes = status["details"]["causes"].as_array()?;
    let cause = causes.iter().find(|cause| cause["reason"] == "ExitCode")?;
    cause["message"].as_str()?.parse().ok()
}

// === impl ForwardSession ===

impl ForwardSession {
    /// Opens a port-forward session to a pod, over SPDY.
    ///
    /// # Panics
    /// When the call is refused or the session cannot be opened.
    #[track_caller]
    #[must_use]
    pub fn open(cri: &Cri, pod: &str) -> Self {
        Self::open_over(&Transport::default(), cri, pod)
    }

    /// As [`ForwardSession::open`], over another transport. WebSocket then carries SPDY.
    ///
    /// # Panics
    /// As [`ForwardSession::open`].
    #[track_caller]
    #[must_use]
    pub fn open_over(way: &Transport, cri: &Cri, pod: &str) -> Self {
        let url = cri
            .port_forward_url(pod, &[])
            .unwrap_or_else(|status| panic!("PortForward: {status}"));
        let url = Url::parse(&url).expect("the server gives URLs");
        let opened = cri.block_on(async {
            Ok(match way.protocol {
                StreamProtocol::Spdy => way.spdy(&url, "portforward.k8s.io").await?,
                StreamProtocol::WebSocket => {
                    let socket = way.websocket(&url, "SPDY/3.1+portforward.k8s.io").await?;
                    Spdy::begin(tunnel(socket), BytesMut::new())
                }
            })
        });
        let spdy =
            opened.unwrap_or_else(|error: io::Error| panic!("{url} cannot be opened: {error}"));
        Self {
            cri: cri.clone(),
            spdy,
            connections: 0,
            received: HashMap::new(),
        }
    }

    /// Opens another connection.
    ///
    /// # Panics
    /// When the session breaks.
    #[track_caller]
    pub fn connect(&mut self, port: u16) -> ForwardedConnection {
        let port = port.to_string();
        let request = self.connections.to_string();
        self.connections += 1;
        let opened = self.cri.clone().block_on(async {
            let mut streams = [0; 2];
            for (stream, kind) in streams.iter_mut().zip(["error", "data"]) {
                let headers = [
                    ("streamtype", kind),
                    ("port", &port),
                    ("requestid", &request),
                ];
                *stream = self.spdy.sender.open(&headers).await?;
            }
            io::Result::Ok(streams)
        });
        let [error, data] = opened.expect("the session stands");
        ForwardedConnection { error, data }
    }

    /// Sends bytes over a connection and, if `end` is set, ends its input.
    ///
    /// # Panics
    /// When the session breaks.
    #[track_caller]
    pub fn send(&mut self, connection: ForwardedConnection, bytes: impl AsRef<[u8]>, end: bool) {
        let sent = self.cri.clone().block_on(async {
            for piece in bytes.as_ref().chunks(MAX_CHUNK) {
                self.spdy.sender.data(connection.data, piece, false).await?;
            }
            if end {
                self.spdy.sender.data(connection.data, &[], true).await
            } else {
                Ok(())
            }
        });
        sent.expect("the session stands");
    }

    /// Waits until the data of a connection fulfils `holds`; that data, and the text of the error stream.
    ///
    /// # Panics
    /// When it does not within a minute, or the session ends before.
    #[track_caller]
    pub fn receive_until(
        &mut self,
        connection: ForwardedConnection,
        holds: impl Fn(&StreamData, &StreamData) -> bool,
    ) -> (StreamData, StreamData) {
        let limited = async {
            loop {
                let of = |stream: u32| self.received.get(&stream).cloned().unwrap_or_default();
                let data = of(connection.data);
                let error = of(connection.error);
                if holds(&data, &error) {
                    return (data, error);
                }
                match self.spdy.receiver.event().await {
                    Ok(Some(ClientEvent::Data { stream, bytes, end })) => {
                        let reply = self.received.entry(stream).or_default();
                        reply.bytes.extend_from_slice(&bytes);
                        reply.ended |= end;
                    }
                    Ok(Some(ClientEvent::Reset { stream, .. })) => {
                        self.received.entry(stream).or_default().ended = true
                    }
                    Ok(Some(_)) => {}
                    ended @ (Ok(None) | Err(_)) => {
                        panic!("the session has ended: {ended:?}, {data:?}, {error:?}")
                    }
                }
            }
        };
        let received = self
            .cri
            .clone()
            .block_on(async { tokio::time::timeout(LIMIT, limited).await });
        received.unwrap_or_else(|_| panic!("not heard within {LIMIT:?}"))
    }
}

/// The status of a call that must be refused.
///
/// # Panics
/// When the call succeeds.
#[track_caller]
pub fn refused(answer: Result<String, Status>) -> Status {
    match answer {
        Ok(url) => panic!("it is not refused: {url}"),
        Err(status) => status,
    }
}
