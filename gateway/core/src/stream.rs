//! Streams between a client and what runs: of a further process, of a task's own process, of a port inside a sandbox.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;

/// Where bytes come from. A pipe is told apart: they can go on to a socket without being copied.
pub enum Source {
    /// A pipe or FIFO.
    Pipe(pipe::Receiver),
    /// Anything else.
    Reader(Box<dyn AsyncRead + Send + Unpin>),
}

/// Where bytes go. Shutting it down, or dropping it, is their end.
pub type Sink = Box<dyn AsyncWrite + Send + Unpin>;

/// Which streams of a task a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttachSpec {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
}

/// One client's part in the streams of a task's main process. Dropping it leaves the task as it is, but for what is said of `stdin`.
pub struct Attachment {
    /// Standard input, if it was asked for and the task has one. The end of what this client says is the end of the task's input only
    /// if it was made with [`Stdin::Once`](crate::spec::Stdin::Once) and has no terminal.
    pub stdin: Option<Sink>,
    /// What the task writes from now on, or its terminal shows. It ends with the task.
    pub stdout: Option<Source>,
    /// The same for standard error; none with a terminal.
    pub stderr: Option<Source>,
}

/// A connection to a port inside a sandbox; each direction ends by itself.
pub struct Dialled {
    /// To the one who listens.
    pub input: Sink,
    /// From the one who listens.
    pub output: Source,
}

// === impl Source ===

impl Source {
    /// Takes any reader.
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
        f.debug_struct("Attachment").field("stdin", &self.stdin.is_some()).finish_non_exhaustive()
    }
}

// === impl Dialled ===

impl fmt::Debug for Dialled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialled").finish_non_exhaustive()
    }
}
