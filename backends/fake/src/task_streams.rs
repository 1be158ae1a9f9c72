//! The streams of a task, as the state has them.

use tokio::sync::broadcast;

/// Number of pieces of output that a client may lag behind before it misses some.
const BEHIND: usize = 1024;

/// The streams of a task that attached clients share.
pub(crate) struct TaskStreams {
    pub(crate) output: broadcast::Sender<Vec<u8>>,
    /// True if its input ends with the first client that has attached to it.
    pub(crate) stdin_once: bool,
    pub(crate) tty: bool,
    /// True if clients can attach to its output.
    pub(crate) attachable: bool,
    /// True if its input has ended.
    pub(crate) ended: bool,
}

impl TaskStreams {
    pub(crate) fn new(once: bool, tty: bool, kept: bool) -> Self {
        Self {
            output: broadcast::Sender::new(BEHIND),
            stdin_once: once,
            tty,
            attachable: kept,
            ended: false,
        }
    }
}
