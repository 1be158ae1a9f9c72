//! The way of a container from its entry in the table to its task, and what requests have of a container meanwhile.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::container::{Command, Container, Shared, lock};
use crate::fs_thread::{FsThread, FsThreads, STALLED};
use crate::protocol::{Counters, Fault, FaultKind, LogSpec};

/// Where a container comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A client's request.
    New,
    /// An earlier keeper, or an earlier task.
    Known,
}

/// How a container is asked, from before it is open.
#[derive(Debug, Clone)]
pub(crate) struct ContainerHandle {
    commands: mpsc::Sender<Command>,
    progress: Arc<Progress>,
}

/// How far a container has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The thread that it is on, or that it waits for.
    fs_thread: Mutex<Option<Arc<FsThread>>>,
    /// Why it could not be opened.
    failed: OnceLock<Fault>,
}

/// Opens a container on the thread for its log, and serves it there to its end. Cancel-safe: what is on the thread goes on.
pub(crate) async fn run_container(
    spec: LogSpec,
    origin: Origin,
    (shared, lanes): (Arc<Shared>, Arc<FsThreads>),
    progress: Arc<Progress>,
    (commands, counters): (mpsc::Receiver<Command>, Arc<Mutex<Counters>>),
) {
    // Without a log all that is written is in the state directory.
    let file = spec.log.clone().unwrap_or_else(|| shared.state.unused_path());
    let lane = lanes.of(&file, |lane| *lock(&progress.fs_thread) = Some(Arc::clone(lane))).await;
    drop(lanes);
    let lane = match lane {
        Ok(lane) => lane,
        Err(error) => return progress.fail(&spec.id, origin, &error),
    };
    let thread = Arc::clone(&lane);
    let task = lane.spawn(async move {
        let made = match origin {
            Origin::New => Container::open(&spec, &shared, &thread, counters).map(Some),
            Origin::Known => Container::recover(&spec, &shared, &thread, counters),
        };
        match made {
            Ok(Some(container)) => {
                drop((shared, thread));
                container.run(commands).await;
            }
            Ok(None) => {}
            Err(error) => progress.fail(&spec.id, origin, &error),
        }
    });
    if let Err(error) = task.await
        && error.is_panic()
    {
        tracing::error!(%error, "the task of a container panicked");
    }
}

// === impl Progress ===

impl Progress {
    /// Whether its file system hangs.
    pub(crate) fn is_stalled(&self) -> bool {
        lock(&self.fs_thread).as_ref().is_some_and(|lane| lane.stalled().is_some())
    }

    fn fail(&self, id: &str, origin: Origin, error: &io::Error) {
        let unusable = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput);
        let (kind, action) = match origin {
            Origin::New if unusable => (FaultKind::InvalidArgument, "open"),
            Origin::New => (FaultKind::Io, "open"),
            Origin::Known => {
                tracing::error!(id, %error, "cannot take up a container; open it again");
                (FaultKind::Io, "take up")
            }
        };
        // It fails once.
        drop(self.failed.set(Fault::new(kind, format!("cannot {action} container {id}: {error}"))));
    }
}

// === impl Contact ===

impl ContainerHandle {
    pub(crate) fn new(commands: mpsc::Sender<Command>) -> Self {
        Self { commands, progress: Arc::default() }
    }

    /// Whether the container's task has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }

    /// Whether it is of the same task.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.commands.same_channel(&other.commands)
    }

    /// Whether the container could never be opened.
    pub(crate) fn has_failed(&self) -> bool {
        self.progress.failed.get().is_some()
    }

    /// Sends a command and awaits its answer; `None` if the container's task ended without one.
    ///
    /// A container whose file system hangs is not waited for to the end of `limit`, or calls about it would hold up all others. Then, and
    /// when the limit is over, the command stands, and is carried out when the file system is back.
    ///
    /// # Errors
    /// `Busy` in these two cases; why it could not be opened, if that is so.
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
        let mut look = if self.stalled(id).is_err() { Instant::now() } else { Instant::now() + STALLED };
        loop {
            tokio::select! {
                biased;
                answer = &mut asked => return match (answer, self.progress.failed.get()) {
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

    /// Refuses what would wait for a file system that hangs.
    ///
    /// # Errors
    /// `Busy`, with the file system and for how long it has hung.
    pub(crate) fn stalled(&self, id: &str) -> Result<(), Fault> {
        match lock(&self.progress.fs_thread).as_ref().and_then(|lane| lane.stalled()) {
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

    /// How far the container has come; it does not keep the container's task from ending.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }
}
