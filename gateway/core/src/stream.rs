//! Streams between a client and a process: an exec process, a task's main process, or a port inside a
//! sandbox.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;

/// A source of bytes. Pipes are distinguished: their content can be spliced to a socket without copying.
pub enum Source {
    /// A pipe or FIFO.
    Pipe(pipe::Receiver),
    /// Anything else.
    Reader(Box<dyn AsyncRead + Send + Unpin>),
}

/// A destination for bytes. Shutting it down or dropping it ends the stream.
pub type Sink = Box<dyn AsyncWrite + Send + Unpin>;

/// The streams of a task that a client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttachSpec {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
}

/// One client's connection to the streams of a task's main process. Dropping it does not affect the task,
/// except as described at `stdin`.
pub struct Attachment {
    /// Standard input, if requested and the task has one. The end of this client's input ends the task's
    /// input only if the task was created with [`Stdin::Once`](crate::spec::Stdin::Once) and has no terminal.
    pub stdin: Option<Sink>,
    /// Standard output, or the terminal's output, from now on. Ends when the task exits.
    pub stdout: Option<Source>,
    /// Standard error from now on; none with a terminal.
    pub stderr: Option<Source>,
}

/// A connection to a port inside a sandbox; each direction ends independently.
pub struct Dialled {
    /// To the listening process.
    pub input: Sink,
    /// From the listening process.
    pub output: Source,
}

// === impl Source ===

impl Source {
    /// Wraps any reader.
    pub fn new(reader: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self::Reader(Box::new(reader))
    }
}

impl From<pipe::Receiver> for Source {
    fn from(pipe: pipe::Receiver) -> Self {
        Self::Pipe(pipe)
    }
}

impl AsyncRead for Source {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Pipe(pipe) => Pin::new(pipe).poll_read(cx, buffer),
            Self::Reader(reader) => Pin::new(reader).poll_read(cx, buffer),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pipe(_) => f.write_str("Pipe"),
            Self::Reader(_) => f.write_str("Reader"),
        }
    }
}

// === impl Attachment ===

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment")
            .field("stdin", &self.stdin.is_some())
            .finish_non_exhaustive()
    }
}

// === impl Dialled ===

impl fmt::Debug for Dialled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialled").finish_non_exhaustive()
    }
}
