//! Devices: how each owner sees them, and leases of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::{Gateway, NamedDevices, Scope};
use crate::device::{Inventories, Inventory, Reservation};
use crate::error::{Error, Result};
use crate::id::{LeaseToken, Owner, SandboxId, TaskId};
use crate::ledger::{DeviceNames, LeaseState, Reason, StoredLease, TickLimits, TickOutcome, View};
use crate::spec::{LeaseClaim, TaskSpec};
use crate::state::TaskState;
use crate::table::Task;

/// How often leases that nobody uses are looked at.
const TICK: Duration = Duration::from_secs(1);

/// Devices that were leased.
#[derive(Debug, Clone, PartialEq)]
pub struct Leased {
    /// By this a task is made with them: see [`TaskSpec::leases`].
    pub token: LeaseToken,
    /// What the task gets.
    pub reservation: Reservation,
}

/// How a resource is in use. The first is the more urgent one for its orchestrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceUse {
    /// A device of it is leased, or was given to a task, and no task that has it runs: its orchestrator is about to start one.
    Waiting,
    /// Each of its devices in use has a task that runs.
    Running,
}

/// What a task that is being made has.
#[derive(Debug)]
pub(super) struct BoundClaims {
    /// All its claims.
    pub(super) claims: Vec<LeaseClaim>,
    /// Those of them that its sandbox did not have before.
    pub(super) fresh: Vec<LeaseClaim>,
}

/// How each owner sees the devices, for those owners that somebody looks for.
#[derive(Debug, Default)]
pub(super) struct DeviceViews {
    /// Counts changes.
    changes: watch::Sender<u64>,
    by_owner: Mutex<BTreeMap<Owner, watch::Sender<Option<Arc<Inventory>>>>>,
}

// === impl Views ===

impl DeviceViews {
    /// Something has changed: whoever looks is told soon.
    pub(super) fn mark_changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn subscribe(&self, owner: Owner) -> Inventories {
        let mut views = self.by_owner.lock().unwrap_or_else(PoisonError::into_inner);
        let view = views.entry(owner).or_insert_with(|| watch::Sender::new(None)).subscribe();
        drop(views);
        self.mark_changed();
        view
    }
}

// === impl Scope ===

impl Scope {
    /// The devices as this owner sees them, kept up to date: each slot as a device of its own, unhealthy while it belongs to another owner.
    /// `None` until the hardware was looked at.
    pub fn devices(&self) -> Inventories {
        self.gateway.shared.views.subscribe(self.owner)
    }

    /// Leases slots of devices to this owner. It is on disk when this returns. The same slots, leased and not made use of yet, are the same
    /// lease. Cancel-safe: the work goes on, and asking again gives the same lease.
    ///
    /// # Errors
    /// `InvalidArgument` if none is named, or too many; `NotFound` for a slot that is not there; `FailedPrecondition` for one that another
    /// owner has, that is not well, or that is beyond the quota, with the holder; `Unavailable` before recovery.
    pub async fn lease(&self, slots: &[String]) -> Result<Leased> {
        let gateway = self.gateway.clone();
        let owner = self.owner;
        let slots = slots.to_vec();
        let what = format!("lease of devices to {owner}");
        self.gateway.run_detached(what, async move { gateway.lease(owner, &slots).await }).await
    }

    /// What a task gets with a lease of this owner, as the devices are now; `None` for a token that is no lease of this owner's, or not any
    /// more. An orchestrator that has forgotten what it was answered still knows the token.
    ///
    /// # Errors
    /// `Unavailable` before recovery and before the hardware was looked at; `FailedPrecondition` for a device that is not there any more or
    /// not well.
    pub fn reservation(&self, token: LeaseToken) -> Result<Option<Reservation>> {
        self.gateway.ready()?;
        let ledger = self.gateway.ledger();
        let lease = ledger.devices.get(token).filter(|lease| lease.owner == self.owner);
        lease.map(|lease| ledger.devices.reserve(&lease.slots)).transpose()
    }

    /// The resources of which tasks of this owner may have devices, each with the state of its tasks: by its leases that are not over, and
    /// by the records of its tasks, also of those whose sandbox has stopped.
    #[must_use]
    pub fn resources_in_use(&self) -> BTreeMap<String, ResourceUse> {
        let tasks = self.gateway.shared.table.tasks(self.owner);
        let ledger = self.gateway.ledger();
        let mut slots: BTreeMap<&str, ResourceUse> = BTreeMap::new();
        for (_, lease) in ledger.devices.leases() {
            if lease.owner == self.owner && lease.state.keeps_slots() {
                slots.extend(lease.slots.iter().map(|slot| (slot.as_str(), ResourceUse::Waiting)));
            }
        }
        for task in &tasks {
            for slot in task.details.leases.iter().flat_map(|claim| &claim.slots) {
                let seen = slots.entry(slot).or_insert(ResourceUse::Waiting);
                if task.state.is_running() {
                    *seen = ResourceUse::Running;
                }
            }
        }
        let mut resources = BTreeMap::new();
        for (slot, seen) in slots {
            if let Some(resource) = ledger.devices.resource_of(slot).filter(|resource| !resource.is_empty()) {
                let known = resources.entry(resource.to_owned()).or_insert(seen);
                *known = seen.min(*known);
            }
        }
        resources
    }

    /// Waits until no sandbox has these slots that something else of this owner is to be made with. Cancel-safe.
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

    /// Says which slots the orchestrator's pods have, by its own list: a lease that nothing was made with, and that is missing in several
    /// lists one after the other, has ended.
    pub async fn reconcile_listed(&self, listed: &BTreeSet<String>) {
        let ended = self.gateway.ledger().devices.end_unlisted(self.owner, listed);
        if !ended.is_empty() {
            tracing::info!(owner = %self.owner, leases = ended.len(), "leases ended that their orchestrator has no more");
            self.gateway.shared.views.mark_changed();
            self.gateway.remove_stored(&ended).await;
        }
    }

    /// What these leases of this owner were for has failed to start. Those that nothing was made with are kept from other owners for as
    /// long as a restart may take, as after the end of a sandbox, and not for as long as a first start may. They stay on disk that long.
    pub fn start_failed(&self, leases: &[LeaseClaim]) {
        let tokens: Vec<LeaseToken> = leases.iter().map(|claim| claim.token).collect();
        if !self.gateway.ledger().devices.start_failed(self.owner, &tokens).is_empty() {
            self.gateway.shared.views.mark_changed();
        }
    }

    /// This owner's leases that nothing has been made with, although the orchestrator's list has all of their slots.
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

// === impl Gateway ===

impl Gateway {
    /// Keeps the devices as `hardware` has them, and tells each owner of its view, until the gateway shuts down. Call it once. Before
    /// recovery no view has a healthy device.
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

    /// Ends a lease that no sandbox has, or one in which every task has ended, as an operator asks for.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if a sandbox has it with a task that has not ended.
    pub async fn release_lease(&self, token: LeaseToken) -> Result<()> {
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
        tracing::info!(lease = %token, "a lease of devices was ended by an operator");
        self.shared.views.mark_changed();
        self.remove_stored(&[token]).await;
        Ok(())
    }

    /// Whether a sandbox has had tasks, and all of them have ended: an orchestrator that is away does not stop it.
    fn has_ended(&self, sandbox: SandboxId) -> bool {
        let tasks = self.shared.table.tasks_of(sandbox);
        !tasks.is_empty() && tasks.iter().all(|task| matches!(task.state, TaskState::Exited { .. }))
    }

    async fn lease(&self, owner: Owner, slots: &[String]) -> Result<Leased> {
        self.ready()?;
        let _turn = self.shared.lease_locks.lock(owner).await;
        let granted = self.ledger().devices.lease(owner, slots, LeaseToken::random());
        let granted = granted.map_err(|refusal| self.record_refusal(refusal))?;
        let token = granted.token;
        self.shared.views.mark_changed();
        // Written before the new one, and so on disk with it: no two that overlap come back together after a power cut.
        self.remove_stored(&granted.ended).await;
        // Also one that there was already: it may have been taken back from a task, and not be on disk.
        let stored = StoredLease { token, owner, slots: granted.lease.slots };
        if let Err(error) = self.shared.leases.put(&stored).await {
            if granted.is_new {
                self.ledger().devices.drop_unused(token);
                self.shared.views.mark_changed();
                self.remove_stored(&[token]).await;
            }
            return Err(error.context(format!("lease devices {slots:?}")));
        }
        Ok(Leased { token, reservation: granted.reservation })
    }

    /// Gives the leases that a task names to the sandbox that it is made in, and leases the devices that it names itself; all or none. A
    /// lease that is not known any more, as one whose task was removed before a predecessor ended, does no harm if the task names its
    /// devices as well and they are free.
    pub(super) fn bind(&self, sandbox: SandboxId, spec: &TaskSpec) -> Result<BoundClaims> {
        let name = self.shared.table.sandbox(sandbox).map(|home| home.meta.name.clone()).unwrap_or_default();
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
                Err(refusal) if refusal.reason == Reason::Lost => lost = Some(refusal),
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

    /// Gives a task that is about to start what it was made with: its sandbox may have been stopped since, and be ready again.
    ///
    /// # Errors
    /// `FailedPrecondition` if somebody else has it by now.
    pub(super) fn reclaim_leases(&self, task: &Task) -> Result<()> {
        for claim in &task.details.leases {
            let name = self.shared.table.sandbox(task.sandbox).map(|home| home.meta.name.clone());
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
        match (leased, self.shared.limits.named_devices) {
            (Ok(claims), _) => Ok(claims),
            (Err(refusal), NamedDevices::Refuse) => Err(self.record_refusal(refusal)),
            (Err(refusal), NamedDevices::Warn) => {
                tracing::warn!(task = spec.meta.name, %refusal, "a task names a device that somebody else has: it gets it all the same");
                Ok(Vec::new())
            }
        }
    }

    /// Takes leases back that nothing was made with after all, unless another task of the sandbox has them.
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

    /// The leases of a task that is on record are kept with it from now on.
    pub(super) async fn forget_stored(&self, claims: &[LeaseClaim]) {
        let tokens: Vec<LeaseToken> = claims.iter().map(|claim| claim.token).collect();
        self.remove_stored(&tokens).await;
    }

    /// Sees to the leases of a task that is about to be removed and runs no more, which no other task of its sandbox has: the sandbox keeps
    /// them, and may have another task made with them; those that the task had named itself are over.
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
            // A removal makes space: it goes on where nothing can be written.
            if let Err(error) =
                self.shared.leases.put(&StoredLease { token, owner: task.meta.owner, slots }).await
            {
                let error = error.report();
                tracing::warn!(lease = %token, error, "a lease is not on disk until its next task is made");
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
                "leases that have ended are still on disk: the next recovery sees to them"
            );
        }
    }

    /// Ends what leases hold too long, until the gateway shuts down.
    pub(super) fn expire_leases(&self) {
        let gateway = self.clone();
        self.shared.watchers.spawn(async move {
            gateway.shared.unwatched.run_until_cancelled(gateway.tick_leases()).await;
        });
        self.shared.views.mark_changed();
    }

    async fn tick_leases(&self) {
        let limits = &self.shared.limits;
        let ticks = TickLimits { unbound: ticks(limits.lease), grace: ticks(limits.restart_grace) };
        let mut rounds = interval_at(Instant::now() + TICK, TICK);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let TickOutcome { freed, expired: over } = {
                let mut ledger = self.ledger();
                if ledger.devices.has_timers() { ledger.devices.tick(ticks) } else { TickOutcome::default() }
            };
            if freed {
                self.shared.views.mark_changed();
            }
            // Those whose start has failed are on disk.
            self.remove_stored(&over).await;
        }
    }

    async fn publish_views(&self) {
        let views = &self.shared.views;
        let mut changes = views.changes.subscribe();
        changes.mark_changed();
        let mut made: BTreeMap<Owner, View> = BTreeMap::new();
        // The sender lives as long as the gateway.
        while changes.changed().await.is_ok() {
            // Views are made from a copy, so that nobody who asks for a lease waits for them.
            let outlook = Arc::new(self.ledger().devices.snapshot());
            let owners: Vec<Owner> =
                views.by_owner.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
            for owner in owners {
                let view = made.entry(owner).or_default();
                *view = outlook.view(owner, view);
                let now = &view.inventory;
                let views = views.by_owner.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(view) = views.get(&owner) {
                    view.send_if_modified(|last| {
                        // A view that has not changed is shared with the last one: its address tells, and nothing of it is compared.
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

/// How many ticks a time is, at least one.
fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1)
}
