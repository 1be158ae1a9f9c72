//! The node's resources that sandboxes hold: claimed before they are created, released when they have
//! stopped.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use parking_lot::MutexGuard;

use super::Gateway;
use super::compute::recovered_holder;
use super::ledger_report::LedgerReport;
use crate::backend::Recovered;
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::id::{LeaseToken, SandboxId};
use crate::ledger::{Lease, Ledger, PortHolder, Refusal};
use crate::spec::SandboxSpec;
use crate::state::SandboxState;
use crate::table::Sandbox;

impl Gateway {
    /// All allocations of node resources.
    #[must_use]
    pub fn ledger_report(&self) -> LedgerReport {
        let ledger = self.ledger();
        LedgerReport {
            devices: ledger.devices.clone(),
            compute: ledger.compute.clone(),
            ports: ledger.ports.holders().map(|(id, holder)| (id, holder.clone())).collect(),
            refusals: ledger.refusals().clone(),
        }
    }

    /// Whether the leases of before the restart are known, so that devices can be leased.
    #[must_use]
    pub fn is_ledger_recovered(&self) -> bool {
        self.ledger().devices.is_recovered()
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.shared.ledger.lock()
    }

    /// Counts, logs and publishes a refusal, and returns the error for the caller.
    pub(super) fn record_refusal(&self, refusal: Refusal) -> Error {
        self.ledger().count(&refusal);
        tracing::warn!(
            owner = %refusal.owner,
            resource = refusal.resource(),
            reason = refusal.reason.as_str(),
            holder = refusal.holder.as_ref().and_then(|holder| holder.sandbox).map(tracing::field::display),
            "refused: {refusal}"
        );
        self.shared.table.announce(refusal.owner, EventKind::Refused(Arc::new(refusal.clone())));
        refusal.into()
    }

    /// Claims the host ports of a sandbox.
    ///
    /// # Errors
    /// `FailedPrecondition` if another holder has one of them; none is claimed then.
    pub(super) fn claim_ports(&self, id: SandboxId, spec: &SandboxSpec) -> Result<()> {
        let holder = PortHolder {
            owner: spec.meta.owner,
            name: spec.meta.name.clone(),
            claims: spec.host_ports.clone(),
        };
        let claimed = self.ledger().ports.claim(id, holder);
        claimed.map_err(|refusal| self.record_refusal(refusal))
    }

    /// Releases everything that a stopped sandbox holds.
    pub(super) async fn release(&self, id: SandboxId) {
        let released = {
            let mut ledger = self.ledger();
            ledger.ports.release(id);
            ledger.compute.release_sandbox(id);
            ledger.devices.release_sandbox(id)
        };
        if !released.is_empty() {
            self.shared.views.mark_changed();
            self.remove_stored(&released).await;
        }
    }

    /// Releases the ports of a sandbox whose creation failed, once its network is released: until then
    /// packets still reach it.
    pub(super) fn release_when_undone(&self, id: SandboxId) {
        if self.shared.backend.wait_network_released(id).now_or_never().is_some() {
            self.ledger().ports.release(id);
            return;
        }
        let gateway = self.clone();
        self.shared.watchers.spawn(async move {
            let shared = &gateway.shared;
            tokio::select! {
                () = shared.backend.wait_network_released(id) => {
                    // A sandbox that was started again meanwhile has claimed its ports again.
                    let stopped = |sandbox: Arc<Sandbox>| sandbox.state == SandboxState::Stopped;
                    if shared.table.sandbox(id).is_none_or(stopped) {
                        gateway.ledger().ports.release(id);
                    }
                }
                () = shared.unwatched.cancelled() => {}
            }
        });
    }

    /// Records the claims of all recovered objects and the stored leases. Conflicting claims are logged and
    /// both kept.
    pub(super) async fn recover_ledger(&self, recovered: &Recovered) {
        let stored = self.shared.leases.load().await;
        let mut in_use: Vec<LeaseToken> = Vec::new();
        let holding = recovered.sandboxes.iter().filter(|sandbox| holds_ports(&sandbox.state));
        let holding: BTreeMap<SandboxId, &Sandbox> = holding.map(|sandbox| (sandbox.id, sandbox)).collect();
        {
            let mut ledger = self.ledger();
            for sandbox in holding.values() {
                ledger.ports.record(sandbox.id, port_holder(sandbox));
            }
            for remnant in &recovered.remnants {
                let owner = remnant.owner;
                let name = remnant.name.clone();
                ledger
                    .ports
                    .record(remnant.id, PortHolder { owner, name, claims: remnant.host_ports.clone() });
            }
            for task in &recovered.tasks {
                let Some(sandbox) = holding.get(&task.sandbox) else {
                    // The sandbox has stopped, so the task holds nothing. Its leases are remembered: its
                    // orchestrator may start it again, and a Nomad agent knows only the token of its devices.
                    for claim in task.details.leases.iter().filter(|claim| !claim.named) {
                        ledger.devices.recall(claim.token, Lease::new(task.meta.owner, claim.slots.clone()));
                    }
                    continue;
                };
                ledger.compute.record(task.id, recovered_holder(task, sandbox));
                for claim in &task.details.leases {
                    let name = sandbox.meta.name.clone();
                    let lease = Lease::bound(task.meta.owner, claim.slots.clone(), sandbox.id, name);
                    let lease = Lease { named: claim.named, ..lease };
                    ledger.devices.record(claim.token, lease);
                    in_use.push(claim.token);
                }
            }
            for (port, one, other) in ledger.ports.conflicts() {
                tracing::warn!(%port, %one, %other, "two sandboxes have the same host port: neither is stopped");
            }
            for (cores, one, other) in ledger.compute.conflicts() {
                tracing::warn!(%cores, %one, %other, "two tasks have the same processors exclusively: neither is stopped");
            }
        }
        match stored {
            Ok(stored) => {
                let mut ledger = self.ledger();
                for lease in stored.into_iter().filter(|lease| !in_use.contains(&lease.token)) {
                    ledger.devices.record(lease.token, Lease::new(lease.owner, lease.slots));
                }
                ledger.devices.set_recovered();
            }
            Err(error) => {
                tracing::error!(
                    error = error.report(),
                    "cannot read the device leases: no device is leased until the daemon is restarted"
                );
            }
        }
        // A task has these leases: a predecessor was killed after it created the task and before it removed
        // them from the store.
        self.remove_stored(&in_use).await;
        for remnant in &recovered.remnants {
            self.release_when_undone(remnant.id);
        }
        self.expire_leases();
    }
}

/// Whether a sandbox in this state holds the resources it was created with.
const fn holds_ports(state: &SandboxState) -> bool {
    match state {
        SandboxState::Ready
        | SandboxState::Stopping
        | SandboxState::Starting
        | SandboxState::Removing
        | SandboxState::Unknown { .. } => true,
        SandboxState::Stopped => false,
    }
}

fn port_holder(sandbox: &Sandbox) -> PortHolder {
    PortHolder {
        owner: sandbox.meta.owner,
        name: sandbox.meta.name.clone(),
        claims: sandbox.details.host_ports.clone(),
    }
}
