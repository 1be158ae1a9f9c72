//! What a frontend registers and gets a URL for, and the traits by which the server reaches the other side.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use async_trait::async_trait;

use crate::ends::{Connection, Input, Output};

/// Which streams an exec or attach has. At least one is set; with a terminal there is no stderr.
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

/// The process of an exec or attach that waits for its client.
#[async_trait]
pub trait Command: Send {
    /// Starts the process (exec) or joins the one that runs (attach). Called at most once, when the client has opened
    /// all its streams. Not cancelled when the client leaves meanwhile: it runs to its end, then [`Control::hang_up`].
    ///
    /// # Errors
    ///
    /// Why the process is not there; the client is told in its error stream.
    async fn open(self: Box<Self>) -> Result<Process, Refusal>;
}

/// A process whose streams are carried. Streams that the session has not asked for are `None`.
pub struct Process {
    /// What the client's standard input goes to; it is shut down when the client ends its input.
    pub stdin: Option<Input>,
    /// Where the process's standard output comes from.
    pub stdout: Option<Output>,
    /// Where the process's standard error comes from.
    pub stderr: Option<Output>,
    /// The rest of the process.
    pub control: Arc<dyn Control>,
}

/// What else a client does to a process: resize its terminal, learn of its end, go away.
#[async_trait]
pub trait Control: Send + Sync {
    /// Sets the size of the terminal. Called in the client's order; sizes that come faster than they are set are
    /// skipped, all but the last.
    ///
    /// # Errors
    ///
    /// Why it was not set. It is logged; the session goes on.
    async fn resize(&self, size: Size) -> Result<(), Refusal>;

    /// How it ended. Called once, at the begin; the session ends when this has returned and the outputs are at their
    /// end. Cancel-safe: it is dropped if the client goes away.
    async fn wait(&self) -> Outcome;

    /// The client has gone, or was idle for too long, before the end. Called at most once, and never after the end was
    /// told to the client. An exec ends its process here; an attach does nothing.
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

/// How the process of a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this status; also an attach whose container ended, where the status is not told: `Exited(0)`.
    Exited(i32),
    /// What happened to it is not known, or it never ran; the text is for the client.
    Failed(String),
}

/// Reaches ports of a sandbox.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Connects to `port` at the loopback address inside. Called once per forwarded connection, at the same time for
    /// several. Cancel-safe: it is dropped if the client goes away.
    ///
    /// # Errors
    ///
    /// Why there is no connection; the client is told in its error stream, and the others go on.
    async fn dial(&self, port: u16) -> Result<Connection, Refusal>;
}

/// Why a session was not opened: one line for the client.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// No URL was made: as many as may wait to be opened already do. It passes when they are opened or expire.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{limit} streaming sessions wait for their clients already; open them, or wait until they expire")]
pub struct TooMany {
    /// How many may wait.
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
