//! One owner's view of the gateway.

use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{Callers, Gateway, Scope};
use crate::backend::{BackendStatus, Handler};
use crate::error::{Error, Result};
use crate::event::Subscription;
use crate::id::{Owner, SandboxId, TaskId};
use crate::object::{Sandbox, Task};
use crate::operation::Caller;
use crate::spec::Reserved;
use crate::state::TaskState;
use crate::trace::{Span, SpanKind, TracePlace};
use crate::waiters::Waiters;

impl Scope {
    /// The callers among `waiters`, for work that a frontend runs detached.
    #[must_use]
    pub fn callers(&self, waiters: Waiters) -> Callers {
        self.gateway.callers(waiters)
    }

    pub(super) const fn new(gateway: Gateway, owner: Owner) -> Self {
        Self { gateway, owner, caller: None, place: None }
    }

    /// This view, for work that begins after the current request has been answered: its operations are those
    /// of the current caller, and below the current span.
    #[must_use]
    pub fn for_current_caller(&self) -> Self {
        Self { caller: self.caller(), place: TracePlace::current(), ..self.clone() }
    }

    /// Begins a trace of work that no call asks for; `None` if nothing is traced.
    #[must_use]
    pub fn begin_trace(&self, name: &'static str) -> Option<Span> {
        let mut span = self.gateway.shared.registry.tracer()?.root(SpanKind::Internal, name, None);
        span.set("switchyard.owner", self.owner.as_str());
        Some(span)
    }

    /// Who is answerable for an operation that begins now.
    pub(super) fn caller(&self) -> Option<Caller> {
        Caller::current().or_else(|| self.caller.clone())
    }

    /// The owner of this view.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        self.owner
    }

    /// As [`Gateway::status`]; also available before recovery.
    #[must_use]
    pub fn status(&self) -> BackendStatus {
        self.gateway.status()
    }

    /// As [`Gateway::fresh_status`]; also available before recovery.
    pub async fn fresh_status(&self) -> BackendStatus {
        self.gateway.fresh_status().await
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

    /// The processors and memory that the tasks of all other owners reserve.
    #[must_use]
    pub fn reserved_by_others(&self) -> Reserved {
        let ledger = self.gateway.ledger();
        let others = ledger.compute.reserved().iter().filter(|(owner, _)| **owner != self.owner);
        others.fold(Reserved::default(), |sum, (_, reserved)| sum.plus(*reserved))
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

    pub(super) fn running_task(&self, id: &str) -> Result<Arc<Task>> {
        let task = self.task(id)?;
        match task.state {
            TaskState::Running { .. } | TaskState::Stopping { .. } => Ok(task),
            TaskState::Created
            | TaskState::Starting
            | TaskState::Unattended
            | TaskState::Exited { .. }
            | TaskState::Removing { .. } => Err(Error::failed_precondition(format!(
                "task {} is {}, not running",
                task.id,
                task.state.as_str()
            ))),
        }
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
