//! What sandboxes hold of the node: taken before they are made, given back when they have stopped.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use futures::FutureExt;

use super::Gateway;
use super::compute::recovered_holder;
use crate::backend::Recovered;
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::id::{LeaseToken, SandboxId};
use crate::ledger::{Compute, Devices, Lease, Ledger, PortHolder, Refusal, Refusals};
use crate::spec::SandboxSpec;
use crate::state::SandboxState;
use crate::table::Sandbox;

/// What of the node is given to whom, at one moment.
#[derive(Debug, Clone)]
pub struct LedgerReport {
    /// Devices and their leases.
    pub devices: Devices,
    /// Processors and memory.
    pub compute: Compute,
    /// The sandboxes that have ports of the host, by id.
    pub ports: Vec<(SandboxId, PortHolder)>,
    /// How often something was refused.
    pub refusals: Refusals,
}

impl Gateway {
    /// What of the node is given to whom.
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

    /// Whether it is known what of the devices was given out before, so that they can be given out.
    #[must_use]
    pub fn is_ledger_recovered(&self) -> bool {
        self.ledger().devices.is_recovered()
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // No code that holds the lock can panic half way through a change.
        self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of a refusal whoever may want to know, and gives the error for who asked.
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

    /// Takes the ports of the host that a sandbox claims.
    ///
    /// # Errors
    /// `FailedPrecondition` if somebody else has one of them; none is taken then.
    pub(super) fn claim_ports(&self, id: SandboxId, spec: &SandboxSpec) -> Result<()> {
        let holder = PortHolder {
            owner: spec.meta.owner,
            name: spec.meta.name.clone(),
            claims: spec.host_ports.clone(),
        };
        let claimed = self.ledger().ports.claim(id, holder);
        claimed.map_err(|refusal| self.record_refusal(refusal))
    }

    /// Takes back what a sandbox has that has stopped.
    pub(super) async fn release(&self, id: SandboxId) {
        let let_go = {
            let mut ledger = self.ledger();
            ledger.ports.release(id);
            ledger.compute.release_sandbox(id);
            ledger.devices.release_sandbox(id)
        };
        if !let_go.is_empty() {
            self.shared.views.mark_changed();
            self.remove_stored(&let_go).await;
        }
    }

    /// Takes back the ports of a sandbox that could not be made, as soon as that is undone: until then packets still go its way.
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
                    // One that has been made ready again meanwhile has its ports anew.
                    let stopped = |sandbox: Arc<Sandbox>| sandbox.state == SandboxState::Stopped;
                    if shared.table.sandbox(id).is_none_or(stopped) {
                        gateway.ledger().ports.release(id);
                    }
                }
                () = shared.unwatched.cancelled() => {}
            }
        });
    }

    /// Puts down what everything that was recovered holds, and what was leased. Who holds the same thing as another is told of, and left.
    pub(super) async fn recover_ledger(&self, recovered: &Recovered) {
        let stored = self.shared.leases.load().await;
        let mut in_use: Vec<LeaseToken> = Vec::new();
        let homes = recovered.sandboxes.iter().filter(|sandbox| holds_ports(&sandbox.state));
        let homes: BTreeMap<SandboxId, &Sandbox> = homes.map(|sandbox| (sandbox.id, sandbox)).collect();
        {
            let mut ledger = self.ledger();
            for sandbox in homes.values() {
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
                let Some(home) = homes.get(&task.sandbox) else {
                    // It holds nothing. Its orchestrator may start it again, and an agent of Nomad's knows no more of its devices than the token.
                    for claim in task.details.leases.iter().filter(|claim| !claim.named) {
                        ledger.devices.recall(claim.token, Lease::new(task.meta.owner, claim.slots.clone()));
                    }
                    continue;
                };
                ledger.compute.record(task.id, recovered_holder(task, home));
                for claim in &task.details.leases {
                    let name = home.meta.name.clone();
                    let lease = Lease::bound(task.meta.owner, claim.slots.clone(), home.id, name);
                    let lease = Lease { named: claim.named, ..lease };
                    ledger.devices.record(claim.token, lease);
                    in_use.push(claim.token);
                }
            }
            for (port, one, other) in ledger.ports.conflicts() {
                tracing::warn!(%port, %one, %other, "two have the same port of the host: neither is ended");
            }
            for (cores, one, other) in ledger.compute.conflicts() {
                tracing::warn!(%cores, %one, %other, "two have the same processors for themselves: neither is ended");
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
                    "the leases of devices cannot be read: none is given out until this daemon is started anew"
                );
            }
        }
        // Those that a task has were left by a kill between the making of the task and this.
        self.remove_stored(&in_use).await;
        for remnant in &recovered.remnants {
            self.release_when_undone(remnant.id);
        }
        self.expire_leases();
    }
}

/// Whether a sandbox in this state has what it was made with.
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
