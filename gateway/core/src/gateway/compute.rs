//! What tasks have of the node's processors and memory: claimed before they are made, counted until they end.

use std::sync::Arc;

use super::Gateway;
use crate::error::Result;
use crate::id::{Owner, SandboxId, TaskId};
use crate::ledger::{ComputeHolder, Cpus, Refusal};
use crate::spec::{ComputeClaim, CpuSet, LeaseClaim, Reserved, Resources};
use crate::state::{TaskEvent, TaskState};
use crate::table::{Sandbox, Task};

/// Whose claim it is: the owner, and the sandbox of the task.
type Claimant = (Owner, SandboxId);

impl Gateway {
    /// Gives a task that is to be made or started what it claims.
    ///
    /// # Errors
    /// `FailedPrecondition` if another owner's task has one of its cores for itself, or more is reserved than the node has and that is
    /// enforced; nothing is taken then.
    pub(super) fn claim_compute(
        &self,
        id: TaskId,
        place: Claimant,
        resources: &Resources,
        claim: ComputeClaim,
    ) -> Result<()> {
        let holder = self.compute_holder(place, resources, claim);
        let claimed = self.ledger().compute.claim(id, holder);
        self.warn_of_all(claimed.map_err(|refusal| self.record_refusal(refusal))?);
        Ok(())
    }

    /// Gives a task that is about to start what it was made with: its sandbox may have been stopped since, and be ready again.
    ///
    /// # Errors
    /// Those of [`Gateway::claim_compute`].
    pub(super) fn reclaim_compute(&self, task: &Task) -> Result<()> {
        let place = (task.meta.owner, task.sandbox);
        self.claim_compute(task.id, place, &task.details.resources, task.details.compute)
    }

    /// Takes back all that was given to a task that could not be made.
    pub(super) fn release_claims(&self, id: TaskId, leases: &[LeaseClaim]) {
        self.unbind(leases);
        self.ledger().compute.release(id);
    }

    /// Gives a running task what it claims with other limits. [`Gateway::settle_compute`] comes after it, whatever becomes of these.
    ///
    /// # Errors
    /// `FailedPrecondition` if that is more than the node has, and that is enforced.
    pub(super) fn change_compute(
        &self,
        task: &Task,
        resources: &Resources,
        claim: ComputeClaim,
    ) -> Result<()> {
        let holder = self.compute_holder((task.meta.owner, task.sandbox), resources, claim);
        let changed = self.ledger().compute.change(task.id, holder);
        self.warn_of_all(changed.map_err(|refusal| self.record_refusal(refusal))?);
        Ok(())
    }

    /// Puts down what a task has by what is on the table about it.
    pub(super) fn sync_compute(&self, id: TaskId) {
        let Some(task) = self.shared.table.task(id) else { return };
        let place = (task.meta.owner, task.sandbox);
        let holder = self.compute_holder(place, &task.details.resources, task.details.compute);
        self.ledger().compute.record(id, holder);
        // One that ends from here on gives back what was put down just now.
        if self.shared.table.task(id).is_none_or(|task| !holds_compute(&task.state)) {
            self.ledger().compute.end(id);
        }
    }

    /// Applies an event to a task, and gives it before and after. When it has ended nothing is kept for it any more.
    pub(super) fn apply_task(&self, id: TaskId, event: TaskEvent) -> Result<(Arc<Task>, Arc<Task>)> {
        let (before, after) = self.shared.table.apply_task(id, event)?;
        if holds_compute(&before.state) && !holds_compute(&after.state) {
            self.ledger().compute.end(id);
        }
        Ok((before, after))
    }

    fn compute_holder(
        &self,
        (owner, sandbox): Claimant,
        resources: &Resources,
        claim: ComputeClaim,
    ) -> ComputeHolder {
        let name = self.shared.table.sandbox(sandbox).map(|home| home.meta.name.clone()).unwrap_or_default();
        ComputeHolder { owner, sandbox, name, cpus: cpus(resources, claim), reserved: claim.reserved }
    }

    fn warn_of_all(&self, warnings: Vec<Refusal>) {
        for warning in warnings {
            tracing::warn!(owner = %warning.owner, resource = warning.resource(), "given all the same: {warning}");
        }
    }
}

/// What a task that was recovered has.
pub(super) fn recovered_holder(task: &Task, home: &Sandbox) -> ComputeHolder {
    let claim = task.details.compute;
    ComputeHolder {
        owner: task.meta.owner,
        sandbox: home.id,
        name: home.meta.name.clone(),
        cpus: cpus(&task.details.resources, claim),
        reserved: if holds_compute(&task.state) { claim.reserved } else { Reserved::default() },
    }
}

/// Whether what a task in this state reserves is kept for it.
const fn holds_compute(state: &TaskState) -> bool {
    match state {
        TaskState::Created | TaskState::Starting | TaskState::Running { .. } | TaskState::Stopping { .. } => {
            true
        }
        TaskState::Exited { .. } | TaskState::Removing { .. } => false,
    }
}

/// The processors that a task is bound to. A list that cannot be read is refused where tasks are made.
fn cpus(resources: &Resources, claim: ComputeClaim) -> Cpus {
    let list = resources.cpuset_cpus.as_deref().unwrap_or_default();
    match list.parse::<CpuSet>() {
        Ok(list) if list.is_empty() => Cpus::Any,
        Ok(list) if claim.exclusive_cpus => Cpus::Exclusive(list),
        Ok(list) => Cpus::Shared(list),
        Err(_) => Cpus::Any,
    }
}
