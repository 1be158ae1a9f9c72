//! The table of containers: checks requests, and passes them to the task of the container.
//!
//! Longer than 500 lines because the keeper and the table that its requests lock belong together.

mod abandon;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

use crate::Error;
use crate::container::{Command, OutputCounts, Shared};
use crate::fifo::PipeBudget;
use crate::follow::Follower;
use crate::format::{MAX_LINE_LIMIT, Stream};
use crate::fs_thread::FsThreads;
use crate::protocol::{
    Counters, Entry, Fault, FaultKind, Finished, LogFileSystem, LogSpec, MAX_DRAIN_MS,
    MAX_FULL_PIPES, MAX_ID, PAGE_LEN, Page, Stats,
};
use crate::start::{ContainerHandle, Origin, run_container};
use crate::state_dir::{StateDir, StateLock};
use crate::window_budget::WindowBudget;

use abandon::AbandonedContainer;

/// Maximum number of attached clients; each takes two file descriptors.
const FOLLOWERS: usize = 512;

/// Maximum number of queued commands of one container.
const COMMANDS: usize = 8;

/// Maximum number of open containers: each takes six file descriptors and a task.
const CONTAINERS: usize = 32 * 1024;

/// Time for a container's task to execute a command, in addition to what the command itself allows; less than
/// the client's timeout.
const COMMAND_LIMIT: Duration = Duration::from_secs(8);

/// Time for which a start waits for the recovery of containers; containers on a file system that hangs are
/// recovered in the background.
const RECOVERY_LIMIT: Duration = Duration::from_secs(3);

/// All containers of one state directory.
#[derive(Debug)]
pub(crate) struct Keeper {
    recovered: u64,
    followers: Arc<Semaphore>,
    table: Arc<Mutex<Table>>,
    _lock: StateLock,
}

/// The state that requests modify. Locked for short operations in memory and in the state directory, and
/// never across an await.
#[derive(Debug)]
struct Table {
    shared: Arc<Shared>,
    fs_threads: Arc<FsThreads>,
    live: BTreeMap<String, ContainerTask>,
    /// Containers that were given up, until the rest of their output is counted, the file system of their log answers and
    /// their tasks end. For clients they are gone, but none of their ids can be opened.
    abandoned: BTreeMap<String, AbandonedContainer>,
    finished: u64,
    finished_totals: Counters,
    /// Set when the logkeeper shuts down: `live` says nothing any more, and requests are refused.
    stopped: bool,
}

/// A container's task, as requests see it.
#[derive(Debug)]
struct ContainerTask {
    spec: LogSpec,
    handle: ContainerHandle,
    counters: Arc<Mutex<OutputCounts>>,
    task: JoinHandle<()>,
    finishing: bool,
}

// === impl Keeper ===

impl Keeper {
    /// Locks a state directory and recovers the containers in it, except for those whose file systems hang.
    pub(crate) async fn recover(state_dir: &Path) -> Result<Self, Error> {
        let (state, state_lock) = StateDir::open(state_dir)?;
        let specs = state.load()?;
        let mut table = Table {
            shared: Arc::new(Shared {
                windows: WindowBudget::of(state_dir),
                state,
                budget: PipeBudget::from_system(),
            }),
            fs_threads: Arc::default(),
            live: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            finished: 0,
            finished_totals: Counters::default(),
            stopped: false,
        };
        let end = Instant::now() + RECOVERY_LIMIT;
        let mut asked = JoinSet::new();
        for spec in specs {
            let id = spec.id.clone();
            let contact = table.insert(spec, Origin::Known);
            asked.spawn(async move {
                let (done, answer) = oneshot::channel();
                contact
                    .ask(&id, Command::Started(done), answer, end - Instant::now())
                    .await
            });
        }
        let mut recovered = 0;
        for started in asked.join_all().await {
            match started {
                Ok(Some(())) => recovered += 1,
                // All its FIFOs were gone: its output is logged, and it is forgotten.
                Ok(None) => {}
                Err(fault) => tracing::warn!(error = %fault, "a container is not recovered yet"),
            }
        }
        let followers = Arc::new(Semaphore::new(FOLLOWERS));
        Ok(Self {
            recovered,
            followers,
            table: Arc::new(Mutex::new(table)),
            _lock: state_lock,
        })
    }

    /// Starts to log a container. Idempotent.
    pub(crate) async fn open(&self, spec: LogSpec) -> Result<(), Fault> {
        check(&spec)?;
        let id = spec.id.clone();
        // Retried once: a container of which only the entry was known may have ended.
        for _ in 0..2 {
            let contact = self.serving()?.open(spec.clone())?;
            let (done, answer) = oneshot::channel();
            let asked = contact
                .ask(&id, Command::Started(done), answer, COMMAND_LIMIT)
                .await;
            if contact.has_failed() || matches!(asked, Ok(None)) {
                self.table.lock().retire(&id, &contact);
            }
            if asked?.is_some() {
                return Ok(());
            }
        }
        Err(Fault::new(
            FaultKind::Busy,
            format!("container {id} ended while it was being opened"),
        ))
    }

    /// Creates a container's log again. If the future is dropped, the log stays as it is.
    pub(crate) async fn reopen(&self, id: &str) -> Result<(), Fault> {
        match self
            .ask(id, COMMAND_LIMIT, |done| Ok(Command::Reopen(done)))
            .await?
        {
            Some(result) => result.map_err(|error| {
                // What is at the path now cannot be a log; the other errors may pass.
                let is_unusable = error.kind() == io::ErrorKind::InvalidInput;
                let kind = if is_unusable {
                    FaultKind::InvalidArgument
                } else {
                    FaultKind::Io
                };
                Fault::new(
                    kind,
                    format!("cannot reopen the log of container {id}: {error}"),
                )
            }),
            None => Err(unknown(id)),
        }
    }

    /// Logs a container's remaining output and forgets the container; returns zeros for an unknown id.
    pub(crate) async fn finish(&self, id: &str, drain_ms: u64) -> Result<Finished, Fault> {
        let drain = Duration::from_millis(drain_ms.min(MAX_DRAIN_MS));
        let limit = drain + COMMAND_LIMIT;
        match self
            .ask(id, limit, |done| Ok(Command::Finish { drain, done }))
            .await?
        {
            Some(Ok(counters)) => Ok(counters.into()),
            Some(Err(error)) => Err(io_fault("forget", id, &error)),
            None => Ok(Finished::default()),
        }
    }

    /// Attaches a client to one output stream of a container.
    pub(crate) async fn attach(
        &self,
        id: &str,
        stream: Stream,
        from: Option<u64>,
    ) -> Result<Follower, Fault> {
        // Otherwise the client would hold its permit for as long as the file system hangs.
        if let Some(container) = self.serving()?.find(id)? {
            container.handle.stalled(id)?;
        }
        let attached = self.ask(id, COMMAND_LIMIT, |done| {
            let place = Arc::clone(&self.followers)
                .try_acquire_owned()
                .map_err(|_full| {
                    Fault::new(
                        FaultKind::Busy,
                        format!("{FOLLOWERS} clients are attached already, which is the most"),
                    )
                })?;
            Ok(Command::Attach {
                stream,
                from,
                place,
                done,
            })
        });
        match attached.await? {
            Some(Ok(Some(follower))) => Ok(follower),
            Some(Ok(None)) => {
                let why = format!("container {id} has no stream {}", stream.as_str());
                Err(Fault::new(FaultKind::InvalidArgument, why))
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::QuotaExceeded => Err(Fault::new(
                FaultKind::Busy,
                format!("cannot attach to container {id}: {error}"),
            )),
            Some(Err(error)) => Err(io_fault("attach to", id, &error)),
            None => Err(unknown(id)),
        }
    }

    /// The table, for a request. All requests get it here, so that none is answered from the table of a logkeeper that
    /// is shutting down: what that has given away to end it would be taken for unknown.
    ///
    /// # Errors
    /// `Busy` while the logkeeper shuts down. The next one knows the containers.
    fn serving(&self) -> Result<MutexGuard<'_, Table>, Fault> {
        let table = self.table.lock();
        if table.stopped {
            Err(shutting_down())
        } else {
            Ok(table)
        }
    }

    /// Refuses a request that has nothing to do with containers, as [`Keeper::serving`] does.
    pub(crate) fn check_serving(&self) -> Result<(), Fault> {
        self.serving().map(drop)
    }

    /// Sends a command to a container's task and awaits its answer; `None` if there is no such container.
    ///
    /// A task that ends without an answer has panicked, or has finished the container for another caller. In the first
    /// case the container still has its entry, and is recovered and asked once more.
    ///
    /// # Errors
    /// `Busy` while the logkeeper shuts down, if the file system of the log hangs, at the end of `limit`, and if the
    /// second task ends without an answer too; the fault of `command`, and that of a recovery that fails.
    async fn ask<T>(
        &self,
        id: &str,
        limit: Duration,
        mut command: impl FnMut(oneshot::Sender<T>) -> Result<Command, Fault>,
    ) -> Result<Option<T>, Fault> {
        let end = Instant::now() + limit;
        for _ in 0..2 {
            let (done, answer) = oneshot::channel();
            let command = command(done)?;
            let ends = matches!(command, Command::Finish { .. });
            let contact = {
                let mut table = self.serving()?;
                let Some(container) = table.find(id)? else {
                    return Ok(None);
                };
                container.finishing |= ends;
                container.handle.clone()
            };
            let answered = contact
                .ask(id, command, answer, end - Instant::now())
                .await?;
            if answered.is_some() {
                if ends {
                    // The task ends with its answer. Of concurrent calls, the first one adds its counters to the totals.
                    self.table.lock().retire(id, &contact);
                }
                return Ok(answered);
            }
            // The answer's end may be dropped a moment before the channel.
            if timeout_at(end, contact.closed()).await.is_err() {
                break;
            }
        }
        Err(Fault::new(
            FaultKind::Busy,
            format!("the task of container {id} ended without an answer; retry"),
        ))
    }

    /// A page of the containers, in the order of their ids. Those whose tasks have panicked are among them, as their
    /// output is still to be logged.
    pub(crate) fn list(&self, after: Option<&str>) -> Result<Page, Fault> {
        let table = self.serving()?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = table.live.range::<str, _>((start, Bound::Unbounded));
        let entries: Vec<_> = rest
            .by_ref()
            .filter(|(id, handle)| !handle.handle.is_closed() || table.shared.state.contains(id))
            .take(PAGE_LEN)
            .map(|(id, handle)| Entry {
                id: id.clone(),
                counters: handle.counters.lock().total,
                finishing: handle.finishing,
            })
            .collect();
        let next = rest
            .next()
            .and_then(|_| entries.last().map(|entry| entry.id.clone()));
        Ok(Page { entries, next })
    }

    /// The sums over all containers.
    pub(crate) fn stats(&self) -> Result<Stats, Fault> {
        let mut table = self.serving()?;
        table.forget_abandoned();
        let mut totals = table.finished_totals;
        for handle in table.live.values() {
            totals.add(handle.counters.lock().own());
        }
        let file_systems = table.file_systems();
        let stalls = table.fs_threads.stalls();
        let stalled_containers = if stalls.threads == 0 {
            0
        } else {
            table
                .live
                .values()
                .filter(|container| container.handle.progress().is_stalled())
                .count() as u64
        };
        Ok(Stats {
            containers: table.live.len() as u64,
            recovered: self.recovered,
            stalled: stalls.threads,
            stalled_containers,
            stall_age_ms: u64::try_from(stalls.longest.as_millis()).unwrap_or(u64::MAX),
            stalls: stalls.total,
            finished: table.finished,
            totals,
            pid: std::process::id(),
            file_systems,
        })
    }

    /// Ends all tasks; a later logkeeper recovers the containers.
    pub(crate) async fn stop(&self) {
        let live = {
            let mut table = self.table.lock();
            table.stopped = true;
            std::mem::take(&mut table.live)
        };
        // All command channels are closed before the first task is awaited, apart from those of commands in progress.
        let tasks: Vec<_> = live
            .into_iter()
            .map(
                |(
                    id,
                    ContainerTask {
                        task,
                        handle: contact,
                        ..
                    },
                )| (id, task, contact.progress()),
            )
            .collect();
        let end = Instant::now() + COMMAND_LIMIT;
        for (id, mut task, progress) in tasks {
            if progress.is_stalled() {
                tracing::error!(
                    task = id,
                    "the file system of a log hangs; the next logkeeper recovers the container"
                );
                task.abort();
                continue;
            }
            match timeout_at(end, &mut task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::error!(task = id, %error, "the task of a container panicked")
                }
                Err(_elapsed) => {
                    tracing::error!(
                        task = id,
                        "the task of a container does not end; it is aborted"
                    );
                    task.abort();
                }
            }
        }
    }
}

// === impl Table ===

impl Table {
    /// The file systems with logs, with their containers.
    fn file_systems(&self) -> Vec<LogFileSystem> {
        let mut file_systems = self.fs_threads.file_systems();
        let mut named = 0;
        for (id, container) in &self.live {
            let progress = container.handle.progress();
            let Some(point) = progress.mount_point() else {
                continue;
            };
            let known = file_systems
                .iter_mut()
                .find(|known| known.mount_point == point);
            let Some(known) = known else { continue };
            known.containers += 1;
            if progress.is_full() {
                known.full_pipes += 1;
                if named < MAX_FULL_PIPES {
                    known.full_pipe_ids.push(id.clone());
                    named += 1;
                }
            }
        }
        file_systems
    }

    /// The open container of this request, or a new one.
    fn open(&mut self, spec: LogSpec) -> Result<ContainerHandle, Fault> {
        self.forget_abandoned();
        if self.abandoned.contains_key(&spec.id) {
            let why = format!(
                "container {} was given up: the rest of its output is still being counted, or the file system of its log \
                 hangs; retry",
                spec.id
            );
            return Err(Fault::new(FaultKind::Busy, why));
        }
        if let Some(handle) = self.find(&spec.id)? {
            return match handle {
                ContainerTask {
                    finishing: true, ..
                } => Err(Fault::new(
                    FaultKind::Busy,
                    format!("container {} is being finished", spec.id),
                )),
                ContainerTask {
                    spec: known,
                    handle: contact,
                    ..
                } if *known == spec => Ok(contact.clone()),
                ContainerTask { .. } => Err(Fault::new(
                    FaultKind::Conflict,
                    format!(
                        "container {} is open with other parameters; finish it first",
                        spec.id
                    ),
                )),
            };
        }
        if self.live.len() + self.abandoned.len() >= CONTAINERS {
            let why = format!(
                "cannot open container {}: {CONTAINERS} are open, which is the most",
                spec.id
            );
            return Err(Fault::new(FaultKind::Busy, why));
        }
        Ok(self.insert(spec, Origin::New))
    }

    fn insert(&mut self, spec: LogSpec, origin: Origin) -> ContainerHandle {
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let contact = ContainerHandle::new(commands);
        let counters = Arc::default();
        let common = (Arc::clone(&self.shared), Arc::clone(&self.fs_threads));
        let served = (receiver, Arc::clone(&counters));
        let task = tokio::spawn(run_container(
            spec.clone(),
            origin,
            common,
            contact.progress(),
            served,
        ));
        let handle = ContainerTask {
            spec,
            handle: contact.clone(),
            counters,
            task,
            finishing: false,
        };
        self.live.insert(handle.spec.id.clone(), handle);
        contact
    }

    /// The container with this id. A container that has an entry on disk but no task, because its recovery
    /// failed or its task panicked, is recovered first.
    fn find(&mut self, id: &str) -> Result<Option<&mut ContainerTask>, Fault> {
        if let Some(handle) = self.live.get(id).filter(|handle| handle.handle.is_closed()) {
            let contact = handle.handle.clone();
            self.retire(id, &contact);
        }
        // An id from a request may name any file, so it is checked before it becomes a path.
        if !self.live.contains_key(id) && !self.abandoned.contains_key(id) && is_id(id) {
            let stored = self.shared.state.read(id);
            if let Some(spec) = stored.map_err(|error| io_fault("recover", id, &error))? {
                self.insert(spec, Origin::Known);
            }
        }
        Ok(self.live.get_mut(id))
    }

    /// Removes a container whose task has ended, unless its id has been reused since.
    fn retire(&mut self, id: &str, contact: &ContainerHandle) {
        if self
            .live
            .get(id)
            .is_some_and(|handle| handle.handle.is(contact))
            && let Some(handle) = self.live.remove(id)
            && !handle.handle.has_failed()
        {
            self.finished += 1;
            self.finished_totals.add(handle.counters.lock().own());
        }
    }
}

fn shutting_down() -> Fault {
    Fault::new(FaultKind::Busy, "logkeeper is shutting down")
}

fn unknown(id: &str) -> Fault {
    Fault::new(FaultKind::NotFound, format!("container {id} is not open"))
}

fn io_fault(action: &str, id: &str, error: &io::Error) -> Fault {
    Fault::new(
        FaultKind::Io,
        format!("cannot {action} container {id}: {error}"),
    )
}

/// Returns whether an id can be used as a file name.
fn is_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= MAX_ID
        && !id.starts_with('.')
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Checks what can be checked without file system access.
pub(crate) fn check(spec: &LogSpec) -> Result<(), Fault> {
    let LogSpec {
        id,
        stdout,
        stderr,
        log,
        tty,
        max_line,
    } = spec;
    let refuse = |message: String| Err(Fault::new(FaultKind::InvalidArgument, message));
    if !is_id(id) {
        return refuse(format!(
            "id {id:?} must be 1 to {MAX_ID} letters, digits, `.`, `_`, `-`, not a dot first"
        ));
    }
    if !(1..=MAX_LINE_LIMIT).contains(max_line) {
        return refuse(format!(
            "max_line {max_line} of container {id} must be from 1 to {MAX_LINE_LIMIT}"
        ));
    }
    for (field, path) in [("stdout", stdout), ("stderr", stderr), ("log", log)] {
        if path.as_ref().is_some_and(|path| !path.is_absolute()) {
            return refuse(format!(
                "{field} of container {id} must be an absolute path"
            ));
        }
    }
    if stdout.is_none() && stderr.is_none() {
        return refuse(format!("container {id} has neither stdout nor stderr"));
    }
    if stdout == stderr {
        return refuse(format!(
            "stdout and stderr of container {id} must be two FIFOs"
        ));
    }
    if *tty && stderr.is_some() {
        return refuse(format!(
            "stderr of container {id} must be absent: with tty all output is on stdout"
        ));
    }
    Ok(())
}
