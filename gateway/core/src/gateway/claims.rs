//! The node's resources that sandboxes and tasks hold: claimed before they are created, released when they have
//! stopped.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout_at};

use super::access::OwnerAccess;
use super::context::Context;
use super::limits::PortConflict;
use crate::backend::{ClaimHolder, HeldClaims, OccupiedPort, RELEASE_LIMIT, Recovered, Unreadable};
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::id::{LeaseToken, Owner, SandboxId};
use crate::ledger::{
    Compute, ComputeHolder, Cpus, Holder, Lease, Ledger, Overcommit, PortHolder, Refusal,
    RefusalReason, Resource,
};
use crate::object::Sandbox;
use crate::operation::plain_step;
use crate::spec::{
    HostPort, Meta, PodNetwork, Reserved, SandboxNetwork, SandboxSpec, not_forwarded,
};
use crate::state::SandboxState;

mod compute;
mod report;

pub use report::LedgerReport;

use compute::recovered_holder;

/// The ledger, and what is claimed in it: ports of the host, processors and memory. Devices are leased in it by
/// [`DeviceLeases`](super::DeviceLeases).
#[derive(Debug)]
pub struct Claims {
    context: Arc<Context>,
    ledger: Mutex<Ledger>,
}

/// View of one owner of the node's resources.
#[derive(Debug, Clone, Copy)]
pub struct ScopedClaims<'s> {
    access: &'s OwnerAccess,
    claims: &'s Claims,
}

// === impl Claims ===

impl Claims {
    /// Without claims.
    pub(super) fn new(context: Arc<Context>) -> Self {
        let limits = context.limits.get();
        let compute = Compute::new(limits.capacity, limits.overcommit);
        Self {
            context,
            ledger: Mutex::new(Ledger::new(compute)),
        }
    }

    /// All allocations of node resources.
    #[must_use]
    pub fn report(&self) -> LedgerReport {
        let ledger = self.ledger();
        LedgerReport {
            devices: ledger.devices.clone(),
            compute: ledger.compute.clone(),
            ports: ledger
                .ports
                .holders()
                .map(|(id, holder)| (id, holder.clone()))
                .collect(),
            refusals: ledger.refusals().clone(),
        }
    }

    /// Sets what happens to a task that reserves more than is left.
    pub(super) fn set_policy(&self, overcommit: Overcommit) {
        self.ledger().compute.set_policy(overcommit);
    }

    /// The ledger, for a short operation in memory.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Counts, logs and publishes a refusal, and returns the error for the caller.
    pub(super) fn record_refusal(&self, mut refusal: Refusal) -> Error {
        if let Some(holder) = &mut refusal.holder {
            self.name_for_people(holder);
        }
        self.ledger().count(&refusal);
        tracing::warn!(
            owner = %refusal.owner,
            resource = refusal.resource(),
            reason = refusal.reason.as_str(),
            holder = refusal.holder.as_ref().and_then(|holder| holder.sandbox).map(tracing::field::display),
            "refused: {refusal}"
        );
        self.context
            .table
            .announce(refusal.owner, EventKind::Refused(Arc::new(refusal.clone())));
        refusal.into()
    }

    /// Claims the host ports of a sandbox that is being created or started. Ports of a stopped sandbox whose network is
    /// still being released are waited for, and so are those of one whose creation failed or was cut off, also those that both may have, as
    /// attempts of one pod: until then packets reach the other one. Those it gets all the same, if that takes too long.
    ///
    /// # Errors
    /// `FailedPrecondition` if another holder has one of them. Then the sandbox holds what it held before.
    pub(super) async fn claim_ports(&self, id: SandboxId, spec: &SandboxSpec) -> Result<()> {
        let holder = PortHolder {
            owner: spec.meta.owner,
            name: spec.meta.name.clone(),
            claims: spec.host_ports.clone(),
        };
        let deadline = Instant::now() + RELEASE_LIMIT;
        let sharing = self.ledger().ports.sharing(id, &holder);
        for other in sharing {
            if self.is_ending(other) {
                self.wait_for_ports_of(other, deadline).await;
            }
        }
        loop {
            let claimed = self.ledger().ports.claim(id, holder.clone());
            let Err(refusal) = claimed else {
                return Ok(());
            };
            let other = refusal.holder.as_ref().and_then(|holder| holder.sandbox);
            let Some(other) = other.filter(|other| self.is_ending(*other)) else {
                return Err(self.record_refusal(refusal));
            };
            if !self.wait_for_ports_of(other, deadline).await {
                let why = format!(
                    "the network of sandbox {other}, which is stopped or was never completed, was not released within {RELEASE_LIMIT:?}: the log says under this id what fails"
                );
                return Err(self.record_refusal(refusal).context(why));
            }
        }
    }

    /// Waits until the network of a sandbox that [is ending](Self::is_ending) is released, and releases its ports. Returns whether that was in
    /// time.
    async fn wait_for_ports_of(&self, ending: SandboxId, deadline: Instant) -> bool {
        let released = self.context.backend.wait_network_released(ending);
        let released = timeout_at(deadline, released);
        let is_released = plain_step("wait_for_ports", released).await.is_ok();
        if is_released {
            self.release_ports_of_stopped(ending);
        }
        is_released
    }

    /// Returns whether a sandbox holds its ports until its network is released, and no longer: it is stopped, or its creation failed or was cut off.
    fn is_ending(&self, id: SandboxId) -> bool {
        self.is_stopped(id) || self.ledger().ports.is_ending(id)
    }

    /// Returns whether there is a sandbox with this id that is stopped, as is one that is being removed.
    fn is_stopped(&self, id: SandboxId) -> bool {
        let is_stopped =
            |state: &SandboxState| matches!(state, SandboxState::Stopped | SandboxState::Removing);
        let sandbox = self.context.table.sandbox(id);
        sandbox.is_some_and(|sandbox| is_stopped(&sandbox.state))
    }

    /// Releases the ports of a sandbox whose network is released, unless it is being started again: then they are those of
    /// the start.
    fn release_ports_of_stopped(&self, id: SandboxId) {
        let mut ledger = self.ledger();
        if self.context.table.sandbox(id).is_none() || self.is_stopped(id) {
            ledger.ports.release(id);
        }
    }

    /// Looks whether a program of the node listens on a port that is to be forwarded to a sandbox: it would lose its
    /// connections, without a word to anybody. Called when the ports are claimed: the ledger knows who holds a port, and
    /// decides between two who ask at once.
    ///
    /// # Errors
    /// `FailedPrecondition` if one does, and the sandbox is not to have the port all the same.
    pub(super) async fn check_listeners(&self, spec: &SandboxSpec) -> Result<()> {
        let Meta { owner, name, .. } = &spec.meta;
        let ports = HostPort::forwarded_into(&spec.network);
        if ports.is_empty() {
            return Ok(());
        }
        let OccupiedPort { port, process } = match self.context.backend.find_listener(&ports).await
        {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            Err(error) => {
                tracing::warn!(%owner, name, error = error.report(), "cannot look who listens on the ports of a sandbox: they are forwarded all the same");
                return Ok(());
            }
        };
        let refusal = Refusal {
            owner: *owner,
            resource: Resource::Port(port),
            reason: RefusalReason::Listening(process),
            holder: None,
        };
        match (owner, self.context.limits.get().port_conflict) {
            // A pod that runs on containerd has to run here.
            (Owner::Kubernetes, PortConflict::Warn) => {
                self.record_conflict(refusal);
                Ok(())
            }
            (Owner::Kubernetes, PortConflict::Refuse)
            | (Owner::Nomad | Owner::Swarm | Owner::Host, _) => Err(self.record_refusal(refusal)),
        }
    }

    /// Announces a host port that does not lead to a sandbox with these addresses, if there is one. Backends refuse it to
    /// others than pods.
    pub(super) fn announce_not_forwarded(
        &self,
        owner: Owner,
        network: &SandboxNetwork,
        ips: &[IpAddr],
    ) {
        let SandboxNetwork::Pod(PodNetwork { ports, .. }) = network else {
            return;
        };
        if let Some((port, why)) = not_forwarded(ports, ips) {
            self.record_conflict(Refusal {
                owner,
                resource: Resource::Port(port),
                reason: RefusalReason::NotForwarded(why),
                holder: None,
            });
        }
    }

    /// Puts before the name of a holder the one that people know it by, such as that of its service. A sandbox that is
    /// still being created has its name alone.
    fn name_for_people(&self, holder: &mut Holder) {
        let Some(names) = self.context.names.get() else {
            return;
        };
        let sandbox = holder.sandbox.and_then(|id| self.context.table.sandbox(id));
        if let Some(sandbox) = sandbox {
            let display = names(&sandbox.meta).to_string();
            if display != holder.name {
                holder.name = format!("{display} [{}]", holder.name);
            }
        }
    }

    /// Logs and publishes what speaks against something that is given all the same.
    fn record_conflict(&self, conflict: Refusal) {
        tracing::warn!(
            owner = %conflict.owner,
            resource = conflict.resource(),
            reason = conflict.reason.as_str(),
            "given all the same: {conflict}"
        );
        self.context
            .table
            .announce(conflict.owner, EventKind::Conflict(Arc::new(conflict)));
    }

    /// Releases everything that a stopped sandbox holds, and returns the leases that are over. Of a network that is still being
    /// released it holds the ports: [`Claims::release_when_undone`] releases them.
    pub(super) fn release_sandbox(&self, id: SandboxId) -> Vec<LeaseToken> {
        let released = self.context.backend.wait_network_released(id);
        let is_released = released.now_or_never().is_some();
        let mut ledger = self.ledger();
        if is_released {
            ledger.ports.release(id);
        }
        ledger.compute.release_sandbox(id);
        ledger.devices.release_sandbox(id)
    }

    /// Releases the ports of a sandbox whose creation failed, or that is stopped, once its network is released: until
    /// then packets still reach it.
    pub(super) fn release_when_undone(self: &Arc<Self>, id: SandboxId) {
        if self
            .context
            .backend
            .wait_network_released(id)
            .now_or_never()
            .is_some()
        {
            self.ledger().ports.release(id);
            return;
        }
        self.ledger().ports.note_ending(id);
        let claims = Arc::clone(self);
        self.context.watchers.spawn(async move {
            let context = &claims.context;
            tokio::select! {
                () = context.backend.wait_network_released(id) => claims.release_ports_of_stopped(id),
                () = context.unwatched.cancelled() => {}
            }
        });
    }

    /// Records the claims of all recovered objects, and returns the leases that tasks have. Conflicting claims are
    /// logged and both kept.
    pub(super) fn recover(&self, recovered: &Recovered) -> Vec<LeaseToken> {
        let in_use = self.record(recovered);
        let (ports, cores) = {
            let ledger = self.ledger();
            (ledger.ports.conflicts(), ledger.compute.conflicts())
        };
        // Without the ledger: a log line waits for the reader of a full pipe.
        for (port, one, other) in ports {
            tracing::warn!(%port, %one, %other, "two sandboxes have the same host port: neither is stopped");
        }
        for (cores, one, other) in cores {
            tracing::warn!(%cores, %one, %other, "two tasks have the same processors exclusively: neither is stopped");
        }
        in_use
    }

    /// Records the claims of all recovered objects, and returns the leases that tasks have.
    fn record(&self, recovered: &Recovered) -> Vec<LeaseToken> {
        let mut in_use: Vec<LeaseToken> = Vec::new();
        let holding = recovered
            .sandboxes
            .iter()
            .filter(|sandbox| holds_ports(&sandbox.state));
        let holding: BTreeMap<SandboxId, &Sandbox> =
            holding.map(|sandbox| (sandbox.id, sandbox)).collect();
        let mut ledger = self.ledger();
        for sandbox in holding.values() {
            ledger.ports.record(sandbox.id, port_holder(sandbox));
        }
        for remnant in &recovered.remnants {
            let owner = remnant.owner;
            let name = remnant.name.clone();
            ledger.ports.record(
                remnant.id,
                PortHolder {
                    owner,
                    name,
                    claims: remnant.host_ports.clone(),
                },
            );
        }
        for task in &recovered.tasks {
            let Some(sandbox) = holding.get(&task.sandbox) else {
                // The sandbox has stopped, so the task holds nothing. Its leases are remembered: its
                // orchestrator may start it again, and a Nomad agent knows only the token of its devices.
                for claim in task.details.leases.iter().filter(|claim| !claim.named) {
                    ledger.devices.recall(
                        claim.token,
                        Lease::new(task.meta.owner, claim.slots.clone()),
                    );
                }
                continue;
            };
            ledger
                .compute
                .record(task.id, recovered_holder(task, sandbox));
            for claim in &task.details.leases {
                let name = sandbox.meta.name.clone();
                let lease = Lease::bound(task.meta.owner, claim.slots.clone(), sandbox.id, name);
                let lease = Lease {
                    named: claim.named,
                    ..lease
                };
                ledger.devices.record(claim.token, lease);
                in_use.push(claim.token);
            }
        }
        // Last: a lease that such a task shares with one that can be read stays held when that has gone.
        for held in &recovered.unreadable {
            let sandbox = held.sandbox.and_then(|id| holding.get(&id).copied());
            record_unreadable(&mut ledger, held, sandbox);
        }
        in_use
    }
}

// === impl ScopedClaims ===

impl<'s> ScopedClaims<'s> {
    pub(super) const fn new(access: &'s OwnerAccess, claims: &'s Claims) -> Self {
        Self { access, claims }
    }

    /// All processors and memory of the node; `None` if not known.
    #[must_use]
    pub fn capacity(self) -> Option<Reserved> {
        self.access.context().limits.get().capacity
    }

    /// The processors and memory that the tasks of all other owners reserve.
    #[must_use]
    pub fn reserved_by_others(self) -> Reserved {
        let ledger = self.claims.ledger();
        let others = ledger
            .compute
            .reserved()
            .iter()
            .filter(|(owner, _)| **owner != self.access.owner());
        others.fold(Reserved::default(), |sum, (_, reserved)| {
            sum.plus(*reserved)
        })
    }

    /// Returns whether no sandbox of any owner has this port of the host at the moment. The holder is not
    /// reported.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn is_host_port_free(self, port: &HostPort) -> Result<bool> {
        self.access.ready()?;
        Ok(self.claims.ledger().ports.is_free(port))
    }
}

/// Records what an object holds that cannot be read. Nothing releases it: the holder is a sandbox of its own, which
/// nobody can stop. Its devices are those of its sandbox, if that can be read: other tasks there may have them too, and it
/// cannot be stopped either.
fn record_unreadable(ledger: &mut Ledger, held: &Unreadable, of_task: Option<&Sandbox>) {
    let HeldClaims {
        host_ports,
        leases,
        exclusive_cpus,
        reserved,
        // Their removal is refused by what the table says.
        images: _,
        is_complete,
    } = &held.claims;
    let ClaimHolder {
        owner,
        sandbox,
        task,
    } = held.holder();
    let name = if held.name.is_empty() {
        &held.id
    } else {
        &held.name
    };
    let ports = PortHolder {
        owner,
        name: name.clone(),
        claims: host_ports.clone(),
    };
    ledger.ports.record(sandbox, ports);
    let (device_holder, device_holder_name) =
        of_task.map_or((sandbox, name), |found| (found.id, &found.meta.name));
    for claim in leases {
        let name = device_holder_name.clone();
        let lease = Lease::bound(owner, claim.slots.clone(), device_holder, name);
        let lease = Lease {
            named: claim.named,
            ..lease
        };
        ledger.devices.record(claim.token, lease);
    }
    let compute = ComputeHolder {
        owner,
        sandbox,
        name: name.clone(),
        cpus: exclusive_cpus.clone().map_or(Cpus::Any, Cpus::Exclusive),
        reserved: *reserved,
    };
    ledger.compute.hold(task, compute);
    if !is_complete {
        ledger.withhold();
    }
}

/// Returns whether a sandbox in this state holds the resources it was created with.
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
