//! The streams of a task, as the state has them.

use tokio::sync::broadcast;

/// How many pieces of output a client may be behind before it misses some.
const BEHIND: usize = 1024;

/// The streams of a task that attached clients share.
pub(crate) struct TaskStreams {
    pub(crate) output: broadcast::Sender<Vec<u8>>,
    /// Whether its input ends with the first client that has attached to it.
    pub(crate) stdin_once: bool,
    pub(crate) tty: bool,
    /// Whether its output can be attached to.
    pub(crate) attachable: bool,
    /// Whether its input has ended.
    pub(crate) ended: bool,
}

impl TaskStreams {
    pub(crate) fn new(once: bool, tty: bool, kept: bool) -> Self {
        Self { output: broadcast::Sender::new(BEHIND), stdin_once: once, tty, attachable: kept, ended: false }
    }
}
