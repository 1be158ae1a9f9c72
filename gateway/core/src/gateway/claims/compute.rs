//! The processors and memory that tasks claim: claimed before the task is created, reserved until it exits.

use super::Claims;
use crate::error::Result;
use crate::id::{Owner, SandboxId, TaskId};
use crate::ledger::{ComputeHolder, Cpus, Refusal};
use crate::object::{Sandbox, Task};
use crate::spec::{ComputeClaim, Reserved, Resources};
use crate::state::TaskState;

/// The holder of a claim: the owner and the sandbox of the task.
type Claimant = (Owner, SandboxId);

impl Claims {
    /// Claims processors and memory for a task that is about to be created or started.
    ///
    /// # Errors
    /// `FailedPrecondition` if a task of another owner has one of its cores exclusively, or if the node's
    /// capacity would be exceeded and [`Overcommit::Enforce`](crate::ledger::Overcommit::Enforce) is set.
    /// Nothing is claimed then.
    pub(in crate::gateway) fn claim_compute(
        &self,
        id: TaskId,
        claimant: Claimant,
        resources: &Resources,
        claim: ComputeClaim,
    ) -> Result<()> {
        let holder = self.compute_holder(claimant, resources, claim);
        let claimed = self.ledger().compute.claim(id, holder);
        self.warn_of_all(claimed.map_err(|refusal| self.record_refusal(refusal))?);
        Ok(())
    }

    /// Claims again, for a task that is about to start, what it was created with: its sandbox may have been
    /// stopped and started again since.
    ///
    /// # Errors
    /// Those of [`Claims::claim_compute`].
    pub(in crate::gateway) fn reclaim_compute(&self, task: &Task) -> Result<()> {
        let claimant = (task.meta.owner, task.sandbox);
        self.claim_compute(
            task.id,
            claimant,
            &task.details.resources,
            task.details.compute,
        )
    }

    /// Releases what was claimed for a task that could not be created, or was removed.
    pub(in crate::gateway) fn release_compute(&self, id: TaskId) {
        self.ledger().compute.release(id);
    }

    /// Changes the claim of a running task to that of its new limits. The caller then calls
    /// [`Claims::sync_compute`], whether the limits were applied or not.
    ///
    /// # Errors
    /// `FailedPrecondition` if the node's capacity would be exceeded and that is enforced.
    pub(in crate::gateway) fn change_compute(
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

    /// Sets a task's claim in the ledger to that of its limits in the table.
    pub(in crate::gateway) fn sync_compute(&self, id: TaskId) {
        let Some(task) = self.context.table.task(id) else {
            return;
        };
        let claimant = (task.meta.owner, task.sandbox);
        let holder = self.compute_holder(claimant, &task.details.resources, task.details.compute);
        self.ledger().compute.record(id, holder);
        // What happens from here on releases what was just recorded; this is what has happened before. A
        // sandbox that is stopped releases the claims of its tasks once none of them runs.
        let ready = self.context.check_ready(task.sandbox).is_ok();
        match self.context.table.task(id) {
            Some(task) if task.state.may_run() => {}
            Some(task) if ready && holds_compute(&task.state) => {}
            Some(_) if ready => self.ledger().compute.end(id),
            Some(_) | None => self.ledger().compute.release(id),
        }
    }

    /// Releases the reservation of a task that has exited by this change of its state.
    pub(in crate::gateway) fn follow_state(
        &self,
        id: TaskId,
        before: &TaskState,
        after: &TaskState,
    ) {
        if holds_compute(before) && !holds_compute(after) {
            self.ledger().compute.end(id);
        }
    }

    fn compute_holder(
        &self,
        (owner, sandbox): Claimant,
        resources: &Resources,
        claim: ComputeClaim,
    ) -> ComputeHolder {
        let name = self.context.sandbox_name(sandbox);
        ComputeHolder {
            owner,
            sandbox,
            name,
            cpus: cpus(resources, claim),
            reserved: claim.reserved,
        }
    }

    fn warn_of_all(&self, warnings: Vec<Refusal>) {
        for warning in warnings {
            tracing::warn!(owner = %warning.owner, resource = warning.resource(), "given all the same: {warning}");
        }
    }
}

/// The claim of a recovered task.
pub(super) fn recovered_holder(task: &Task, sandbox: &Sandbox) -> ComputeHolder {
    let claim = task.details.compute;
    ComputeHolder {
        owner: task.meta.owner,
        sandbox: sandbox.id,
        name: sandbox.meta.name.clone(),
        cpus: cpus(&task.details.resources, claim),
        reserved: if holds_compute(&task.state) {
            claim.reserved
        } else {
            Reserved::default()
        },
    }
}

/// Returns whether the reservation of a task in this state counts.
const fn holds_compute(state: &TaskState) -> bool {
    match state {
        TaskState::Created
        | TaskState::Starting
        | TaskState::Unattended
        | TaskState::Running { .. }
        | TaskState::Stopping { .. } => true,
        TaskState::Exited { .. } | TaskState::Removing { .. } => false,
    }
}

/// The processors that a task is bound to.
fn cpus(resources: &Resources, claim: ComputeClaim) -> Cpus {
    match &resources.cpuset_cpus {
        None => Cpus::Any,
        Some(list) if claim.exclusive_cpus => Cpus::Exclusive(list.set().clone()),
        Some(list) => Cpus::Shared(list.set().clone()),
    }
}
