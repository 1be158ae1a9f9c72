//! Device leases, and the task that keeps each owner's view of the devices up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::{Gateway, NamedDevices, Scope};
use crate::device::{Inventories, Reservation};
use crate::error::{Error, Result};
use crate::id::{LeaseToken, Owner, SandboxId, TaskId};
use crate::ledger::{DeviceNames, LeaseState, RefusalReason, StoredLease, TickLimits, TickOutcome, View};
use crate::object::Task;
use crate::operation::{Caller, OperationKind, Subject};
use crate::spec::{LeaseClaim, TaskSpec};
use crate::state::TaskState;

/// The interval at which unused leases are aged.
const TICK: Duration = Duration::from_secs(1);

/// A granted lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Leased {
    /// The token with which a task is created: see [`TaskSpec::leases`].
    pub token: LeaseToken,
    /// What a task created with it gets.
    pub reservation: Reservation,
}

/// The leases that a task being created is bound to.
#[derive(Debug)]
pub(super) struct BoundClaims {
    /// All its claims.
    pub(super) claims: Vec<LeaseClaim>,
    /// Those of them that its sandbox did not have before.
    pub(super) fresh: Vec<LeaseClaim>,
}

// === impl Scope ===

impl Scope {
    /// This owner's view of the devices, kept up to date: each slot as a device of its own, unhealthy while
    /// another owner holds it. `None` until the hardware was scanned.
    pub fn devices(&self) -> Inventories {
        self.gateway.shared.views.subscribe(self.owner)
    }

    /// Returns once the hardware was scanned. Cancel-safe.
    pub async fn devices_scanned(&self) {
        let mut changes = self.gateway.shared.views.changes.subscribe();
        while !self.gateway.ledger().devices.is_scanned() {
            // The sender lives as long as the gateway.
            let _ = changes.changed().await;
        }
    }

    /// Leases slots of devices to this owner; the lease is on disk when this returns. A request for the same
    /// slots as an unused lease returns that lease. Cancel-safe: the work continues, and a repeated request
    /// returns the same lease.
    ///
    /// # Errors
    /// `InvalidArgument` if `slots` is empty or too long; `NotFound` for an unknown slot;
    /// `FailedPrecondition`, naming the holder if there is one, for a slot that another owner holds, that is
    /// unhealthy, or that exceeds the quota; `Unavailable` before recovery.
    pub async fn lease(&self, slots: &[String]) -> Result<Leased> {
        let gateway = self.gateway.clone();
        let owner = self.owner;
        let slots = slots.to_vec();
        let what = format!("lease of devices to {owner}");
        let operation = self.begin(OperationKind::LeaseDevices, Subject::argument(&some_of(&slots)));
        let work = operation.run(async move { gateway.lease(owner, &slots).await });
        self.gateway.run_detached(what, work).await
    }

    /// What a task with this lease would get, with the devices as they are now; `None` if the token is not
    /// (or no longer) a lease of this owner. For an orchestrator that has lost the answer of [`Scope::lease`]
    /// but still has the token.
    ///
    /// # Errors
    /// `Unavailable` before recovery and before the hardware was scanned; `FailedPrecondition` for a device
    /// that is gone or unhealthy.
    pub fn reservation(&self, token: LeaseToken) -> Result<Option<Reservation>> {
        self.gateway.ready()?;
        let ledger = self.gateway.ledger();
        let lease = ledger.devices.get(token).filter(|lease| lease.owner == self.owner);
        lease.map(|lease| ledger.devices.reserve(&lease.slots)).transpose()
    }

    /// Waits until no sandbox holds any of these slots that a newer lease of this owner is waiting for.
    /// Cancel-safe.
    ///
    /// # Errors
    /// `DeadlineExceeded` if that takes longer than `patience`: try again.
    pub async fn wait_until_free(&self, slots: &[String], patience: Duration) -> Result<()> {
        let mut changes = self.gateway.shared.views.changes.subscribe();
        let vacated = async {
            while self.gateway.ledger().devices.has_slot_awaiting_release(self.owner, slots) {
                // The sender lives as long as the gateway.
                let _ = changes.changed().await;
            }
        };
        timeout(patience, vacated).await.map_err(|_| {
            let text = format!("what had devices {slots:?} before still runs: try again when it has ended");
            Error::deadline(text)
        })
    }

    /// Reports the slots that the orchestrator's pods have, from its own list: an unused lease that is
    /// missing from several consecutive lists is ended.
    pub async fn reconcile_listed(&self, listed: &BTreeSet<String>) {
        let ended = self.gateway.ledger().devices.end_unlisted(self.owner, listed);
        if !ended.is_empty() {
            tracing::info!(owner = %self.owner, leases = ended.len(), "unused leases ended: their orchestrator does not list them any more");
            self.gateway.shared.views.mark_changed();
            self.gateway.remove_stored(&ended).await;
        }
    }

    /// Reports that the start for which these leases were requested has failed. Those that no sandbox uses
    /// stay reserved for this owner only as long as after the stop of a sandbox (the time for a restart), not
    /// as long as before a first start. They stay on disk during that time.
    pub fn start_failed(&self, leases: &[LeaseClaim]) {
        let tokens: Vec<LeaseToken> = leases.iter().map(|claim| claim.token).collect();
        if !self.gateway.ledger().devices.start_failed(self.owner, &tokens).is_empty() {
            self.gateway.shared.views.mark_changed();
        }
    }

    /// This owner's unused leases although all of their slots are in the orchestrator's list.
    #[must_use]
    pub fn unused(&self, listed: &BTreeSet<String>) -> BTreeSet<LeaseToken> {
        let ledger = self.gateway.ledger();
        let own = ledger.devices.leases().filter(|(_, lease)| {
            lease.owner == self.owner && matches!(lease.state, LeaseState::Unbound { .. })
        });
        own.filter(|(_, lease)| lease.slots.iter().all(|slot| listed.contains(slot)))
            .map(|(token, _)| token)
            .collect()
    }
}

/// The first of these slots, for people.
fn some_of(slots: &[String]) -> String {
    const SHOWN: usize = 4;
    let mut text = slots.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(" ");
    if slots.len() > SHOWN {
        text.push_str(&format!(" and {} more", slots.len() - SHOWN));
    }
    text
}

// === impl Gateway ===

impl Gateway {
    /// Follows the inventory `hardware` and updates each owner's view, until the gateway shuts down. Call it
    /// once. No view has a healthy device before recovery.
    pub fn watch_devices(&self, mut hardware: Inventories) {
        let gateway = self.clone();
        self.shared.watchers.spawn(async move {
            gateway.shared.unwatched.run_until_cancelled(gateway.publish_views()).await;
        });
        let gateway = self.clone();
        self.shared.watchers.spawn(async move {
            let shared = &gateway.shared;
            loop {
                let seen = hardware.borrow_and_update().clone();
                if let Some(seen) = seen {
                    gateway.ledger().devices.set_inventory(&seen);
                    shared.views.mark_changed();
                }
                tokio::select! {
                    changed = hardware.changed() => if changed.is_err() { return },
                    () = shared.unwatched.cancelled() => return,
                }
            }
        });
    }

    /// Ends a lease at an operator's request. Possible if no sandbox has the lease, or if all tasks of the
    /// sandbox that has it have exited.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if a sandbox with a task that has not exited has it.
    pub async fn release_lease(&self, token: LeaseToken) -> Result<()> {
        let subject = Subject::argument(&token.to_string());
        let registry = &self.shared.registry;
        let operation = registry.begin(OperationKind::ReleaseLease, None, Caller::current(), subject);
        operation.run(self.release_unused_lease(token)).await
    }

    async fn release_unused_lease(&self, token: LeaseToken) -> Result<()> {
        {
            let mut ledger = self.ledger();
            let lease = ledger
                .devices
                .get(token)
                .ok_or_else(|| Error::not_found(format!("lease {token} does not exist")))?;
            match &lease.state {
                LeaseState::Bound { sandbox, name } if !self.has_ended(*sandbox) => {
                    let text =
                        format!("lease {token} is in use by {name} of {}: it ends with that", lease.owner);
                    return Err(Error::failed_precondition(text));
                }
                LeaseState::Bound { .. } => ledger.devices.unbind_stopped(token),
                LeaseState::Unbound { .. } | LeaseState::Released { .. } => {
                    ledger.devices.drop_unused(token);
                }
            }
        }
        tracing::info!(lease = %token, "an operator ended a device lease");
        self.shared.views.mark_changed();
        self.remove_stored(&[token]).await;
        Ok(())
    }

    /// Whether a sandbox has tasks and all of them have exited: while its orchestrator is unavailable,
    /// nothing stops such a sandbox.
    fn has_ended(&self, sandbox: SandboxId) -> bool {
        let tasks = self.shared.table.tasks_of(sandbox);
        !tasks.is_empty() && tasks.iter().all(|task| matches!(task.state, TaskState::Exited { .. }))
    }

    async fn lease(&self, owner: Owner, slots: &[String]) -> Result<Leased> {
        self.ready()?;
        let _guard = self.shared.lease_locks.lock(owner).await;
        let granted = self.ledger().devices.lease(owner, slots, LeaseToken::random());
        let granted = granted.map_err(|refusal| self.record_refusal(refusal))?;
        let token = granted.token;
        let stored = StoredLease { token, owner, slots: granted.lease.slots };
        let store = async {
            // Removed before the new lease is written, so that overlapping leases cannot both come back after
            // a power failure.
            self.remove_stored(&granted.ended).await;
            // An existing lease is written as well: it may have been unbound from a task, and then it is not
            // on disk.
            self.shared.leases.put(&stored).await
        };
        if let Err(error) = self.shared.views.mark_changed_after(store).await {
            if granted.is_new {
                self.ledger().devices.drop_unused(token);
                self.shared.views.mark_changed();
                self.remove_stored(&[token]).await;
            }
            return Err(error.context(format!("lease devices {slots:?}")));
        }
        Ok(Leased { token, reservation: granted.reservation })
    }

    /// Binds the leases that a task names to its sandbox, and leases the devices that it names directly; all
    /// or none. An unknown lease (its task may have been removed before a predecessor ended) is not an error
    /// if the task also names its devices directly and they are free.
    pub(super) fn bind(&self, sandbox: SandboxId, spec: &TaskSpec) -> Result<BoundClaims> {
        let name =
            self.shared.table.sandbox(sandbox).map(|found| found.meta.name.clone()).unwrap_or_default();
        let had = self.ledger().devices.of_sandbox(sandbox);
        let fresh = |claims: &[LeaseClaim]| {
            let fresh = claims.iter().filter(|claim| !had.contains(&claim.token));
            fresh.cloned().collect::<Vec<_>>()
        };
        let mut bound: Vec<LeaseClaim> = Vec::new();
        let mut lost = None;
        for claim in &spec.leases {
            let one = self.ledger().devices.bind(spec.meta.owner, claim.token, sandbox, &name);
            match one {
                Ok(claim) => bound.push(claim),
                Err(refusal) if refusal.reason == RefusalReason::Lost => lost = Some(refusal),
                Err(refusal) => {
                    self.unbind(&fresh(&bound));
                    return Err(self.record_refusal(refusal));
                }
            }
        }
        match (self.lease_named(spec, sandbox, &name), lost) {
            (Ok(named), Some(refusal)) if named.is_empty() => {
                self.unbind(&fresh(&bound));
                return Err(self.record_refusal(refusal));
            }
            (Ok(named), _) => {
                let known: Vec<LeaseToken> = bound.iter().map(|claim| claim.token).collect();
                bound.extend(named.into_iter().filter(|claim| !known.contains(&claim.token)));
            }
            (Err(error), _) => {
                self.unbind(&fresh(&bound));
                return Err(error);
            }
        }
        if !bound.is_empty() {
            self.shared.views.mark_changed();
        }
        Ok(BoundClaims { fresh: fresh(&bound), claims: bound })
    }

    /// Claims again, for a task that is about to start, the leases it was created with: its sandbox may have
    /// been stopped and started again since.
    ///
    /// # Errors
    /// `FailedPrecondition` if another holder has a slot now.
    pub(super) fn reclaim_leases(&self, task: &Task) -> Result<()> {
        for claim in &task.details.leases {
            let name = self.shared.table.sandbox(task.sandbox).map(|found| found.meta.name.clone());
            let place = (task.sandbox, name.unwrap_or_default());
            let taken = self.ledger().devices.reclaim(task.meta.owner, claim, place);
            taken.map_err(|refusal| self.record_refusal(refusal))?;
        }
        if !task.details.leases.is_empty() {
            self.shared.views.mark_changed();
        }
        Ok(())
    }

    fn lease_named(&self, spec: &TaskSpec, sandbox: SandboxId, name: &str) -> Result<Vec<LeaseClaim>> {
        let nodes: Vec<&Path> = spec.devices.iter().map(|node| node.host_path.as_path()).collect();
        if nodes.is_empty() && spec.cdi_devices.is_empty() {
            return Ok(Vec::new());
        }
        let named = DeviceNames { nodes: &nodes, cdi: &spec.cdi_devices };
        let leased = self.ledger().devices.lease_named(spec.meta.owner, named, (sandbox, name));
        match (leased, self.shared.limits.get().named_devices) {
            (Ok(claims), _) => Ok(claims),
            (Err(refusal), NamedDevices::Refuse) => Err(self.record_refusal(refusal)),
            (Err(refusal), NamedDevices::Warn) => {
                tracing::warn!(task = spec.meta.name, %refusal, "a task names a device that another holder has: created nevertheless");
                Ok(Vec::new())
            }
        }
    }

    /// Unbinds leases of a task that was not created, unless another task of the sandbox uses them.
    pub(super) fn unbind(&self, claims: &[LeaseClaim]) {
        for claim in claims {
            let mut ledger = self.ledger();
            let Some(LeaseState::Bound { sandbox, .. }) =
                ledger.devices.get(claim.token).map(|lease| lease.state.clone())
            else {
                continue;
            };
            let used =
                self.shared.table.tasks_of(sandbox).iter().any(|task| has(&task.details.leases, claim.token));
            match (used, claim.named) {
                (true, _) => {}
                (false, true) => ledger.devices.revoke(claim.token),
                (false, false) => ledger.devices.unbind(claim.token),
            }
        }
        if !claims.is_empty() {
            self.shared.views.mark_changed();
        }
    }

    /// Removes leases from the lease store once the record of a task contains them.
    pub(super) async fn forget_stored(&self, claims: &[LeaseClaim]) {
        let tokens: Vec<LeaseToken> = claims.iter().map(|claim| claim.token).collect();
        self.remove_stored(&tokens).await;
    }

    /// Called before a task that does not run is removed, for its leases that no other task of the sandbox
    /// has: the sandbox keeps them for a next task, and they go back into the lease store; leases of devices
    /// that the task named directly are ended.
    pub(super) async fn store_orphaned(&self, id: TaskId) {
        let Some(task) = self.shared.table.task(id) else { return };
        if task.details.leases.is_empty() || self.check_ready(task.sandbox).is_err() {
            return;
        }
        let others: Vec<_> =
            self.shared.table.tasks_of(task.sandbox).into_iter().filter(|other| other.id != id).collect();
        for claim in &task.details.leases {
            if others.iter().any(|other| has(&other.details.leases, claim.token)) {
                continue;
            }
            let LeaseClaim { token, slots, named } = claim.clone();
            if named {
                self.ledger().devices.revoke(token);
                self.shared.views.mark_changed();
                continue;
            }
            // An error is not returned: removing the task frees space and must proceed on a full disk.
            if let Err(error) =
                self.shared.leases.put(&StoredLease { token, owner: task.meta.owner, slots }).await
            {
                let error = error.report();
                tracing::warn!(lease = %token, error, "cannot store a lease: it is not on disk until the next task with it is created");
            }
        }
    }

    pub(super) async fn remove_stored(&self, tokens: &[LeaseToken]) {
        if tokens.is_empty() {
            return;
        }
        if let Err(error) = self.shared.leases.remove(tokens).await {
            tracing::warn!(
                error = error.report(),
                "cannot remove ended leases from disk: the next recovery does"
            );
        }
    }

    /// Expires unused leases, until the gateway shuts down.
    pub(super) fn expire_leases(&self) {
        let gateway = self.clone();
        self.shared.watchers.spawn(async move {
            gateway.shared.unwatched.run_until_cancelled(gateway.tick_leases()).await;
        });
        self.shared.views.mark_changed();
    }

    async fn tick_leases(&self) {
        let mut rounds = interval_at(Instant::now() + TICK, TICK);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let limits = self.shared.limits.get();
            let ticks = TickLimits { unbound: ticks(limits.lease), grace: ticks(limits.restart_grace) };
            let TickOutcome { freed, expired } = {
                let mut ledger = self.ledger();
                if ledger.devices.has_timers() { ledger.devices.tick(ticks) } else { TickOutcome::default() }
            };
            if freed {
                self.shared.views.mark_changed();
            }
            // Leases whose start has failed are still in the store.
            self.remove_stored(&expired).await;
        }
    }

    async fn publish_views(&self) {
        let views = &self.shared.views;
        let mut changes = views.changes.subscribe();
        changes.mark_changed();
        let mut made: BTreeMap<Owner, View> = BTreeMap::new();
        // The sender lives as long as the gateway.
        while changes.changed().await.is_ok() {
            // Views are built from a copy, so that lease requests do not wait for them.
            let outlook = Arc::new(self.ledger().devices.snapshot());
            let owners = views.owners();
            made.retain(|owner, _| owners.contains(owner));
            for owner in owners {
                let view = made.entry(owner).or_default();
                *view = outlook.view(owner, view);
                let now = &view.inventory;
                let views = views.by_owner.lock();
                if let Some(view) = views.get(&owner) {
                    view.send_if_modified(|last| {
                        // An unchanged view is the same `Arc` as before, so comparing the addresses is
                        // enough.
                        let is_new = last.as_ref().map(Arc::as_ptr) != now.as_ref().map(Arc::as_ptr);
                        last.clone_from(now);
                        is_new
                    });
                }
            }
        }
    }
}

fn has(claims: &[LeaseClaim], token: LeaseToken) -> bool {
    claims.iter().any(|claim| claim.token == token)
}

/// A duration in ticks, at least one.
fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1)
}
