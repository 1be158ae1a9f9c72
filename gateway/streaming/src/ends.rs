//! The ends that a session copies between: what a process reads and writes, and a dialled connection.

use std::fmt;

use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream};

/// Where a process, or a dialled peer, takes bytes from us. Shutting it down is its end of file.
///
/// A pipe or a socket is better given as what it is (`From`) than as a boxed writer.
pub struct Input(pub(crate) Box<dyn AsyncWrite + Send + Unpin>);

/// Where a process, or a dialled peer, leaves bytes for us. Its end of file ends the stream to the client.
///
/// A pipe or a socket is better given as what it is (`From`) than as a boxed reader.
pub struct Output(pub(crate) Source);

/// What is behind an [`Output`]; pipes are told apart because their bytes can go to a socket without a copy.
pub(crate) enum Source {
    Pipe(pipe::Receiver),
    Reader(Box<dyn AsyncRead + Send + Unpin>),
}

/// A dialled connection: both directions, each ended on its own.
#[derive(Debug)]
pub struct Connection {
    /// What goes to the peer.
    pub input: Input,
    /// What comes from the peer.
    pub output: Output,
}

// === impl Input ===

impl Input {
    /// Takes any writer. Its `poll_shutdown` must be the end of file of the other side.
    pub fn new(writer: impl AsyncWrite + Send + Unpin + 'static) -> Self {
        Self(Box::new(writer))
    }
}

impl From<pipe::Sender> for Input {
    fn from(sender: pipe::Sender) -> Self {
        Self::new(sender)
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Input")
    }
}

// === impl Output ===

impl Output {
    /// Takes any reader.
    pub fn new(reader: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self(Source::Reader(Box::new(reader)))
    }
}

impl From<pipe::Receiver> for Output {
    fn from(receiver: pipe::Receiver) -> Self {
        Self(Source::Pipe(receiver))
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Output")
    }
}

// === impl Connection ===

impl Connection {
    /// Takes any stream that can be read and written. Its `poll_shutdown` must end one direction only.
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = split(stream);
        Self { input: Input::new(writer), output: Output::new(reader) }
    }
}

impl From<TcpStream> for Connection {
    fn from(stream: TcpStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self { input: Input::new(writer), output: Output::new(reader) }
    }
}

impl From<UnixStream> for Connection {
    fn from(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self { input: Input::new(writer), output: Output::new(reader) }
    }
}
