//! Starts the task of a container that has an entry in the table, and handles requests for a container
//! meanwhile.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::container::{Command, Container, OutputCounts, Shared};
use crate::fs_thread::{FsThreads, STALLED};
use crate::progress::Progress;
use crate::protocol::{Fault, FaultKind, LogSpec};

/// The origin of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A client's request.
    New,
    /// An earlier logkeeper, or an earlier task.
    Known,
}

/// Sends requests to a container's task, also before the container is open.
#[derive(Debug, Clone)]
pub(crate) struct ContainerHandle {
    commands: mpsc::Sender<Command>,
    progress: Arc<Progress>,
}

/// Opens a container on the thread for its log, and serves it there until it ends. Cancel-safe: the task on
/// the thread continues.
pub(crate) async fn run_container(
    spec: LogSpec,
    origin: Origin,
    (shared, fs_threads): (Arc<Shared>, Arc<FsThreads>),
    progress: Arc<Progress>,
    (commands, counters): (mpsc::Receiver<Command>, Arc<Mutex<OutputCounts>>),
) {
    // Without a log, all files are in the state directory.
    let file = spec
        .log
        .clone()
        .unwrap_or_else(|| shared.state.unused_path());
    let fs_thread = fs_threads
        .of(&file, |fs_thread| progress.set_fs_thread(fs_thread))
        .await;
    drop(fs_threads);
    let fs_thread = match fs_thread {
        Ok(fs_thread) => fs_thread,
        Err(error) => return progress.fail(not_opened(&spec.id, origin, &error)),
    };
    let thread = Arc::clone(&fs_thread);
    let task = fs_thread.spawn(async move {
        if progress.is_abandoned() {
            return;
        }
        let made = match origin {
            Origin::New => Container::open(&spec, &shared, &thread, counters).map(Some),
            Origin::Known => Container::recover(&spec, &shared, &thread, counters),
        };
        // It may have hung, and have created files since the container was given up.
        if progress.is_abandoned() {
            if let Err(error) = shared.state.remove(&spec.id) {
                tracing::warn!(task = spec.id, %error, "cannot remove the files of a container that was given up");
            }
            drop(made);
            return;
        }
        match made {
            Ok(Some(container)) => {
                drop((shared, thread));
                container.run(commands, &progress).await;
            }
            Ok(None) => {}
            Err(error) => progress.fail(not_opened(&spec.id, origin, &error)),
        }
    });
    if let Err(error) = task.await
        && error.is_panic()
    {
        tracing::error!(%error, "the task of a container panicked");
    }
}

/// The answer for a container that could not be opened.
fn not_opened(id: &str, origin: Origin, error: &io::Error) -> Fault {
    let unusable = matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::InvalidInput
    );
    let (kind, action) = match origin {
        Origin::New if unusable => (FaultKind::InvalidArgument, "open"),
        Origin::New => (FaultKind::Io, "open"),
        Origin::Known => {
            tracing::error!(task = id, %error, "cannot recover a container; open it again");
            (FaultKind::Io, "recover")
        }
    };
    Fault::new(kind, format!("cannot {action} container {id}: {error}"))
}

// === impl ContainerHandle ===

impl ContainerHandle {
    pub(crate) fn new(commands: mpsc::Sender<Command>) -> Self {
        Self {
            commands,
            progress: Arc::default(),
        }
    }

    /// Returns whether the container's task has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }

    /// Returns when the container's task has ended. Cancel-safe.
    pub(crate) async fn closed(&self) {
        self.commands.closed().await;
    }

    /// Returns whether both belong to the same task.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.commands.same_channel(&other.commands)
    }

    /// Returns whether opening the container has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.progress.failure().is_some()
    }

    /// Sends a command and awaits its answer; `None` if the container's task ended without one.
    ///
    /// If the container's file system hangs, this does not wait until `limit`, because such calls would hold
    /// up all others. In that case, when `limit` is over, and when the future is dropped, the command stays queued;
    /// [`Command::is_withdrawn`] says which ones are carried out later all the same.
    ///
    /// # Errors
    /// `Busy` in these two cases; the error of opening the container if that has failed.
    pub(crate) async fn ask<T>(
        &self,
        id: &str,
        command: Command,
        answer: oneshot::Receiver<T>,
        limit: Duration,
    ) -> Result<Option<T>, Fault> {
        let asked = async {
            match self.commands.send(command).await {
                Ok(()) => answer.await.ok(),
                Err(_closed) => None,
            }
        };
        tokio::pin!(asked);
        let end = Instant::now() + limit;
        // Refused at once if the file system hangs already; otherwise that is checked at intervals.
        let mut look = if self.stalled(id).is_err() {
            Instant::now()
        } else {
            Instant::now() + STALLED
        };
        loop {
            tokio::select! {
                biased;
                answer = &mut asked => return match (answer, self.progress.failure()) {
                    (None, Some(fault)) => Err(fault.clone()),
                    (answer, _) => Ok(answer),
                },
                () = sleep_until(look.min(end)) => {
                    self.stalled(id)?;
                    if Instant::now() >= end {
                        return Err(Fault::new(FaultKind::Busy, format!("container {id} does not answer")));
                    }
                    look = Instant::now() + STALLED;
                }
            }
        }
    }

    /// Refuses a request that would wait for a file system that hangs.
    ///
    /// # Errors
    /// Those of [`Progress::stalled`].
    pub(crate) fn stalled(&self, id: &str) -> Result<(), Fault> {
        self.progress.stalled(id)
    }

    /// The state of the container's start; holding it does not keep the container's task from ending.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }
}
