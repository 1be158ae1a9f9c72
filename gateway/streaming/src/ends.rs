//! The endpoints that a session copies between: the streams of a process, or a dialled connection.

use std::fmt;

use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream};

/// Writes to a process, or to a dialled peer. Shutting it down is the end of file.
///
/// A pipe or a socket should be converted with `From` rather than boxed, which is slower.
pub struct Input(pub(crate) Box<dyn AsyncWrite + Send + Unpin>);

/// Reads from a process, or from a dialled peer. Its end of file ends the stream to the client.
///
/// A pipe or a socket should be converted with `From` rather than boxed, which is slower.
pub struct Output(pub(crate) Source);

/// The reader in an [`Output`]; pipes are distinguished because their bytes can be moved to a socket without
/// a copy.
pub(crate) enum Source {
    Pipe(pipe::Receiver),
    Reader(Box<dyn AsyncRead + Send + Unpin>),
}

/// A dialled connection with two directions, each of which is ended separately.
#[derive(Debug)]
pub struct Connection {
    /// Writes to the peer.
    pub input: Input,
    /// Reads from the peer.
    pub output: Output,
}

// === impl Input ===

impl Input {
    /// Wraps any writer. Its `poll_shutdown` must be the end of file for the other side.
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
    /// Wraps any reader.
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
    /// Wraps any stream that can be read and written. Its `poll_shutdown` must end one direction only.
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = split(stream);
        Self {
            input: Input::new(writer),
            output: Output::new(reader),
        }
    }
}

impl From<TcpStream> for Connection {
    fn from(stream: TcpStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self {
            input: Input::new(writer),
            output: Output::new(reader),
        }
    }
}

impl From<UnixStream> for Connection {
    fn from(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self {
            input: Input::new(writer),
            output: Output::new(reader),
        }
    }
}
