//! Registers the operations of the gateway: see [`crate::operation`].

use super::{Gateway, Scope};
use crate::id::{SandboxId, TaskId};
use crate::operation::{Caller, OperationKind, PendingOperation, Subject};
use crate::trace::TracePlace;

impl Scope {
    /// Registers an operation of the current caller on objects of this owner.
    pub(super) fn begin(&self, kind: OperationKind, subject: Subject) -> PendingOperation {
        let begin = || self.gateway.shared.registry.begin(kind, Some(self.owner), self.caller(), subject);
        TracePlace::enter(self.place.as_ref(), begin)
    }

    /// Registers an operation on a task of this owner.
    pub(super) fn begin_on_task(&self, kind: OperationKind, id: TaskId) -> PendingOperation {
        self.begin(kind, self.gateway.task_subject(id))
    }
}

impl Gateway {
    /// Registers an operation of the current caller on a sandbox.
    pub(super) fn begin_on_sandbox(&self, kind: OperationKind, id: SandboxId) -> PendingOperation {
        let subject = match self.shared.table.sandbox(id) {
            Some(sandbox) => Subject::sandbox(&sandbox),
            None => Subject { sandbox: Some(id), ..Subject::default() },
        };
        let owner = subject.sandbox_meta.as_ref().map(|meta| meta.owner);
        self.shared.registry.begin(kind, owner, Caller::current(), subject)
    }

    /// Registers an operation of the current caller on a task.
    pub(super) fn begin_on_task(&self, kind: OperationKind, id: TaskId) -> PendingOperation {
        let subject = self.task_subject(id);
        let owner = subject.task_meta.as_ref().map(|meta| meta.owner);
        self.shared.registry.begin(kind, owner, Caller::current(), subject)
    }

    pub(super) fn task_subject(&self, id: TaskId) -> Subject {
        let table = &self.shared.table;
        match table.task(id) {
            Some(task) => Subject::task(&task, table.sandbox(task.sandbox).as_deref()),
            None => Subject { task: Some(id), ..Subject::default() },
        }
    }
}
