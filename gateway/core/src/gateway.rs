//! The gateway: decides what each request means and has the backend do it.
//!
//! Changing operations run as tasks of the gateway itself, so that a caller who goes away leaves nothing half done; callers who
//! ask for the same thing at the same time share one run ([`crate::flight`]). A creation whose caller has gone is *parked* in the
//! table: the retry finds it under its name.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

use crate::backend::{Backend, BackendStatus, Handler};
use crate::error::{Error, Result};
use crate::event::{EventBus, Subscription};
use crate::id::{Owner, SandboxId, TaskId};
use crate::image::ImageStore;
use crate::keyed_lock::KeyedLock;
use crate::ledger::{Compute, LeaseStore, Ledger, MemoryStore};
use crate::singleflight::Singleflight;
use crate::spec::Reserved;
use crate::state::TaskState;
use crate::table::{Counts, Sandbox, Table, Task};

mod checkpoint;
mod compute;
mod exec;
mod image;
mod lease;
mod ledger;
mod limits;
mod lost_tasks;
mod outage;
mod provider;
mod queries;
mod sandbox;
mod start_limiter;
mod stream;
mod task;
mod volume;

pub use exec::ExecOutput;
pub use lease::{Leased, ResourceUse};
pub use ledger::LedgerReport;
pub use limits::{Limits, NamedDevices};

/// One node's sandboxes, tasks and images.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    table: Table,
    ledger: Mutex<Ledger>,
    /// Leases that nothing has been made with, on disk.
    leases: Arc<dyn LeaseStore>,
    views: lease::DeviceViews,
    provider: provider::CachedProvider,
    /// Leases of one owner come one after the other: the same question has an answer only when the first is on disk.
    lease_locks: KeyedLock<Owner>,
    limits: Limits,
    recovered: watch::Sender<bool>,
    /// What was asked for.
    operations: TaskTracker,
    /// Who watches tasks and sandboxes. Operations wait for what these see, so they go last.
    watchers: TaskTracker,
    /// The gateway shuts down: nobody is told of anything more, and what fails is not tried again.
    shutdown: CancellationToken,
    /// No operation waits for the watchers any more.
    unwatched: CancellationToken,
    new_sandboxes: Singleflight<String, Arc<Sandbox>>,
    new_tasks: Singleflight<NewTask, Arc<Task>>,
    sandbox_ops: Singleflight<Op<SandboxId>, ()>,
    task_ops: Singleflight<Op<TaskId>, ()>,
    lost_tasks: lost_tasks::LostTasks,
    start_limiter: start_limiter::StartLimiter,
    exec_counts: exec::CommandCounts,
    /// What commands have written that is being collected for their callers.
    exec_output: exec::OutputBudget,
    /// Starts, updates and removals of one task come one after the other.
    task_locks: KeyedLock<TaskId>,
    /// A note, a start, a stop and the word that it is to be removed come one after the other for one sandbox.
    sandbox_locks: KeyedLock<SandboxId>,
}

/// The name of a task being made, and the sandbox it is made in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct NewTask {
    name: String,
    sandbox: SandboxId,
}

impl std::fmt::Display for NewTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "task {}", self.name)
    }
}

/// An operation on one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op<I> {
    Start(I),
    Stop(I),
    Remove(I),
}

impl<I: std::fmt::Display> std::fmt::Display for Op<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start(id) => write!(f, "start of {id}"),
            Self::Stop(id) => write!(f, "stop of {id}"),
            Self::Remove(id) => write!(f, "removal of {id}"),
        }
    }
}

/// One owner's view of the gateway: the only thing a frontend gets. It can neither see nor touch what another owner made.
#[derive(Clone)]
pub struct Scope {
    gateway: Gateway,
    owner: Owner,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("table", &self.shared.table).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope").field("owner", &self.owner).finish_non_exhaustive()
    }
}

// === impl Gateway ===

impl Gateway {
    /// A gateway over `backend` that has not yet recovered: it refuses every request with `Unavailable` until
    /// [`Gateway::recover`] has succeeded. It forgets the leases of devices that nothing has been made with when it ends.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, limits: Limits) -> Self {
        Self::with_leases(backend, limits, Arc::new(MemoryStore::default()))
    }

    /// As [`Gateway::new`]; what is leased and not made use of is kept in `leases`.
    #[must_use]
    pub fn with_leases(backend: Arc<dyn Backend>, limits: Limits, leases: Arc<dyn LeaseStore>) -> Self {
        let operations = TaskTracker::new();
        let shared = Shared {
            backend,
            table: Table::new(EventBus::default()),
            ledger: Mutex::new(Ledger::new(Compute::new(limits.capacity, limits.overcommit))),
            start_limiter: start_limiter::StartLimiter::new(limits.starts_per_owner),
            leases,
            views: lease::DeviceViews::default(),
            provider: provider::CachedProvider::default(),
            lease_locks: KeyedLock::default(),
            limits,
            recovered: watch::Sender::new(false),
            new_sandboxes: Singleflight::new(operations.clone()),
            new_tasks: Singleflight::new(operations.clone()),
            sandbox_ops: Singleflight::new(operations.clone()),
            task_ops: Singleflight::new(operations.clone()),
            lost_tasks: lost_tasks::LostTasks::default(),
            exec_counts: exec::CommandCounts::default(),
            exec_output: exec::OutputBudget::default(),
            task_locks: KeyedLock::default(),
            sandbox_locks: KeyedLock::default(),
            operations,
            watchers: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            unwatched: CancellationToken::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Lets the backend clean up, fills the table and watches every task that runs. Call it once, before anything else.
    ///
    /// # Errors
    /// Those of [`Backend::recover`]; it may then be called again.
    pub async fn recover(&self) -> Result<()> {
        let recovered = self.shared.backend.recover().await?;
        let watched: Vec<_> =
            recovered.tasks.iter().filter(|task| task.state.may_run()).map(|task| task.id).collect();
        let sandboxes = recovered.sandboxes.clone();
        let unsettled = recovered.pending_starts.clone();
        let removals = recovered.removals.clone();
        self.recover_ledger(&recovered).await;
        self.shared.table.load(recovered);
        for id in unsettled {
            // Nobody else can have a turn yet: requests for this task wait from the first on.
            self.resume_start(id, self.shared.task_locks.lock(id).await);
        }
        for sandbox in &sandboxes {
            self.watch_sandbox(sandbox);
        }
        for id in watched {
            self.watch_exit(id);
        }
        for id in removals {
            self.resume_removal(id);
        }
        self.shared.recovered.send_replace(true);
        Ok(())
    }

    /// Returns once requests are served. Cancel-safe.
    pub async fn recovered(&self) {
        // The sender lives as long as the gateway.
        let _ = self.shared.recovered.subscribe().wait_for(|recovered| *recovered).await;
    }

    /// Whether requests are served.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        *self.shared.recovered.borrow()
    }

    /// Waits for the operations in flight, stops watching tasks, and waits for what the backend is at: at most this long in all. Tasks go
    /// on running.
    ///
    /// # Errors
    /// `DeadlineExceeded` if something is still in flight; it is cut off when the process ends.
    pub async fn shut_down(&self, patience: Duration) -> Result<()> {
        let Shared { operations, watchers, shutdown, unwatched, backend, .. } = &*self.shared;
        let deadline = Instant::now() + patience;
        shutdown.cancel();
        operations.close();
        let done = timeout_at(deadline, operations.wait()).await;
        unwatched.cancel();
        watchers.close();
        let wound_up = timeout_at(deadline, async {
            watchers.wait().await;
            backend.drain().await;
        });
        let wound_up = wound_up.await;
        done.map_err(|_| Error::deadline(format!("{} operations are still in flight", operations.len())))?;
        wound_up.map_err(|_| Error::deadline("the backend still clears up after what has ended"))
    }

    /// The view of one owner.
    #[must_use]
    pub fn scope(&self, owner: Owner) -> Scope {
        Scope { gateway: self.clone(), owner }
    }

    /// How the backend is.
    #[must_use]
    pub fn status(&self) -> BackendStatus {
        self.shared.backend.status()
    }

    /// Sandboxes by owner and state.
    #[must_use]
    pub fn count_sandboxes(&self) -> Counts {
        self.shared.table.count_sandboxes()
    }

    /// Tasks by owner and state.
    #[must_use]
    pub fn count_tasks(&self) -> Counts {
        self.shared.table.count_tasks()
    }

    /// The images; they have no owner.
    #[must_use]
    pub fn images(&self) -> &dyn ImageStore {
        self.shared.backend.images()
    }

    /// Events of all owners from now on.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        self.shared.table.events().subscribe(None)
    }

    fn ready(&self) -> Result<&Shared> {
        if self.is_recovered() {
            Ok(&self.shared)
        } else {
            Err(Error::unavailable("the gateway is still recovering what its predecessor left: try again"))
        }
    }
}

// === impl Scope ===

impl Scope {
    /// The owner whose view this is.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        self.owner
    }

    /// How the backend is; answers also before recovery.
    #[must_use]
    pub fn status(&self) -> BackendStatus {
        self.gateway.status()
    }

    /// Whether requests are served: what a predecessor left has been recovered.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.gateway.is_recovered()
    }

    /// The runtime handlers, the default one first.
    #[must_use]
    pub fn handlers(&self) -> Vec<Handler> {
        self.gateway.shared.backend.handlers()
    }

    /// All processors and memory of the node; `None` if that is not known.
    #[must_use]
    pub fn capacity(&self) -> Option<Reserved> {
        self.gateway.shared.limits.capacity
    }

    /// This owner's events from now on.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        self.gateway.shared.table.events().subscribe(Some(self.owner))
    }

    /// This owner's sandboxes.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn sandboxes(&self) -> Result<Vec<Arc<Sandbox>>> {
        Ok(self.gateway.ready()?.table.sandboxes(self.owner))
    }

    /// This owner's tasks.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn tasks(&self) -> Result<Vec<Arc<Task>>> {
        Ok(self.gateway.ready()?.table.tasks(self.owner))
    }

    /// The sandbox of this id, or the only one whose id begins so.
    ///
    /// # Errors
    /// `NotFound` if there is none; an id that matches nothing is never malformed. `InvalidArgument` if it is ambiguous.
    pub fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>> {
        let table = &self.gateway.ready()?.table;
        if let Ok(id) = id.parse::<SandboxId>() {
            return table
                .sandbox(id)
                .filter(|sandbox| sandbox.meta.owner == self.owner)
                .ok_or_else(|| crate::table::no_sandbox(id));
        }
        only_match("sandbox", id, table.sandboxes(self.owner), |sandbox| sandbox.id.to_string())
    }

    /// The task of this id, or the only one whose id begins so.
    ///
    /// # Errors
    /// As for [`Scope::sandbox`].
    pub fn task(&self, id: &str) -> Result<Arc<Task>> {
        let table = &self.gateway.ready()?.table;
        if let Ok(id) = id.parse::<TaskId>() {
            return table
                .task(id)
                .filter(|task| task.meta.owner == self.owner)
                .ok_or_else(|| crate::table::no_task(id));
        }
        only_match("task", id, table.tasks(self.owner), |task| task.id.to_string())
    }

    /// The sandbox that bears this name, if there is one.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn sandbox_named(&self, name: &str) -> Result<Option<Arc<Sandbox>>> {
        Ok(self.gateway.ready()?.table.sandbox_named(self.owner, name))
    }

    /// This owner's sandboxes whose names begin so. What this costs does not grow with the number of the others.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn sandboxes_with_prefix(&self, beginning: &str) -> Result<Vec<Arc<Sandbox>>> {
        Ok(self.gateway.ready()?.table.sandboxes_with_prefix(self.owner, beginning))
    }

    /// The task that bears this name, if there is one.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn task_named(&self, name: &str) -> Result<Option<Arc<Task>>> {
        Ok(self.gateway.ready()?.table.task_named(self.owner, name))
    }

    /// Returns once requests are served. Cancel-safe.
    pub async fn recovered(&self) {
        self.gateway.recovered().await;
    }

    /// Ends when the gateway shuts down. What it is awaited for may then be left half done, tasks go on.
    pub fn ended(&self) -> WaitForCancellationFutureOwned {
        self.gateway.shared.shutdown.clone().cancelled_owned()
    }

    /// Runs work that goes on when its caller has gone; `what` names it. A gateway that shuts down waits for it. Cancel-safe.
    ///
    /// # Errors
    /// Those of the work; `Internal` if it breaks off.
    pub async fn run_detached<T: Send + 'static>(
        &self,
        what: String,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.gateway.run_detached(what, work).await
    }

    fn running_task(&self, id: &str) -> Result<Arc<Task>> {
        let task = self.task(id)?;
        match task.state {
            TaskState::Running { .. } | TaskState::Stopping { .. } => Ok(task),
            TaskState::Created
            | TaskState::Starting
            | TaskState::Exited { .. }
            | TaskState::Removing { .. } => Err(Error::failed_precondition(format!(
                "task {} is {}, not running",
                task.id,
                task.state.as_str()
            ))),
        }
    }
}

/// Turns "it does not exist" into success, for stops and removals.
fn ignore_not_found(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == crate::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn only_match<T>(what: &str, prefix: &str, all: Vec<Arc<T>>, id: impl Fn(&T) -> String) -> Result<Arc<T>> {
    let missing = || Error::not_found(format!("{what} {prefix:?} does not exist"));
    if prefix.is_empty() {
        return Err(missing());
    }
    let mut found = all.into_iter().filter(|object| id(object).starts_with(prefix));
    let first = found.next().ok_or_else(missing)?;
    match found.next() {
        None => Ok(first),
        Some(_) => {
            Err(Error::invalid(format!("{what} id {prefix:?}"), "begins more than one id: give more digits"))
        }
    }
}
