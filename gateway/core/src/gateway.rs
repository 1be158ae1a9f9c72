//! The gateway: decides what each request means and has the backend carry it out.
//!
//! Operations that change state run as spawned tasks of the gateway, so that a caller that goes away leaves
//! nothing half done; concurrent callers of the same operation share one run ([`crate::singleflight`]). An
//! object whose creation outlived its caller stays in the table: the retry finds it under its name.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
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
use crate::reload::Reloadable;
use crate::singleflight::Singleflight;
use crate::spec::Reserved;
use crate::state::TaskState;
use crate::table::{Counts, Sandbox, Table, Task};

mod checkpoint;
mod compute;
mod device_views;
mod exec;
mod image;
mod lease;
mod ledger;
mod ledger_report;
mod limits;
mod lost_tasks;
mod outage;
mod provider;
mod pull_counts;
mod queries;
mod resource_use;
mod sandbox;
mod start_limiter;
mod stream;
mod task;
mod task_watch;
mod volume;

pub use exec::ExecOutput;
pub use lease::Leased;
pub use ledger_report::LedgerReport;
pub use limits::{Limits, NamedDevices};
pub use pull_counts::PullsByResult;
pub use resource_use::ResourceUse;

/// One node's sandboxes, tasks and images.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    table: Table,
    ledger: Mutex<Ledger>,
    /// Persistent store of the leases that no sandbox uses yet.
    leases: Arc<dyn LeaseStore>,
    views: device_views::DeviceViews,
    provider: provider::CachedProvider,
    pull_counts: pull_counts::PullCounts,
    /// Serialises the lease requests of one owner: a repeated request is answered only after the first lease
    /// is on disk.
    lease_locks: KeyedLock<Owner>,
    limits: Reloadable<Limits>,
    recovered: watch::Sender<bool>,
    /// Operations in flight.
    operations: TaskTracker,
    /// Watchers of tasks and sandboxes. Operations wait for what the watchers report, so watchers are stopped
    /// last.
    watchers: TaskTracker,
    /// Cancelled when the gateway begins to shut down: from then on nothing is reported and no failed
    /// operation is retried.
    shutdown: CancellationToken,
    /// Cancelled when no operation waits for the watchers any more.
    unwatched: CancellationToken,
    new_sandboxes: Singleflight<String, Arc<Sandbox>>,
    new_tasks: Singleflight<NewTask, Arc<Task>>,
    sandbox_ops: Singleflight<Op<SandboxId>, ()>,
    task_ops: Singleflight<Op<TaskId>, ()>,
    lost_tasks: lost_tasks::LostTasks,
    start_limiter: start_limiter::StartLimiter,
    exec_counts: exec::CommandCounts,
    /// Output of commands that is being collected for `exec_sync` callers.
    exec_output: exec::OutputBudget,
    /// Serialises starts, updates and removals of one task.
    task_locks: KeyedLock<TaskId>,
    /// Serialises notes, starts, stops and recording the removal of one sandbox.
    sandbox_locks: KeyedLock<SandboxId>,
}

/// The name of a task being created, and the sandbox it is created in.
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

/// One owner's view of the gateway, and the only access that a frontend has. It can neither see nor change
/// another owner's objects.
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
    /// A gateway over `backend` that has not recovered yet: it refuses every request with `Unavailable` until
    /// [`Gateway::recover`] has succeeded. Device leases that no sandbox uses yet are kept in memory only and
    /// are lost when it ends.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, limits: Limits) -> Self {
        Self::with_leases(backend, limits, Arc::new(MemoryStore::default()))
    }

    /// As [`Gateway::new`]; leases that no sandbox uses yet are kept in `leases`.
    #[must_use]
    pub fn with_leases(backend: Arc<dyn Backend>, limits: Limits, leases: Arc<dyn LeaseStore>) -> Self {
        let operations = TaskTracker::new();
        let shared = Shared {
            backend,
            table: Table::new(EventBus::default()),
            ledger: Mutex::new(Ledger::new(Compute::new(limits.capacity, limits.overcommit))),
            start_limiter: start_limiter::StartLimiter::new(limits.starts_per_owner),
            leases,
            views: device_views::DeviceViews::default(),
            provider: provider::CachedProvider::default(),
            pull_counts: pull_counts::PullCounts::default(),
            lease_locks: KeyedLock::default(),
            limits: limits.into(),
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

    /// Replaces the limits from now on, as a reload of the configuration does. Operations in flight may end
    /// by the former ones; leases of devices are measured by the new ones from the next tick on. The capacity
    /// of the node and the starts at a time stay those that the gateway was created with.
    pub fn set_limits(&self, limits: Limits) {
        self.ledger().compute.set_policy(limits.overcommit);
        let capacity = self.shared.limits.get().capacity;
        self.shared.limits.set(Limits { capacity, ..limits });
    }

    /// Runs the backend's recovery, fills the table and watches every task that runs. Call it once, before
    /// any other call.
    ///
    /// # Errors
    /// Those of [`Backend::recover`]; it may be called again after an error.
    pub async fn recover(&self) -> Result<()> {
        let recovered = self.shared.backend.recover().await?;
        let watched: Vec<_> =
            recovered.tasks.iter().filter(|task| task.state.may_run()).map(|task| task.id).collect();
        let sandboxes = recovered.sandboxes.clone();
        let pending_starts = recovered.pending_starts.clone();
        let removals = recovered.removals.clone();
        self.recover_ledger(&recovered).await;
        self.shared.table.load(recovered);
        for id in pending_starts {
            // This cannot wait: no request is served yet. Requests for this task will wait for this lock.
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

    /// Waits until requests are served. Cancel-safe.
    pub async fn recovered(&self) {
        // The sender lives as long as the gateway.
        let _ = self.shared.recovered.subscribe().wait_for(|recovered| *recovered).await;
    }

    /// Whether requests are served.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        *self.shared.recovered.borrow()
    }

    /// Waits for the operations in flight, stops watching tasks, and then waits for the backend's background
    /// work; `patience` limits all of it together. Tasks continue to run.
    ///
    /// # Errors
    /// `DeadlineExceeded` if something is still in flight; it is cut off when the process exits.
    pub async fn shut_down(&self, patience: Duration) -> Result<()> {
        let Shared { operations, watchers, shutdown, unwatched, backend, .. } = &*self.shared;
        let deadline = Instant::now() + patience;
        shutdown.cancel();
        operations.close();
        let done = timeout_at(deadline, operations.wait()).await;
        unwatched.cancel();
        watchers.close();
        let drained = timeout_at(deadline, async {
            watchers.wait().await;
            backend.drain().await;
        });
        let drained = drained.await;
        done.map_err(|_| Error::deadline(format!("{} operations are still in flight", operations.len())))?;
        drained.map_err(|_| Error::deadline("the backend is still cleaning up"))
    }

    /// The view of one owner.
    #[must_use]
    pub fn scope(&self, owner: Owner) -> Scope {
        Scope { gateway: self.clone(), owner }
    }

    /// The health of the backend.
    #[must_use]
    pub fn status(&self) -> BackendStatus {
        self.shared.backend.status()
    }

    /// The number of sandboxes by owner and state.
    #[must_use]
    pub fn count_sandboxes(&self) -> Counts {
        self.shared.table.count_sandboxes()
    }

    /// The number of tasks by owner and state.
    #[must_use]
    pub fn count_tasks(&self) -> Counts {
        self.shared.table.count_tasks()
    }

    /// The number of image pulls that have ended, by result.
    #[must_use]
    pub fn count_pulls(&self) -> PullsByResult {
        self.shared.pull_counts.current()
    }

    /// The images; they are not scoped to an owner.
    #[must_use]
    pub fn images(&self) -> &dyn ImageStore {
        self.shared.backend.images()
    }

    /// The events of all owners from now on.
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
    /// The owner of this view.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        self.owner
    }

    /// The health of the backend; also available before recovery.
    #[must_use]
    pub fn status(&self) -> BackendStatus {
        self.gateway.status()
    }

    /// Whether requests are served, that is, whether recovery has finished.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.gateway.is_recovered()
    }

    /// The runtime handlers, the default one first.
    #[must_use]
    pub fn handlers(&self) -> Vec<Handler> {
        self.gateway.shared.backend.handlers()
    }

    /// All processors and memory of the node; `None` if not known.
    #[must_use]
    pub fn capacity(&self) -> Option<Reserved> {
        self.gateway.shared.limits.get().capacity
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

    /// The sandbox with this id, or the only one whose id has this prefix.
    ///
    /// # Errors
    /// `NotFound` if there is none, also for a text that cannot be an id; `InvalidArgument` if the prefix is
    /// ambiguous.
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

    /// The task with this id, or the only one whose id has this prefix.
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

    /// The sandbox with this name, if it exists.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn sandbox_named(&self, name: &str) -> Result<Option<Arc<Sandbox>>> {
        Ok(self.gateway.ready()?.table.sandbox_named(self.owner, name))
    }

    /// This owner's sandboxes whose names have this prefix. The cost does not depend on the number of other
    /// sandboxes.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn sandboxes_with_prefix(&self, beginning: &str) -> Result<Vec<Arc<Sandbox>>> {
        Ok(self.gateway.ready()?.table.sandboxes_with_prefix(self.owner, beginning))
    }

    /// The task with this name, if it exists.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn task_named(&self, name: &str) -> Result<Option<Arc<Task>>> {
        Ok(self.gateway.ready()?.table.task_named(self.owner, name))
    }

    /// Waits until requests are served. Cancel-safe.
    pub async fn recovered(&self) {
        self.gateway.recovered().await;
    }

    /// Completes when the gateway shuts down. Whatever waits for it may then stop half way; tasks continue to
    /// run.
    pub fn ended(&self) -> WaitForCancellationFutureOwned {
        self.gateway.shared.shutdown.clone().cancelled_owned()
    }

    /// Runs work that continues if the caller goes away; `what` names it in errors. A shutdown waits for it.
    /// Cancel-safe.
    ///
    /// # Errors
    /// Those of the work; `Internal` if it panics or is aborted.
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

/// Maps `NotFound` to success, for idempotent stops and removals.
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
        Some(_) => Err(Error::invalid(
            format!("{what} id {prefix:?}"),
            "is the prefix of several ids: give more digits",
        )),
    }
}
