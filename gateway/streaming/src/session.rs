//! The session that a frontend registers to get a URL, and the traits through which it reaches the container.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::ends::{Connection, Input, Output};

/// Time for a process to handle a hang-up of its client.
pub(crate) const HANG_UP: Duration = Duration::from_secs(10);

/// The streams of an exec or attach. At least one is set; with a terminal there is no stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// The client sends standard input.
    pub stdin: bool,
    /// The client wants standard output.
    pub stdout: bool,
    /// The client wants standard error.
    pub stderr: bool,
    /// The process has a terminal, whose size the client may change.
    pub tty: bool,
}

/// The process of an exec or attach whose client has not connected yet.
#[async_trait]
pub trait Command: Send {
    /// Starts the process (exec) or attaches to the running one (attach). Called at most once, when the
    /// client has opened all its streams. It is not cancelled if the client disconnects meanwhile: it
    /// completes, and [`Control::hang_up`] follows.
    ///
    /// # Errors
    ///
    /// Why there is no process; it is sent to the client in the error stream.
    async fn open(self: Box<Self>) -> Result<Process, Refusal>;
}

/// A process with its streams. Streams that the session does not have are `None`.
pub struct Process {
    /// Receives the client's standard input; it is shut down when the client ends its input.
    pub stdin: Option<Input>,
    /// The process's standard output.
    pub stdout: Option<Output>,
    /// The process's standard error.
    pub stderr: Option<Output>,
    /// The other operations on the process.
    pub control: Arc<dyn Control>,
}

/// The operations of a client on a process other than its streams.
#[async_trait]
pub trait Control: Send + Sync {
    /// Sets the size of the terminal. Called in the client's order; if sizes arrive faster than they are set,
    /// all but the last are skipped.
    ///
    /// # Errors
    ///
    /// Why it was not set. It is logged, and the session continues.
    async fn resize(&self, size: Size) -> Result<(), Refusal>;

    /// Waits for the exit of the process. Called once, at the beginning; the session ends when this has
    /// returned and all outputs have ended. Cancel-safe: it is dropped if the client disconnects.
    async fn wait(&self) -> Outcome;

    /// Closes outputs that are still open although the process has exited. Called at most once, after [`Control::wait`] has
    /// returned an exit; when this returns, only what can be read at once is read of them. Cancel-safe: it is dropped when
    /// the outputs have ended. By default they are read until they end by themselves.
    async fn cut_outputs(&self) {
        std::future::pending().await
    }

    /// The client has disconnected, or was idle for too long, before the process exited. Called at most once,
    /// and never after the exit status was sent to the client. An exec kills its process here; an attach does
    /// nothing.
    async fn hang_up(&self);
}

/// The size of a terminal in characters, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Columns.
    pub width: NonZeroU16,
    /// Rows.
    pub height: NonZeroU16,
}

/// End of a session's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this code. For an attach whose container exited, the code is not reported: `Exited(0)`.
    Exited(i32),
    /// Its exit status is unknown, or it never ran.
    Failed(Refusal),
}

/// Connects to the ports of a sandbox.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Connects to `port` at the loopback address inside the sandbox. Called once per forwarded connection,
    /// concurrently for several. Cancel-safe: it is dropped if the client disconnects.
    ///
    /// # Errors
    ///
    /// Why there is no connection; it is sent to the client in the error stream, and other connections
    /// continue.
    async fn dial(&self, port: u16) -> Result<Connection, Refusal>;
}

/// Reason why a session was not opened, or has failed: one line for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A limit of the node is reached, as that of a full disk.
    #[error("ResourceExhausted: {0}")]
    Exhausted(String),
    /// Any other reason.
    #[error("{0}")]
    Failed(String),
}

/// No URL was issued because too many are not opened yet. Retry after some are opened or have expired.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "{limit} streaming sessions wait for their clients already; open them, or wait until they expire"
)]
pub struct TooMany {
    /// The limit.
    pub limit: usize,
}

// === impl Process ===

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("stdin", &self.stdin)
            .field("stdout", &self.stdout)
            .field("stderr", &self.stderr)
            .finish_non_exhaustive()
    }
}
