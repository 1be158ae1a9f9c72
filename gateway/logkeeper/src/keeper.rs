//! The table of containers: checks requests and passes them to the task they concern.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Error;
use crate::container::{Command, Container, Shared, lock};
use crate::fifo::PipeBudget;
use crate::follow::Follower;
use crate::format::{MAX_LINE_LIMIT, Stream};
use crate::journal::Scratch;
use crate::protocol::{
    Counters, Entry, Fault, FaultKind, Finished, LogSpec, MAX_DRAIN_MS, MAX_ID, PAGE_LEN, Page, Stats,
};
use crate::state_dir::StateDir;

/// How many streams may be followed at once; each takes two descriptors.
const FOLLOWERS: usize = 512;

/// How many commands may wait for one container.
const COMMANDS: usize = 8;

/// How long a container's task may take for a command beyond what the command itself allows.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// All containers of one state directory.
#[derive(Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    recovered: u64,
    followers: Arc<Semaphore>,
    table: Mutex<Table>,
}

/// What requests change; locked for short, blocking steps and never over an await.
#[derive(Debug, Default)]
struct Table {
    live: BTreeMap<String, Handle>,
    finished: u64,
    finished_totals: Counters,
    /// Set when the keeper goes down, after which nothing is opened.
    stopped: bool,
}

/// A container's task as requests see it.
#[derive(Debug)]
struct Handle {
    spec: LogSpec,
    commands: mpsc::Sender<Command>,
    counters: Arc<Mutex<Counters>>,
    task: JoinHandle<()>,
    finishing: bool,
}

// === impl Keeper ===

impl Keeper {
    /// Locks a state directory and takes up the containers in it.
    pub(crate) fn recover(state_dir: &Path) -> Result<Self, Error> {
        let state = StateDir::open(state_dir)?;
        let specs = state.load()?;
        let shared = Arc::new(Shared {
            state,
            budget: PipeBudget::from_system(),
            scratch: Mutex::new(Scratch::new()),
        });
        let mut table = Table::default();
        for spec in specs {
            match Container::recover(&spec, &shared) {
                Ok(Some(container)) => table.insert(spec, container),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(id = spec.id, %error, "cannot take up a container; open it again")
                }
            }
        }
        let recovered = table.live.len() as u64;
        let followers = Arc::new(Semaphore::new(FOLLOWERS));
        Ok(Self { shared, recovered, followers, table: Mutex::new(table) })
    }

    /// Starts to log a container; the same again changes nothing.
    pub(crate) fn open(&self, spec: LogSpec) -> Result<(), Fault> {
        check(&spec)?;
        let mut table = lock(&self.table);
        if table.stopped {
            return Err(Fault::new(FaultKind::Busy, "logkeeper is going down"));
        }
        if let Some(handle) = table.find(&spec.id, &self.shared)? {
            return match handle {
                Handle { finishing: true, .. } => {
                    Err(Fault::new(FaultKind::Busy, format!("container {} is being finished", spec.id)))
                }
                Handle { spec: known, .. } if *known == spec => Ok(()),
                Handle { .. } => Err(Fault::new(
                    FaultKind::Conflict,
                    format!("container {} is open with other parameters; finish it first", spec.id),
                )),
            };
        }
        let container = Container::open(&spec, &self.shared).map_err(|error| {
            let unusable = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput);
            let kind = if unusable { FaultKind::InvalidArgument } else { FaultKind::Io };
            Fault::new(kind, format!("cannot open container {}: {error}", spec.id))
        })?;
        table.insert(spec, container);
        Ok(())
    }

    /// Creates a container's log anew.
    pub(crate) async fn reopen(&self, id: &str) -> Result<(), Fault> {
        let unknown = || Fault::new(FaultKind::NotFound, format!("container {id} is not open"));
        let commands = lock(&self.table).find(id, &self.shared)?.ok_or_else(unknown)?.commands.clone();
        let (done, answer) = oneshot::channel();
        match exchange(id, &commands, Command::Reopen(done), answer, COMMAND_LIMIT).await? {
            Some(result) => result.map_err(|error| io_fault("reopen the log of", id, &error)),
            None => Err(unknown()),
        }
    }

    /// Logs a container's last output and forgets it; unknown ids have nothing to finish.
    pub(crate) async fn finish(&self, id: &str, drain_ms: u64) -> Result<Finished, Fault> {
        let drain = Duration::from_millis(drain_ms.min(MAX_DRAIN_MS));
        let commands = {
            let mut table = lock(&self.table);
            let Some(handle) = table.find(id, &self.shared)? else { return Ok(Finished::default()) };
            handle.finishing = true;
            handle.commands.clone()
        };
        let (done, answer) = oneshot::channel();
        let limit = drain + COMMAND_LIMIT;
        let result = exchange(id, &commands, Command::Finish { drain, done }, answer, limit).await?;
        // The task is over when it answers; whoever comes first puts its counters to the totals.
        lock(&self.table).retire(id, &commands);
        match result {
            Some(Ok(counters)) => Ok(counters.into()),
            Some(Err(error)) => Err(io_fault("forget", id, &error)),
            None => Ok(Finished::default()),
        }
    }

    /// Lets a client follow one output stream of a container.
    pub(crate) async fn attach(
        &self,
        id: &str,
        stream: Stream,
        from: Option<u64>,
    ) -> Result<Follower, Fault> {
        let unknown = || Fault::new(FaultKind::NotFound, format!("container {id} is not open"));
        let place = Arc::clone(&self.followers).try_acquire_owned().map_err(|_full| {
            Fault::new(FaultKind::Busy, format!("{FOLLOWERS} streams are attached to, which is the most"))
        })?;
        let commands = lock(&self.table).find(id, &self.shared)?.ok_or_else(unknown)?.commands.clone();
        let (done, answer) = oneshot::channel();
        let command = Command::Attach { stream, from, place, done };
        match exchange(id, &commands, command, answer, COMMAND_LIMIT).await? {
            Some(Ok(Some(follower))) => Ok(follower),
            Some(Ok(None)) => {
                let why = format!("container {id} has no stream {}", stream.as_str());
                Err(Fault::new(FaultKind::InvalidArgument, why))
            }
            Some(Err(error)) => Err(io_fault("attach to", id, &error)),
            None => Err(unknown()),
        }
    }

    /// A page of containers in the order of their ids.
    pub(crate) fn list(&self, after: Option<&str>) -> Page {
        let table = lock(&self.table);
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = table.live.range::<str, _>((start, Bound::Unbounded));
        let entries: Vec<_> = rest
            .by_ref()
            .filter(|(_, handle)| !handle.commands.is_closed())
            .take(PAGE_LEN)
            .map(|(id, handle)| Entry {
                id: id.clone(),
                counters: *lock(&handle.counters),
                finishing: handle.finishing,
            })
            .collect();
        let next = rest.next().and_then(|_| entries.last().map(|entry| entry.id.clone()));
        Page { entries, next }
    }

    /// The sums over all containers.
    pub(crate) fn stats(&self) -> Stats {
        let table = lock(&self.table);
        let mut totals = table.finished_totals;
        for handle in table.live.values() {
            totals.add(*lock(&handle.counters));
        }
        Stats {
            containers: table.live.len() as u64,
            recovered: self.recovered,
            finished: table.finished,
            totals,
        }
    }

    /// Ends all tasks and leaves the containers to a later keeper.
    pub(crate) async fn stop(&self) {
        let live = {
            let mut table = lock(&self.table);
            table.stopped = true;
            std::mem::take(&mut table.live)
        };
        // First all channels are closed, then each task is awaited.
        let tasks: Vec<_> = live.into_iter().map(|(id, Handle { task, .. })| (id, task)).collect();
        for (id, mut task) in tasks {
            match timeout(COMMAND_LIMIT, &mut task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(id, %error, "the task of a container panicked"),
                Err(_elapsed) => {
                    tracing::error!(id, "the task of a container does not end; it is aborted");
                    task.abort();
                }
            }
        }
    }
}

// === impl Table ===

impl Table {
    fn insert(&mut self, spec: LogSpec, container: Container) {
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let counters = container.counters();
        let task = tokio::spawn(container.run(receiver));
        self.live.insert(spec.id.clone(), Handle { spec, commands, counters, task, finishing: false });
    }

    /// The container with this id. One that is known on disk but has no task, because it could not be taken up or
    /// its task panicked, is taken up first.
    fn find(&mut self, id: &str, shared: &Arc<Shared>) -> Result<Option<&mut Handle>, Fault> {
        if self.live.get(id).is_some_and(|handle| handle.commands.is_closed()) {
            let commands = self.live[id].commands.clone();
            self.retire(id, &commands);
        }
        // An id that is not live may name any file, so it is checked before it becomes a path.
        if !self.stopped && !self.live.contains_key(id) && is_id(id) {
            let taken_up = shared.state.read(id).and_then(|stored| match stored {
                Some(spec) => Ok(Container::recover(&spec, shared)?.map(|container| (spec, container))),
                None => Ok(None),
            });
            if let Some((spec, container)) = taken_up.map_err(|error| io_fault("take up", id, &error))? {
                self.insert(spec, container);
            }
        }
        Ok(self.live.get_mut(id))
    }

    /// Removes a container whose task has ended, unless its id has been taken by another since.
    fn retire(&mut self, id: &str, commands: &mpsc::Sender<Command>) {
        if self.live.get(id).is_some_and(|handle| handle.commands.same_channel(commands))
            && let Some(handle) = self.live.remove(id)
        {
            self.finished += 1;
            self.finished_totals.add(*lock(&handle.counters));
        }
    }
}

/// Sends a command and awaits its answer; `None` if the container's task ended without one.
async fn exchange<T>(
    id: &str,
    commands: &mpsc::Sender<Command>,
    command: Command,
    answer: oneshot::Receiver<T>,
    limit: Duration,
) -> Result<Option<T>, Fault> {
    let answered = timeout(limit, async {
        match commands.send(command).await {
            Ok(()) => answer.await.ok(),
            Err(_closed) => None,
        }
    });
    answered.await.map_err(|_elapsed| Fault::new(FaultKind::Busy, format!("container {id} does not answer")))
}

fn io_fault(action: &str, id: &str, error: &io::Error) -> Fault {
    Fault::new(FaultKind::Io, format!("cannot {action} container {id}: {error}"))
}

/// Whether an id can be the name of a file of ours.
fn is_id(id: &str) -> bool {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !id.is_empty() && id.len() <= MAX_ID && !id.starts_with('.') && id.bytes().all(sound)
}

/// Checks what can be checked without looking at the file system.
fn check(spec: &LogSpec) -> Result<(), Fault> {
    let LogSpec { id, stdout, stderr, log, tty, max_line } = spec;
    let refuse = |message: String| Err(Fault::new(FaultKind::InvalidArgument, message));
    if !is_id(id) {
        return refuse(format!(
            "id {id:?} must be 1 to {MAX_ID} letters, digits, `.`, `_`, `-`, not a dot first"
        ));
    }
    if !(1..=MAX_LINE_LIMIT).contains(max_line) {
        return refuse(format!("max_line {max_line} of container {id} must be from 1 to {MAX_LINE_LIMIT}"));
    }
    for (field, path) in [("stdout", stdout), ("stderr", stderr), ("log", log)] {
        if path.as_ref().is_some_and(|path| !path.is_absolute()) {
            return refuse(format!("{field} of container {id} must be an absolute path"));
        }
    }
    if stdout.is_none() && stderr.is_none() {
        return refuse(format!("container {id} has neither stdout nor stderr"));
    }
    if stdout == stderr {
        return refuse(format!("stdout and stderr of container {id} must be two FIFOs"));
    }
    if *tty && stderr.is_some() {
        return refuse(format!("stderr of container {id} must be absent: with tty all output is on stdout"));
    }
    Ok(())
}
