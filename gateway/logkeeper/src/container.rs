//! The task of one container: it polls both FIFOs and its command channel, and is the only one to touch the
//! container's files. It runs on the thread of the file system that has the container's log
//! ([`crate::fs_thread`]).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_crash_points::{CrashPoint, reach};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::fifo::{Fifo, PipeBudget};
use crate::follow::Follower;
use crate::format::Stream;
use crate::fs_thread::FsThread;
use crate::journal::{Journal, Received};
use crate::progress::Progress;
use crate::protocol::{Counters, LogSpec};
use crate::scratch::BATCH;
use crate::state_dir::StateDir;
use crate::window_budget::WindowBudget;

/// After this many consecutive batches of one stream, other tasks run.
const BATCHES_PER_TURN: u32 = 4;

/// A FIFO that held this many bytes is enlarged, because its writer is about to block.
const FULL: usize = BATCH / 2;

/// Number of bytes that are still read from a FIFO when the drain time is over: the capacity of a full one.
pub(crate) const LAST_DRAIN: usize = 1024 * 1024;

/// The state that the containers of one logkeeper share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: StateDir,
    pub(crate) budget: Arc<PipeBudget>,
    pub(crate) windows: Arc<WindowBudget>,
}

/// The counters of a container.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OutputCounts {
    /// Those since it was opened.
    pub(crate) total: Counters,
    /// The part of them that earlier logkeepers have counted.
    before: Counters,
}

/// A request to a container's task.
#[derive(Debug)]
pub(crate) enum Command {
    Attach {
        stream: Stream,
        from: Option<u64>,
        place: OwnedSemaphorePermit,
        done: oneshot::Sender<io::Result<Option<Follower>>>,
    },
    /// Answered once the container is open.
    Started(oneshot::Sender<()>),
    Reopen(oneshot::Sender<io::Result<()>>),
    Finish {
        drain: Duration,
        done: oneshot::Sender<io::Result<Counters>>,
    },
}

/// A container with its files open.
#[derive(Debug)]
pub(crate) struct Container {
    id: String,
    fifos: [Option<Fifo>; 2],
    journal: Journal,
    counters: Arc<Mutex<OutputCounts>>,
    shared: Arc<Shared>,
    fs_thread: Arc<FsThread>,
    finishing: Option<Finishing>,
}

/// A finish in progress.
#[derive(Debug)]
struct Finishing {
    deadline: Instant,
    waiting: Vec<oneshot::Sender<io::Result<Counters>>>,
}

/// The event that woke up a container's loop.
enum Wake {
    Command(Option<Command>),
    Ready(Stream, io::Result<()>),
    /// Output that was kept for attached clients may be released.
    Releasable,
    Deadline,
    /// The container was given up.
    Abandoned,
}

// === impl Command ===

impl Command {
    /// Returns whether the command is obsolete, because its client has been refused or has gone.
    fn is_withdrawn(&self) -> bool {
        match self {
            // These act for the client alone: it may be gone, or it got the answer that the log was not
            // reopened, and may have given the old file its name back since.
            Self::Attach { done, .. } => done.is_closed(),
            Self::Started(done) => done.is_closed(),
            Self::Reopen(done) => done.is_closed(),
            // The container has ended, whoever asks: its output is logged, and the repeated request finds it forgotten.
            Self::Finish { .. } => false,
        }
    }
}

// === impl OutputCounts ===

impl OutputCounts {
    /// The part that this logkeeper has counted.
    pub(crate) const fn own(self) -> Counters {
        self.total.since(self.before)
    }
}

// === impl Container ===

impl Container {
    /// Opens a new container and writes its entry; on an error nothing remains in the state directory.
    pub(crate) fn open(
        spec: &LogSpec,
        shared: &Arc<Shared>,
        fs_thread: &Arc<FsThread>,
        counters: Arc<Mutex<OutputCounts>>,
    ) -> io::Result<Self> {
        let _call = fs_thread.call();
        let fifos = open_fifos(spec)?;
        reach(CrashPoint::FifosOpened);
        let made = Journal::create(&shared.state.paths(&spec.id), spec, &shared.windows)
            // The entry comes last: after a kill before it, the other files mean nothing.
            .and_then(|journal| shared.state.write(spec).map(|()| journal));
        match made {
            Ok(journal) => Ok(Self::new(spec, fifos, journal, shared, fs_thread, counters)),
            Err(error) => {
                shared.state.remove(&spec.id)?;
                Err(error)
            }
        }
    }

    /// Recovers a container of an earlier logkeeper. If none of its FIFOs exists, its spooled output is
    /// logged, it is forgotten, and `None` is returned.
    pub(crate) fn recover(
        spec: &LogSpec,
        shared: &Arc<Shared>,
        fs_thread: &Arc<FsThread>,
        counters: Arc<Mutex<OutputCounts>>,
    ) -> io::Result<Option<Self>> {
        let _call = fs_thread.call();
        let paths = shared.state.paths(&spec.id);
        let mut journal =
            Journal::recover(&paths, spec, &shared.windows, &mut fs_thread.scratch.lock())?;
        let mut fifos = [None, None];
        for (fifo, path) in fifos.iter_mut().zip([&spec.stdout, &spec.stderr]) {
            let Some(path) = path else { continue };
            match Fifo::open(path) {
                Ok(opened) => *fifo = Some(opened),
                Err(error) => {
                    tracing::warn!(task = spec.id, fifo = %path.display(), %error, "cannot recover a FIFO");
                }
            }
        }
        if fifos.iter().all(Option::is_none) {
            tracing::warn!(
                task = spec.id,
                "all FIFOs of the container are gone; it is finished"
            );
            // Logged before its entry goes: after a kill in between, the output is still found.
            journal.finish(&mut fs_thread.scratch.lock());
            shared.state.remove(&spec.id)?;
            return Ok(None);
        }
        reach(CrashPoint::LogTakenUp);
        let total = journal.counters();
        *counters.lock() = OutputCounts {
            total,
            before: total,
        };
        Ok(Some(Self::new(
            spec, fifos, journal, shared, fs_thread, counters,
        )))
    }

    fn new(
        spec: &LogSpec,
        fifos: [Option<Fifo>; 2],
        journal: Journal,
        shared: &Arc<Shared>,
        fs_thread: &Arc<FsThread>,
        counters: Arc<Mutex<OutputCounts>>,
    ) -> Self {
        let shared = Arc::clone(shared);
        let fs_thread = Arc::clone(fs_thread);
        let container = Self {
            id: spec.id.clone(),
            fifos,
            journal,
            counters,
            shared,
            fs_thread,
            finishing: None,
        };
        container.publish();
        container
    }

    /// Logs until the container is finished or given up, or until the command channel closes; in the latter case a later
    /// logkeeper recovers the container.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>, progress: &Progress) {
        let mut abandoned = progress.watch_abandoned();
        while !progress.is_abandoned() {
            match self.wake(&mut commands, &mut abandoned).await {
                Wake::Command(None) => return,
                Wake::Command(Some(command)) if command.is_withdrawn() => {}
                Wake::Command(Some(Command::Started(done))) => drop(done.send(())),
                Wake::Command(Some(Command::Attach {
                    stream,
                    from,
                    place,
                    done,
                })) => {
                    // The receiver may be gone.
                    drop(done.send(self.journal.follow(stream, from, &self.fs_thread, place)));
                }
                Wake::Releasable => self.journal.release_unneeded(),
                Wake::Command(Some(Command::Reopen(done))) => self.reopen(done),
                Wake::Command(Some(Command::Finish { drain, done })) => {
                    self.begin_finish(drain, done, progress)
                }
                Wake::Ready(stream, Ok(())) => self.receive(stream, progress).await,
                Wake::Ready(stream, Err(error)) => self.stop_reading(stream, &error, progress),
                Wake::Deadline => self.drain_rest(progress),
                Wake::Abandoned => {}
            }
            let has_ended = self.finishing.is_some() && self.fifos.iter().all(Option::is_none);
            // A container that was given up is not ended here: its output is counted and its files are
            // removed elsewhere.
            if has_ended && !progress.is_abandoned() {
                return self.end(&mut commands);
            }
        }
        self.drop_abandoned();
    }

    async fn wake(
        &self,
        commands: &mut mpsc::Receiver<Command>,
        abandoned: &mut watch::Receiver<bool>,
    ) -> Wake {
        let ready = async |stream: Stream| match &self.fifos[stream.index()] {
            Some(fifo) => fifo.readable().await,
            None => std::future::pending().await,
        };
        let deadline = async {
            match &self.finishing {
                Some(ending) => sleep_until(ending.deadline).await,
                None => std::future::pending().await,
            }
        };
        // `select!` polls in random order, so that neither stream and no command is starved.
        tokio::select! {
            command = commands.recv() => Wake::Command(command),
            result = ready(Stream::Stdout) => Wake::Ready(Stream::Stdout, result),
            result = ready(Stream::Stderr) => Wake::Ready(Stream::Stderr, result),
            () = self.journal.wait_releasable() => Wake::Releasable,
            // It fails only without a sender, which the caller's progress is.
            _ = abandoned.changed() => Wake::Abandoned,
            () = deadline => Wake::Deadline,
        }
    }

    /// Creates the log again, for a caller that waits for that. One that gave up while the new file was being opened may
    /// have given the old one its name back, so that stays in use then.
    fn reopen(&mut self, done: oneshot::Sender<io::Result<()>>) {
        reach(CrashPoint::ReopenAsked);
        let mut done = Some(done);
        let result = {
            let _call = self.fs_thread.call();
            let accept = || done.take().is_some_and(|done| done.send(Ok(())).is_ok());
            self.journal
                .reopen(&mut self.fs_thread.scratch.lock(), accept)
        };
        self.publish();
        if let (Err(error), Some(done)) = (result, done) {
            // The receiver may be gone.
            drop(done.send(Err(error)));
        }
    }

    /// Reads some batches from a stream that is ready.
    async fn receive(&mut self, stream: Stream, progress: &Progress) {
        for _ in 0..BATCHES_PER_TURN {
            if progress.is_abandoned() {
                return;
            }
            let Some(fifo) = &mut self.fifos[stream.index()] else {
                return;
            };
            let received = fifo.try_receive(|fd| {
                let _call = self.fs_thread.call();
                match self
                    .journal
                    .receive(stream, fd, &mut self.fs_thread.scratch.lock())?
                {
                    // `try_receive` waits for new readiness after `WouldBlock` alone.
                    Received::Empty => Err(io::ErrorKind::WouldBlock.into()),
                    received @ (Received::Bytes(_) | Received::Closed) => Ok(received),
                }
            });
            match received {
                Ok(Received::Bytes(len)) => {
                    // Less was all that it held, so that its writer did not wait before the write.
                    let is_busy = len >= FULL;
                    progress.set_full(stream, is_busy && fifo.is_full());
                    if is_busy {
                        fifo.enlarge(&self.shared.budget);
                    }
                }
                Ok(Received::Empty) => return self.publish(),
                Ok(Received::Closed) => {
                    progress.set_full(stream, false);
                    self.fifos[stream.index()] = None;
                    return self.publish();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    progress.set_full(stream, false);
                    return self.publish();
                }
                Err(error) => return self.stop_reading(stream, &error, progress),
            }
        }
        self.publish();
        tokio::task::yield_now().await;
    }

    /// Stops reading a FIFO that cannot be read; retries would only burn CPU time.
    fn stop_reading(&mut self, stream: Stream, error: &io::Error, progress: &Progress) {
        tracing::error!(task = self.id, stream = stream.as_str(), %error, "cannot read a FIFO; its output is no longer logged");
        progress.set_full(stream, false);
        self.fifos[stream.index()] = None;
    }

    fn begin_finish(
        &mut self,
        drain: Duration,
        done: oneshot::Sender<io::Result<Counters>>,
        progress: &Progress,
    ) {
        if let Some(ending) = &mut self.finishing {
            ending.waiting.push(done);
            return;
        }
        self.finishing = Some(Finishing {
            deadline: Instant::now() + drain,
            waiting: vec![done],
        });
        if drain.is_zero() {
            return self.drain_rest(progress);
        }
        for stream in Stream::ALL {
            // The FIFO reports the end of its writers only when the logkeeper's own writing end is closed.
            let watched = self.fifos[stream.index()]
                .take()
                .map(Fifo::close_writer)
                .transpose();
            match watched {
                Ok(fifo) => self.fifos[stream.index()] = fifo,
                Err(error) => self.stop_reading(stream, &error, progress),
            }
        }
        reach(CrashPoint::EndAwaited);
    }

    /// Reads what the FIFOs contain now, and closes them.
    fn drain_rest(&mut self, progress: &Progress) {
        for stream in Stream::ALL {
            let Some(fifo) = self.fifos[stream.index()].take() else {
                continue;
            };
            let mut taken = 0;
            // A writer that never pauses must not prevent the finish from ending.
            while taken < LAST_DRAIN && !progress.is_abandoned() {
                let received = {
                    let _call = self.fs_thread.call();
                    self.journal
                        .receive(stream, &fifo, &mut self.fs_thread.scratch.lock())
                };
                match received {
                    Ok(Received::Bytes(len)) => taken += len,
                    Ok(Received::Empty | Received::Closed) => break,
                    Err(error) => {
                        self.stop_reading(stream, &error, progress);
                        break;
                    }
                }
            }
        }
    }

    /// Closes everything of a container that was given up: the file system of its log answers again, or has failed.
    fn drop_abandoned(self) {
        tracing::info!(
            task = self.id,
            "the file system of a log answers whose container was given up"
        );
        let fs_thread = Arc::clone(&self.fs_thread);
        let _call = fs_thread.call();
        drop(self);
    }

    fn end(mut self, commands: &mut mpsc::Receiver<Command>) {
        let fs_thread = Arc::clone(&self.fs_thread);
        // The log is closed within the call too, because some file systems write only on close.
        let _call = fs_thread.call();
        self.journal.finish(&mut fs_thread.scratch.lock());
        reach(CrashPoint::LogFinished);
        self.publish();
        let removed = self
            .shared
            .state
            .remove(&self.id)
            .map_err(|error| (error.kind(), error.to_string()));
        let mut waiting = self
            .finishing
            .take()
            .map(|ending| ending.waiting)
            .unwrap_or_default();
        let counters = self.journal.counters();
        drop(self);
        // Closed before the rest is taken: no command is queued after the last one that is answered.
        commands.close();
        while let Ok(command) = commands.try_recv() {
            match command {
                // Dropping the sender reports to the caller that the container is no longer open.
                Command::Attach { .. } | Command::Started(_) | Command::Reopen(_) => {}
                Command::Finish { done, .. } => waiting.push(done),
            }
        }
        for done in waiting {
            let result = removed
                .clone()
                .map_err(|(kind, text)| io::Error::new(kind, text));
            drop(done.send(result.map(|()| counters)));
        }
    }

    fn publish(&self) {
        self.counters.lock().total = self.journal.counters();
    }
}

fn open_fifos(spec: &LogSpec) -> io::Result<[Option<Fifo>; 2]> {
    let mut fifos = [None, None];
    for (fifo, path) in fifos.iter_mut().zip([&spec.stdout, &spec.stderr]) {
        let Some(path) = path else { continue };
        let opened = Fifo::open(path);
        *fifo = Some(opened.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot open FIFO {}: {error}", path.display()),
            )
        })?);
    }
    Ok(fifos)
}
