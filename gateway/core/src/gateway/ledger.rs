//! The node's resources that sandboxes hold: claimed before they are created, released when they have
//! stopped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::MutexGuard;

use super::Gateway;
use super::compute::recovered_holder;
use super::ledger_report::LedgerReport;
use crate::backend::Recovered;
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::id::{LeaseToken, SandboxId};
use crate::ledger::{Lease, LeaseState, Ledger, PortHolder, Refusal, StoredLease};
use crate::object::Sandbox;
use crate::spec::SandboxSpec;
use crate::state::SandboxState;

/// The first and the longest pause between attempts to read the stored leases.
const READ_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

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
                self.add_stored(stored);
                // A task has these leases: a predecessor was killed after it created the task and before it removed
                // them from the store.
                self.remove_stored(&in_use).await;
            }
            Err(error) if is_final(&error) => report_unreadable(&error),
            Err(error) => {
                tracing::warn!(
                    error = error.report(),
                    "cannot read the device leases yet: no device is leased until they can be read"
                );
                let gateway = self.clone();
                self.shared.watchers.spawn(async move {
                    let unwatched = gateway.shared.unwatched.clone();
                    unwatched.run_until_cancelled(gateway.read_stored_later()).await;
                });
            }
        }
        for remnant in &recovered.remnants {
            self.release_when_undone(remnant.id);
        }
        self.expire_leases();
    }

    /// Reads the stored leases again and again, until they can be read or never will be. A disk may be late while the
    /// node boots, or fail for a moment. Requests are served meanwhile, and no device is leased. Cancel-safe.
    async fn read_stored_later(&self) {
        let mut backoff = Backoff::new(READ_PAUSES.0, READ_PAUSES.1);
        loop {
            backoff.wait().await;
            match self.shared.leases.load().await {
                Ok(stored) => {
                    // Those that tasks have stay in the store until they are released, or until the next recovery: a task
                    // may be removed just now, and its sandbox keep the lease.
                    self.add_stored(stored);
                    tracing::info!("the device leases can be read again: devices are leased from now on");
                    return;
                }
                Err(error) if is_final(&error) => return report_unreadable(&error),
                Err(error) => tracing::debug!(error = error.report(), "still cannot read the device leases"),
            }
        }
    }

    /// Adds the stored leases that nobody has; devices can be leased from then on.
    fn add_stored(&self, stored: Vec<StoredLease>) {
        {
            let mut ledger = self.ledger();
            for StoredLease { token, owner, slots } in stored {
                let known = ledger.devices.get(token).map(|lease| &lease.state);
                // A remembered token has no slots: the store knows more of it.
                if matches!(known, None | Some(LeaseState::Released { grace: false })) {
                    ledger.devices.record(token, Lease::new(owner, slots));
                }
            }
            ledger.devices.set_recovered();
        }
        self.shared.views.mark_changed();
    }
}

/// Whether the stored leases can never be read as they are: see [`LeaseStore::load`].
///
/// [`LeaseStore::load`]: crate::ledger::LeaseStore::load
fn is_final(error: &Error) -> bool {
    error.kind() == ErrorKind::FailedPrecondition
}

fn report_unreadable(error: &Error) {
    tracing::error!(
        error = error.report(),
        "cannot read the device leases: no device is leased until the daemon is restarted"
    );
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
