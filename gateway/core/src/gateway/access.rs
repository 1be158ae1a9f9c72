//! One owner's access to the table and to the register of operations.

use std::fmt::{self, Display};
use std::sync::Arc;

use super::context::Context;
use crate::backend::{Unreadable, UnreadableKind};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{Owner, SandboxId, TaskId};
use crate::object::{Sandbox, Task};
use crate::operation::{Caller, OperationKind, PendingOperation, Subject};
use crate::state::TaskState;
use crate::trace::TracePlace;

/// Finds the objects of one owner, and registers operations on them. All views of a scope are made of it, so none of
/// them reaches another owner's objects.
#[derive(Clone)]
pub(super) struct OwnerAccess {
    context: Arc<Context>,
    owner: Owner,
    /// The caller that is answerable for operations outside of a caller's own request.
    caller: Option<Caller>,
    /// The place of such operations in a trace.
    place: Option<TracePlace>,
}

impl fmt::Debug for OwnerAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerAccess")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

impl OwnerAccess {
    pub(super) const fn new(context: Arc<Context>, owner: Owner) -> Self {
        Self {
            context,
            owner,
            caller: None,
            place: None,
        }
    }

    /// This access, for work that begins after the current request has been answered.
    pub(super) fn for_current_caller(&self) -> Self {
        Self {
            caller: self.caller(),
            place: TracePlace::current(),
            ..self.clone()
        }
    }

    pub(super) const fn owner(&self) -> Owner {
        self.owner
    }

    /// The context of the components, also before recovery.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The context of the components, once requests are served.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub(super) fn ready(&self) -> Result<&Context> {
        self.context.ready()
    }

    /// The caller that is answerable for an operation that begins now.
    fn caller(&self) -> Option<Caller> {
        Caller::current().or_else(|| self.caller.clone())
    }

    /// Registers an operation of the current caller on objects of this owner.
    pub(super) fn begin(&self, kind: OperationKind, subject: Subject) -> PendingOperation {
        let begin = || {
            self.context
                .registry
                .begin(kind, Some(self.owner), self.caller(), subject)
        };
        TracePlace::enter(self.place.as_ref(), begin)
    }

    /// Registers an operation on a task of this owner.
    pub(super) fn begin_on_task(&self, kind: OperationKind, id: TaskId) -> PendingOperation {
        self.begin(kind, self.context.task_subject(id))
    }

    /// The sandbox with this id, or the only one whose id has this prefix.
    ///
    /// # Errors
    /// `NotFound` if there is none, also for a text that cannot be an id; `FailedPrecondition` if there is one that cannot
    /// be read; `InvalidArgument` if the prefix is ambiguous.
    pub(super) fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>> {
        let found = match id.parse::<SandboxId>() {
            Ok(id) => self.sandbox_by_id(id),
            Err(_) => {
                let sandboxes = self.ready()?.table.sandboxes(self.owner);
                self.only_match("sandbox", id, sandboxes, |sandbox| sandbox.id.to_string())
            }
        };
        found.map_err(|error| self.unreadable_instead(error, UnreadableKind::Sandbox, id))
    }

    /// A sandbox by id, if it still exists.
    ///
    /// # Errors
    /// `NotFound`.
    pub(super) fn sandbox_by_id(&self, id: SandboxId) -> Result<Arc<Sandbox>> {
        let found = self.ready()?.table.sandbox(id);
        found
            .filter(|sandbox| sandbox.meta.owner == self.owner)
            .ok_or_else(|| self.missing("sandbox", &id))
    }

    /// The task with this id, or the only one whose id has this prefix.
    ///
    /// # Errors
    /// As for [`OwnerAccess::sandbox`].
    pub(super) fn task(&self, id: &str) -> Result<Arc<Task>> {
        let found = match id.parse::<TaskId>() {
            Ok(id) => self.task_by_id(id),
            Err(_) => {
                let tasks = self.ready()?.table.tasks(self.owner);
                self.only_match("task", id, tasks, |task| task.id.to_string())
            }
        };
        found.map_err(|error| self.unreadable_instead(error, UnreadableKind::Task, id))
    }

    /// The error for a request about an object that was not found: another one if it exists and cannot be read, so that
    /// nobody takes it for ended.
    fn unreadable_instead(&self, error: Error, kind: UnreadableKind, id: &str) -> Error {
        if error.kind() != ErrorKind::NotFound || id.is_empty() {
            return error;
        }
        let is_meant = |held: &Unreadable| {
            held.has_kind(kind)
                && held.id.starts_with(id)
                && held.owner.is_none_or(|owner| owner == self.owner)
        };
        let held = self.context().table.find_unreadable(is_meant);
        held.map_or(error, |held| held.defect())
    }

    /// A task by id, if it still exists.
    ///
    /// # Errors
    /// `NotFound`.
    pub(super) fn task_by_id(&self, id: TaskId) -> Result<Arc<Task>> {
        let found = self.ready()?.table.task(id);
        found
            .filter(|task| task.meta.owner == self.owner)
            .ok_or_else(|| self.missing("task", &id))
    }

    /// The error for an object that this owner does not have: another one may have it.
    fn missing(&self, what: &str, id: &dyn Display) -> Error {
        let owner = self.owner;
        Error::not_found(format!(
            "{owner} has no {what} {id}: `switchyard ps` lists those of all owners"
        ))
    }

    /// The only one of these objects whose id begins so.
    fn only_match<T>(
        &self,
        what: &str,
        prefix: &str,
        all: Vec<Arc<T>>,
        id: impl Fn(&T) -> String,
    ) -> Result<Arc<T>> {
        let missing = || self.missing(what, &format_args!("{prefix:?}"));
        if prefix.is_empty() {
            return Err(missing());
        }
        let mut found = all
            .into_iter()
            .filter(|object| id(object).starts_with(prefix));
        let first = found.next().ok_or_else(missing)?;
        match found.next() {
            None => Ok(first),
            Some(_) => Err(Error::invalid(
                format!("{what} id {prefix:?}"),
                "is the prefix of several ids: give more digits",
            )),
        }
    }

    /// The task with this id, if it runs.
    ///
    /// # Errors
    /// As for [`OwnerAccess::sandbox`]; `FailedPrecondition` if it does not run.
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
