//! The progress of a container's start: the file system that it waits for, its failure, and its abandonment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::format::Stream;
use crate::fs_thread::FsThread;
use crate::protocol::{Fault, FaultKind};

/// The state of a container's start.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// True if the container was given up: its task is to drop what it has.
    abandoned: watch::Sender<bool>,
    /// The thread that the container runs on, or that it waits for.
    fs_thread: Mutex<Option<Arc<FsThread>>>,
    /// True of a stream whose pipe was full after the latest write of its output.
    full: [AtomicBool; 2],
    /// Reason why it could not be opened.
    failed: OnceLock<Fault>,
}

impl Progress {
    /// Has the container's task drop what it has, as soon as the file system of the log answers.
    pub(crate) fn abandon(&self) {
        self.abandoned.send_replace(true);
    }

    /// Returns whether the container was given up.
    pub(crate) fn is_abandoned(&self) -> bool {
        *self.abandoned.borrow()
    }

    /// Changes when the container is given up.
    pub(crate) fn watch_abandoned(&self) -> watch::Receiver<bool> {
        self.abandoned.subscribe()
    }

    /// Returns whether its file system hangs.
    pub(crate) fn is_stalled(&self) -> bool {
        self.fs_thread
            .lock()
            .as_ref()
            .is_some_and(|fs_thread| fs_thread.stalled().is_some())
    }

    /// Sets the thread that the container runs on, or waits for.
    pub(crate) fn set_fs_thread(&self, fs_thread: &Arc<FsThread>) {
        *self.fs_thread.lock() = Some(Arc::clone(fs_thread));
    }

    /// The mount point of the file system that has the container's log; `None` while it is not known.
    pub(crate) fn mount_point(&self) -> Option<String> {
        let fs_thread = self.fs_thread.lock();
        fs_thread
            .as_ref()
            .map(|fs_thread| fs_thread.mount_point().to_owned())
    }

    /// Sets whether the pipe of a stream is full, although its output was just written.
    pub(crate) fn set_full(&self, stream: Stream, is_full: bool) {
        self.full[stream.index()].store(is_full, Ordering::Relaxed);
    }

    /// Returns whether a pipe was full after the latest write: the container is held up by its log.
    pub(crate) fn is_full(&self) -> bool {
        self.full.iter().any(|full| full.load(Ordering::Relaxed))
    }

    /// Refuses a request that would wait for a file system that hangs.
    ///
    /// # Errors
    /// `Busy`, with the mount point of the file system and how long it has hung.
    pub(crate) fn stalled(&self, id: &str) -> Result<(), Fault> {
        match self
            .fs_thread
            .lock()
            .as_ref()
            .and_then(|fs_thread| fs_thread.stalled())
        {
            None => Ok(()),
            Some((waited, place)) => Err(Fault::new(
                FaultKind::Busy,
                format!(
                    "container {id} waits for the file system of its log, mounted on {place}, which has not answered for {} s",
                    waited.as_secs()
                ),
            )),
        }
    }

    /// The container could not be opened. To be called at most once.
    pub(crate) fn fail(&self, fault: Fault) {
        drop(self.failed.set(fault));
    }

    /// Reason why the container could not be opened.
    pub(crate) fn failure(&self) -> Option<&Fault> {
        self.failed.get()
    }
}
