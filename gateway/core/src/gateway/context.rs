//! State and methods that all components of the gateway share.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::callers::Callers;
use super::limits::Limits;
use crate::backend::{Backend, Unreadable, UnreadableKind};
use crate::error::{Error, Result};
use crate::event::EventBus;
use crate::id::{Owner, SandboxId, TaskId};
use crate::names::Names;
use crate::operation::{self, Caller, OperationKind, Operations, PendingOperation, Subject};
use crate::reload::Reloadable;
use crate::spec::Meta;
use crate::table::{Table, no_sandbox, sandbox_not_ready};
use crate::waiters::Waiters;

/// Time for which an orchestrator that has asked for the node's network counts as a user of it. A kubelet asks every few
/// seconds.
const NETWORK_USER: Duration = Duration::from_secs(120);

/// The backend, the table, and the life of the gateway. A component reaches what other components own through their
/// methods alone.
pub(super) struct Context {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) table: Table,
    pub(super) limits: Reloadable<Limits>,
    /// The operations that change something, with what they do at the moment.
    pub(super) registry: Operations,
    /// The asynchronous tasks of operations in flight.
    pub(super) operations: TaskTracker,
    /// Watchers of tasks and sandboxes. Operations wait for what the watchers report, so watchers are stopped
    /// last.
    pub(super) watchers: TaskTracker,
    /// Cancelled when the gateway begins to shut down: from then on nothing is reported and no failed
    /// operation is retried.
    pub(super) shutdown: CancellationToken,
    /// Cancelled when no operation waits for the watchers any more.
    pub(super) unwatched: CancellationToken,
    /// The names that people know a sandbox by, once the frontends are known.
    pub(super) names: OnceLock<fn(&Meta) -> Names>,
    recovered: watch::Sender<bool>,
    /// Time at which an orchestrator last asked for the node's network.
    network_asked: Mutex<Option<Instant>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// The context of a gateway that has not recovered yet.
    pub(super) fn new(backend: Arc<dyn Backend>, limits: Limits, registry: Operations) -> Self {
        Self {
            backend,
            table: Table::new(EventBus::default()),
            limits: limits.into(),
            registry,
            operations: TaskTracker::new(),
            watchers: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            unwatched: CancellationToken::new(),
            names: OnceLock::new(),
            recovered: watch::Sender::new(false),
            network_asked: Mutex::default(),
        }
    }

    /// Lets requests be served from now on.
    pub(super) fn set_recovered(&self) {
        self.recovered.send_replace(true);
    }

    /// Waits until requests are served. Cancel-safe.
    pub(super) async fn recovered(&self) {
        // The sender lives as long as the gateway.
        let _ = self
            .recovered
            .subscribe()
            .wait_for(|recovered| *recovered)
            .await;
    }

    /// Notes that an orchestrator asks for the node's network.
    pub(super) fn note_network_user(&self) {
        *self.network_asked.lock() = Some(Instant::now());
    }

    /// Returns whether an orchestrator has asked for the node's network lately.
    pub(super) fn has_network_user(&self) -> bool {
        let asked = *self.network_asked.lock();
        asked.is_some_and(|at| at.elapsed() < NETWORK_USER)
    }

    /// Returns whether requests are served.
    pub(super) fn is_recovered(&self) -> bool {
        *self.recovered.borrow()
    }

    /// This context, once requests are served.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub(super) fn ready(&self) -> Result<&Self> {
        if self.is_recovered() {
            Ok(self)
        } else {
            Err(Error::unavailable(
                "the gateway is still recovering what its predecessor left: try again",
            ))
        }
    }

    /// The callers among `waiters`.
    pub(super) fn callers(&self, waiters: Waiters) -> Callers {
        Callers::new(waiters, self.shutdown.clone())
    }

    /// Runs work that continues if the caller goes away.
    pub(super) async fn run_detached<T: Send + 'static>(
        &self,
        what: String,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.operations
            .spawn(operation::inherit(Caller::inherit(work)))
            .await
            .unwrap_or_else(|fault| {
                Err(Error::internal(format!("{what} broke off")).with_source(fault))
            })
    }

    /// Checks that tasks can be created and started in a sandbox.
    pub(super) fn check_ready(&self, id: SandboxId) -> Result<()> {
        match self.table.sandbox(id) {
            Some(sandbox) if sandbox.state.is_ready() => Ok(()),
            Some(sandbox) => Err(sandbox_not_ready(id, &sandbox.state)),
            None => Err(no_sandbox(id)),
        }
    }

    /// Checks that no object that cannot be read may have a name.
    pub(super) fn check_name(&self, kind: UnreadableKind, owner: Owner, name: &str) -> Result<()> {
        let what = || format!("{} name {name:?}", kind.as_str());
        self.check_unreadable(|held| held.may_be(kind, owner, name), what)
    }

    /// Checks that all tasks of a sandbox can be read: the others run on, whatever is done with the sandbox.
    pub(super) fn check_tasks_readable(&self, id: SandboxId) -> Result<()> {
        let is_in = |held: &Unreadable| held.sandbox == Some(id);
        self.check_unreadable(is_in, || format!("sandbox {id}"))
    }

    /// Checks that no object that cannot be read is meant by `is_meant`; `what` says what it holds.
    pub(super) fn check_unreadable(
        &self,
        is_meant: impl Fn(&Unreadable) -> bool,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        let held = self.table.find_unreadable(is_meant);
        held.map_or(Ok(()), |held| Err(held.refusal(&what())))
    }

    /// The name of a sandbox; empty if it does not exist.
    pub(super) fn sandbox_name(&self, id: SandboxId) -> String {
        self.table
            .sandbox(id)
            .map(|found| found.meta.name.clone())
            .unwrap_or_default()
    }

    /// Registers an operation of the current caller on a sandbox.
    pub(super) fn begin_on_sandbox(&self, kind: OperationKind, id: SandboxId) -> PendingOperation {
        let subject = match self.table.sandbox(id) {
            Some(sandbox) => Subject::sandbox(&sandbox),
            None => Subject {
                sandbox: Some(id),
                ..Subject::default()
            },
        };
        let owner = subject.sandbox_meta.as_ref().map(|meta| meta.owner);
        self.registry.begin(kind, owner, Caller::current(), subject)
    }

    /// Registers an operation of the current caller on a task.
    pub(super) fn begin_on_task(&self, kind: OperationKind, id: TaskId) -> PendingOperation {
        let subject = self.task_subject(id);
        let owner = subject.task_meta.as_ref().map(|meta| meta.owner);
        self.registry.begin(kind, owner, Caller::current(), subject)
    }

    /// A task as the subject of an operation.
    pub(super) fn task_subject(&self, id: TaskId) -> Subject {
        match self.table.task(id) {
            Some(task) => Subject::task(&task, self.table.sandbox(task.sandbox).as_deref()),
            None => Subject {
                task: Some(id),
                ..Subject::default()
            },
        }
    }
}
