//! Further processes in running tasks, as a backend provides them.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::error::Result;
use crate::spec::Signal;
use crate::stream::{Sink, Source};

/// Limit for the runtime to close the output of a command that has exited, once that is cut off: longer than the ten seconds for which a
/// runtime may wait for more output. The content that the output has then is read, and no more.
pub const CUT_PATIENCE: Duration = Duration::from_secs(15);

/// Cuts off the output of a process that has exited, by deleting it; returns [`CUT_PATIENCE`] after the begin of that, with the
/// reason if it was not deleted by then. Cancel-safe if the deletion is.
pub async fn cut_by(deletion: impl Future<Output = Result<()>>) -> Option<String> {
    let mut patience = pin!(tokio::time::sleep(CUT_PATIENCE));
    let failed = tokio::select! {
        deleted = deletion => deleted.err().map(|error| error.report()),
        () = &mut patience => return Some(format!("its deletion takes longer than {CUT_PATIENCE:?}")),
    };
    patience.await;
    failed
}

/// A further process in a task, with its streams.
///
/// Dropping it kills the process and releases its resources.
pub struct ExecProcess {
    /// Its standard input, if it was requested; shutting it down or dropping it closes the input. With a
    /// terminal only a shutdown does: it acts like Ctrl-D typed repeatedly until the process is deleted.
    pub stdin: Option<Sink>,
    /// Its standard output, or its terminal.
    pub stdout: Option<Source>,
    /// Its standard error; none with a terminal.
    pub stderr: Option<Source>,
    /// Control over it.
    pub control: Box<dyn ExecControl>,
}

impl fmt::Debug for ExecProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecProcess").finish_non_exhaustive()
    }
}

/// A place for a further process in a task, which counts it. It is held until the process is deleted, also
/// when its client has gone: a process that cannot be ended continues to take its place, so that their number
/// is bounded.
pub struct ExecPlace {
    _held: Box<dyn Send + Sync>,
}

impl ExecPlace {
    /// A place that ends when what is given is dropped.
    pub fn new(held: impl Send + Sync + 'static) -> Self {
        Self {
            _held: Box::new(held),
        }
    }

    /// A place that counts nothing.
    #[must_use]
    pub fn uncounted() -> Self {
        Self::new(())
    }
}

impl fmt::Debug for ExecPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecPlace").finish_non_exhaustive()
    }
}

/// Control over a further process in a task. Dropping it kills the process.
pub trait ExecControl: Send + Sync {
    /// Waits for its exit and returns the exit code. May be called again; cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached.
    fn wait(&self) -> BoxFuture<'_, Result<i32>>;

    /// Sends a signal. Succeeds if the process has exited.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached.
    fn signal(&self, signal: Signal) -> BoxFuture<'_, Result<()>>;

    /// Sets the size of its terminal, in characters. Succeeds without effect if it has no terminal.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached.
    fn resize(&self, width: u16, height: u16) -> BoxFuture<'_, Result<()>>;

    /// Closes the output of a process that has exited, once children have kept it open for `after` without unread output;
    /// while they write without such a pause, it is not cut off. Returns [`CUT_PATIENCE`] after the output was cut off: it has
    /// ended by then, or the runtime does not close it. Cancel-safe.
    fn cut_output(&self, after: Duration) -> BoxFuture<'_, ()>;

    /// Releases the runtime's resources of an exited process. Idempotent; cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached.
    fn delete(&self) -> BoxFuture<'_, Result<()>>;
}
