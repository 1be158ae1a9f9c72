//! The leases of tasks: bound when a task is created, claimed again when it starts, and stored when it goes.

use std::path::Path;

use super::DeviceLeases;
use crate::backend::Unreadable;
use crate::error::Result;
use crate::gateway::limits::NamedDevices;
use crate::id::{LeaseToken, SandboxId, TaskId};
use crate::ledger::{DeviceNames, LeaseState, RefusalReason, StoredLease};
use crate::object::Task;
use crate::spec::{LeaseClaim, TaskSpec};

/// The leases that a task being created is bound to.
#[derive(Debug)]
pub(in crate::gateway) struct BoundClaims {
    /// All its claims.
    pub(in crate::gateway) claims: Vec<LeaseClaim>,
    /// Those of them that its sandbox did not have before.
    pub(in crate::gateway) fresh: Vec<LeaseClaim>,
}

// === impl DeviceLeases ===

impl DeviceLeases {
    /// Binds the leases that a task names to its sandbox, and leases the devices that it names directly; all
    /// or none. An unknown lease (its task may have been removed before a predecessor ended) is not an error
    /// if the task also names its devices directly and they are free.
    pub(in crate::gateway) fn bind(
        &self,
        sandbox: SandboxId,
        spec: &TaskSpec,
    ) -> Result<BoundClaims> {
        let name = self.context.sandbox_name(sandbox);
        let had = self.claims.ledger().devices.of_sandbox(sandbox);
        let fresh = |claims: &[LeaseClaim]| {
            let fresh = claims.iter().filter(|claim| !had.contains(&claim.token));
            fresh.cloned().collect::<Vec<_>>()
        };
        let mut bound: Vec<LeaseClaim> = Vec::new();
        let mut lost = None;
        for claim in &spec.leases {
            let one =
                self.claims
                    .ledger()
                    .devices
                    .bind(spec.meta.owner, claim.token, sandbox, &name);
            match one {
                Ok(claim) => bound.push(claim),
                Err(refusal) if refusal.reason == RefusalReason::Lost => lost = Some(refusal),
                Err(refusal) => {
                    self.unbind(&fresh(&bound));
                    return Err(self.claims.record_refusal(refusal));
                }
            }
        }
        match (self.lease_named(spec, sandbox, &name), lost) {
            (Ok(named), Some(refusal)) if named.is_empty() => {
                self.unbind(&fresh(&bound));
                return Err(self.claims.record_refusal(refusal));
            }
            (Ok(named), _) => {
                let known: Vec<LeaseToken> = bound.iter().map(|claim| claim.token).collect();
                bound.extend(
                    named
                        .into_iter()
                        .filter(|claim| !known.contains(&claim.token)),
                );
            }
            (Err(error), _) => {
                self.unbind(&fresh(&bound));
                return Err(error);
            }
        }
        if !bound.is_empty() {
            self.views.mark_changed();
        }
        Ok(BoundClaims {
            fresh: fresh(&bound),
            claims: bound,
        })
    }

    /// Claims again, for a task that is about to start, the leases it was created with: its sandbox may have
    /// been stopped and started again since.
    ///
    /// # Errors
    /// `FailedPrecondition` if another holder has a slot now.
    pub(in crate::gateway) fn reclaim_leases(&self, task: &Task) -> Result<()> {
        for claim in &task.details.leases {
            let name = self
                .context
                .table
                .sandbox(task.sandbox)
                .map(|found| found.meta.name.clone());
            let sandbox = (task.sandbox, name.unwrap_or_default());
            let reclaimed = self
                .claims
                .ledger()
                .devices
                .reclaim(task.meta.owner, claim, sandbox);
            reclaimed.map_err(|refusal| self.claims.record_refusal(refusal))?;
        }
        if !task.details.leases.is_empty() {
            self.views.mark_changed();
        }
        Ok(())
    }

    fn lease_named(
        &self,
        spec: &TaskSpec,
        sandbox: SandboxId,
        name: &str,
    ) -> Result<Vec<LeaseClaim>> {
        let nodes: Vec<&Path> = spec
            .devices
            .iter()
            .map(|node| node.host_path.as_path())
            .collect();
        if nodes.is_empty() && spec.cdi_devices.is_empty() {
            return Ok(Vec::new());
        }
        let named = DeviceNames {
            nodes: &nodes,
            cdi: &spec.cdi_devices,
        };
        let leased =
            self.claims
                .ledger()
                .devices
                .lease_named(spec.meta.owner, named, (sandbox, name));
        match (leased, self.context.limits.get().named_devices) {
            (Ok(claims), _) => Ok(claims),
            (Err(refusal), NamedDevices::Refuse) => Err(self.claims.record_refusal(refusal)),
            (Err(refusal), NamedDevices::Warn) => {
                tracing::warn!(name = spec.meta.name, %refusal, "a task names a device that another holder has: created nevertheless");
                Ok(Vec::new())
            }
        }
    }

    /// Unbinds leases of a task that was not created, unless another task of the sandbox uses them.
    pub(in crate::gateway) fn unbind(&self, claims: &[LeaseClaim]) {
        for claim in claims {
            let mut ledger = self.claims.ledger();
            let Some(LeaseState::Bound { sandbox, .. }) = ledger
                .devices
                .get(claim.token)
                .map(|lease| lease.state.clone())
            else {
                continue;
            };
            let used = self
                .context
                .table
                .tasks_of(sandbox)
                .iter()
                .any(|task| has(&task.details.leases, claim.token));
            match (used, claim.named) {
                (true, _) => {}
                (false, true) => ledger.devices.revoke(claim.token),
                (false, false) => ledger.devices.unbind(claim.token),
            }
        }
        if !claims.is_empty() {
            self.views.mark_changed();
        }
    }

    /// Removes leases from the lease store once the record of a task contains them.
    pub(in crate::gateway) async fn forget_stored(&self, claims: &[LeaseClaim]) {
        let tokens: Vec<LeaseToken> = claims.iter().map(|claim| claim.token).collect();
        self.remove_stored(&tokens).await;
    }

    /// Called before a task that does not run is removed, for its leases that no other task of the sandbox
    /// has: the sandbox keeps them for a next task, and they go back into the lease store; leases of devices
    /// that the task named directly are ended.
    pub(in crate::gateway) async fn store_orphaned(&self, id: TaskId) {
        let Some(task) = self.context.table.task(id) else {
            return;
        };
        if task.details.leases.is_empty() || self.context.check_ready(task.sandbox).is_err() {
            return;
        }
        let others: Vec<_> = self
            .context
            .table
            .tasks_of(task.sandbox)
            .into_iter()
            .filter(|other| other.id != id)
            .collect();
        for claim in &task.details.leases {
            let has_it = |held: &Unreadable| has(&held.claims.leases, claim.token);
            if others
                .iter()
                .any(|other| has(&other.details.leases, claim.token))
                || self.context.table.find_unreadable(has_it).is_some()
            {
                continue;
            }
            let LeaseClaim {
                token,
                slots,
                named,
            } = claim.clone();
            if named {
                self.claims.ledger().devices.revoke(token);
                self.views.mark_changed();
                continue;
            }
            // An error is not returned: removing the task frees space and must proceed on a full disk.
            if let Err(error) = self
                .leases
                .put(&StoredLease {
                    token,
                    owner: task.meta.owner,
                    slots,
                })
                .await
            {
                let error = error.report();
                tracing::warn!(lease = %token, error, "cannot store a lease: it is not on disk until the next task with it is created");
            }
        }
    }
}

fn has(claims: &[LeaseClaim], token: LeaseToken) -> bool {
    claims.iter().any(|claim| claim.token == token)
}
