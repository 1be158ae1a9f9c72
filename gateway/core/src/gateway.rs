//! The gateway: decides what each request means and has the backend carry it out.
//!
//! Operations that change state run as spawned tasks of the gateway, so that a caller that goes away leaves
//! nothing half done; concurrent callers of the same operation share one run ([`crate::singleflight`]). An
//! object whose creation outlived its caller stays in the table: the retry finds it under its name. A start
//! does not outlive its last caller: it is given up, and its program does not run on.
//!
//! Calls at the same time are ordered by what they share, each lock in the order of the calls:
//!
//! | calls | order |
//! |---|---|
//! | two creations under one name | one run (`new_sandboxes`, `new_tasks`); another configuration is refused |
//! | start, update, checkpoint, removal of one task | `task_locks`; `TaskState::apply` refuses what does not fit |
//! | a stop, and anything else on the task | it waits for a start in flight, and takes no lock while it waits for the exit; later stops send no second stop signal. A removal stops first, then takes the lock, and stops again if a start came first |
//! | a command, and the end of its task | none: it is refused when the task does not run, and ends with it |
//! | stop, start, note, removal of one sandbox | `sandbox_locks`; its network is attached and detached under it |
//! | a stop of a sandbox, and a creation of a task in it | from the stop on the table adds none; the stop waits for creations in flight, and one that ends later removes its task again |
//! | a removal of an image, and a creation of a task from it | images of tasks in creation count as used |
//! | two leases of devices for one owner | `lease_locks`, until the lease is on disk |
//! | claims of one host port, core or device | the ledger; who comes second is refused, with the holder |
//! | a stop of the daemon, and everything | [`Gateway::shut_down`]; what is left when the time is over is as after a kill |

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{Backend, BackendStatus};
use crate::error::{Error, Result};
use crate::event::{EventBus, Subscription};
use crate::id::{Owner, SandboxId, TaskId};
use crate::image::ImageStore;
use crate::keyed_lock::KeyedLock;
use crate::ledger::{Compute, LeaseStore, Ledger, MemoryStore};
use crate::object::{Sandbox, Task};
use crate::operation::{Caller, Operations};
use crate::reload::Reloadable;
use crate::singleflight::Singleflight;
use crate::state::TaskState;
use crate::table::{Counts, Table};
use crate::trace::TracePlace;
use crate::waiters::Waiters;

mod callers;
mod checkpoint;
mod compute;
mod device_views;
mod exec;
mod image;
mod images_in_creation;
mod lease;
mod ledger;
mod ledger_report;
mod limits;
mod lost_tasks;
mod operations;
mod outage;
mod provider;
mod pull_counts;
mod queries;
mod resource_use;
mod sandbox;
mod scope;
mod start_limiter;
mod stream;
mod task;
mod task_start;
mod task_watch;
mod volume;

pub use callers::Callers;
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
    images_in_creation: images_in_creation::ImagesInCreation,
    /// Serialises the lease requests of one owner: a repeated request is answered only after the first lease
    /// is on disk.
    lease_locks: KeyedLock<Owner>,
    limits: Reloadable<Limits>,
    recovered: watch::Sender<bool>,
    /// The operations that change something, with what they do at the moment.
    registry: Operations,
    /// The asynchronous tasks of operations in flight.
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
    /// Who is answerable for operations outside of a caller's own request.
    caller: Option<Caller>,
    /// Where such operations are in a trace.
    place: Option<TracePlace>,
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
    /// The callers among `waiters`.
    fn callers(&self, waiters: Waiters) -> Callers {
        Callers::new(waiters, self.shared.shutdown.clone())
    }

    /// A gateway over `backend` that has not recovered yet: it refuses every request with `Unavailable` until
    /// [`Gateway::recover`] has succeeded. Device leases that no sandbox uses yet are kept in memory only and
    /// are lost when it ends.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, limits: Limits) -> Self {
        Self::with_leases(backend, limits, Arc::new(MemoryStore::default()), Operations::default())
    }

    /// As [`Gateway::new`]; leases that no sandbox uses yet are kept in `leases`, and the operations in flight
    /// are registered in `registry`.
    #[must_use]
    pub fn with_leases(
        backend: Arc<dyn Backend>,
        limits: Limits,
        leases: Arc<dyn LeaseStore>,
        registry: Operations,
    ) -> Self {
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
            images_in_creation: images_in_creation::ImagesInCreation::default(),
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
            registry,
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
            recovered.tasks.iter().filter(|task| task.state.is_running()).map(|task| task.id).collect();
        let pending = recovered.tasks.iter().filter(|task| task.state == TaskState::Unattended);
        let pending: Vec<_> = pending.map(|task| task.id).collect();
        let sandboxes = recovered.sandboxes.clone();
        let removals = recovered.removals.clone();
        self.recover_ledger(&recovered).await;
        self.shared.table.load(recovered);
        for id in pending {
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

    /// Cancelled when the gateway begins to shut down. Callers that go away from then on withdraw nothing:
    /// what ends because the daemon does has to end by this, not before.
    #[must_use]
    pub fn ending(&self) -> CancellationToken {
        self.shared.shutdown.child_token()
    }

    /// The view of one owner.
    #[must_use]
    pub fn scope(&self, owner: Owner) -> Scope {
        Scope::new(self.clone(), owner)
    }

    /// The health of the backend. Of the node's network it is what [`Gateway::fresh_status`] found last.
    #[must_use]
    pub fn status(&self) -> BackendStatus {
        self.shared.backend.status()
    }

    /// The health of the backend, after a look at the node's network. Takes a few seconds at most. Cancel-safe.
    pub async fn fresh_status(&self) -> BackendStatus {
        self.shared.backend.fresh_status().await
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

/// Maps `NotFound` to success, for idempotent stops and removals.
fn ignore_not_found(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == crate::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
