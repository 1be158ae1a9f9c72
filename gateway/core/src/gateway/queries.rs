//! Read-only queries: usage, information, and events.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Scope;
use crate::backend::{Inspection, SandboxStats};
use crate::error::Result;
use crate::event::ListAndWatch;
use crate::id::{SandboxId, TaskId};
use crate::object::Sandbox;
use crate::operation::OperationKind;
use crate::spec::HostPort;
use crate::stats::{InterfaceStats, TaskMetrics, TaskStats};
use crate::table::{SandboxWithTasks, no_sandbox};

impl Scope {
    /// This owner's sandboxes now, and its events from now on, until the gateway shuts down.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn list_and_watch(&self) -> Result<ListAndWatch> {
        let shared = self.gateway.ready()?;
        let (since, sandboxes, events) = shared.table.list_and_watch(self.owner);
        Ok(ListAndWatch { since, sandboxes, events, ended: shared.shutdown.clone() })
    }

    /// One of this owner's sandboxes with its tasks, as of one moment.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` before recovery.
    pub fn sandbox_with_tasks(&self, id: SandboxId) -> Result<SandboxWithTasks> {
        let found = self.gateway.ready()?.table.sandbox_with_tasks(id);
        found.filter(|entry| entry.sandbox.meta.owner == self.owner).ok_or_else(|| no_sandbox(id))
    }

    /// A sandbox by id, if it still exists.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn sandbox_by_id(&self, id: SandboxId) -> Result<Arc<Sandbox>> {
        self.gateway
            .ready()?
            .table
            .sandbox(id)
            .filter(|sandbox| sandbox.meta.owner == self.owner)
            .ok_or_else(|| no_sandbox(id))
    }

    /// Whether no sandbox of any owner has this port of the host at the moment. Who has it is not told.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn is_host_port_free(&self, port: &HostPort) -> Result<bool> {
        self.gateway.ready()?;
        Ok(self.gateway.ledger().ports.is_free(port))
    }

    /// Usage of these tasks; those that do not exist any more are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read.
    pub async fn task_stats(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskStats>> {
        let ids = self.own_tasks(ids)?;
        self.gateway.shared.backend.task_stats(&ids).await
    }

    /// All metrics of these tasks; those that do not run are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read.
    pub async fn task_metrics(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskMetrics>> {
        let ids = self.own_tasks(ids)?;
        self.gateway.shared.backend.task_metrics(&ids).await
    }

    fn own_tasks(&self, ids: &[TaskId]) -> Result<Vec<TaskId>> {
        let table = &self.gateway.ready()?.table;
        Ok(ids
            .iter()
            .copied()
            .filter(|id| table.task(*id).is_some_and(|task| task.meta.owner == self.owner))
            .collect())
    }

    /// Information about a task for people.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` if they cannot be read.
    pub async fn inspect_task(&self, id: TaskId) -> Result<Inspection> {
        let id = self.task(&id.to_string())?.id;
        self.gateway.shared.backend.inspect_task(id).await
    }

    /// As [`Scope::inspect_task`], for somebody who is then shown what the task may keep secret: an operation, so
    /// that it is recorded.
    ///
    /// # Errors
    /// Those of [`Scope::inspect_task`].
    pub async fn show_task_secrets(&self, id: TaskId) -> Result<Inspection> {
        let id = self.task(&id.to_string())?.id;
        let operation = self.begin_on_task(OperationKind::ShowSecrets, id);
        operation.run(self.gateway.shared.backend.inspect_task(id)).await
    }

    /// As [`Scope::inspect_sandbox`], for somebody who is then shown what the sandbox may keep secret: an
    /// operation, so that it is recorded.
    ///
    /// # Errors
    /// Those of [`Scope::inspect_sandbox`].
    pub async fn show_sandbox_secrets(&self, id: SandboxId) -> Result<Inspection> {
        let id = self.sandbox_by_id(id)?.id;
        let operation = self.gateway.begin_on_sandbox(OperationKind::ShowSecrets, id);
        operation.run(self.gateway.shared.backend.inspect_sandbox(id)).await
    }

    /// Usage of a sandbox.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` if it cannot be read.
    pub async fn sandbox_stats(&self, id: SandboxId) -> Result<SandboxStats> {
        let id = self.sandbox_by_id(id)?.id;
        self.gateway.shared.backend.sandbox_stats(id).await
    }

    /// Traffic of these sandboxes; those that do not exist any more or use the host's network are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read.
    pub async fn sandbox_traffic(
        &self,
        ids: &[SandboxId],
    ) -> Result<BTreeMap<SandboxId, Vec<InterfaceStats>>> {
        let table = &self.gateway.ready()?.table;
        let ids: Vec<SandboxId> = ids
            .iter()
            .copied()
            .filter(|id| table.sandbox(*id).is_some_and(|sandbox| sandbox.meta.owner == self.owner))
            .collect();
        self.gateway.shared.backend.sandbox_traffic(&ids).await
    }

    /// Information about a sandbox for people.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` if they cannot be read.
    pub async fn inspect_sandbox(&self, id: SandboxId) -> Result<Inspection> {
        let id = self.sandbox_by_id(id)?.id;
        self.gateway.shared.backend.inspect_sandbox(id).await
    }
}
