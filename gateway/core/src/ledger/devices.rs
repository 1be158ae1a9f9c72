//! Devices: which slots are leased, to whom, and how each owner sees them.
//!
//! ```text
//! (free) ─lease─► Unbound ──bind───► Bound ──sandbox stopped──► Released ──grace over──► (free, remembered)
//!                   │  ▲               │  ▲                        │
//!                   │  └──not created──┘  └──────────bind──────────┘
//!                   ├──aged──► contestable: another owner may take the slots
//!                   └──dropped──► (free)
//! ```
//!
//! All leases of a slot belong to one owner, and at most one sandbox has the slot. An orchestrator may lease
//! a slot that one of its own sandboxes still has, since it counts devices as free before their containers
//! have exited. A task with the new lease waits until that sandbox has stopped.
//!
//! Longer than 500 lines because the leases and the rules over them belong together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::refusal::{Holder, Refusal, RefusalReason, Resource};
use crate::device::{Device, Inventory, Reservation};
use crate::error::Error;
use crate::id::{LeaseToken, Owner, SandboxId, SlotId};
use crate::spec::LeaseClaim;
use positions::Positions;

mod inventory;
mod named;
mod positions;
mod quota;
mod recovery;
mod report;
mod unused;
mod view;

pub use named::DeviceNames;
pub use report::{DeviceReport, GroupReport, SlotHolder, SlotReport};
pub use view::{View, ViewSnapshot};

/// The maximum number of slots of one lease.
pub const LEASE_SLOTS_MAX: usize = 1024;

/// The maximum number of leases. A repeated request returns the same lease, so more than this indicates a
/// bug.
const LEASES_MAX: usize = 16_384;

/// An unbound lease ends when a slot of it is missing from this many consecutive lists of its orchestrator's
/// pods.
const MISSES: u32 = 3;

/// A kubelet requests the devices of all containers of a pod within this many ticks.
const ONE_ADMISSION: u32 = 2;

/// The maximum number of remembered tokens of leases whose slots are free again.
const REMEMBERED_MAX: usize = 1024;

/// The devices of the node and their leases.
#[derive(Debug, Clone, Default)]
pub struct Devices {
    /// The present devices and those that were present before: an id once reported to a kubelet is never
    /// removed.
    known: Option<Arc<Inventory>>,
    /// Position in `known` of the device of each slot.
    positions: Positions,
    leases: BTreeMap<LeaseToken, Lease>,
    /// The leases of each slot that has one.
    by_slot: BTreeMap<SlotId, BTreeSet<LeaseToken>>,
    /// Leases that reserve nothing any more, the oldest first.
    remembered: VecDeque<LeaseToken>,
    /// True if the leases of before the restart are known.
    recovered: bool,
    /// Something that cannot be read may hold any slot.
    withheld: bool,
}

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Its owner.
    pub owner: Owner,
    /// Its slots, in ascending order.
    pub slots: Vec<SlotId>,
    /// Its state.
    pub state: LeaseState,
    /// The number of ticks since it entered this state.
    pub age: u32,
    /// The number of consecutive lists of its orchestrator that it was missing from.
    pub misses: u32,
    /// A sandbox had one of its slots when the lease was requested: a task with it waits until that sandbox
    /// has stopped.
    pub awaits_release: bool,
    /// No caller requested the lease: a task named the devices directly.
    pub named: bool,
}

/// Times for which unused leases reserve their slots, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TickLimits {
    /// Until another owner may take the slots of an unbound lease.
    pub unbound: u32,
    /// Until another owner may take the slots of a lease whose sandbox has stopped.
    pub grace: u32,
}

/// The changes of one tick.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TickOutcome {
    /// True if a slot became free for other owners.
    pub freed: bool,
    /// The leases whose grace period is over.
    pub expired: Vec<LeaseToken>,
}

/// The state of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// No sandbox has it.
    Unbound {
        /// True if it is so old that another owner may take its slots.
        contestable: bool,
    },
    /// A sandbox has it.
    Bound {
        /// Id of that sandbox.
        sandbox: SandboxId,
        /// Name of that sandbox.
        name: String,
    },
    /// The sandbox that had it has stopped.
    Released {
        /// True if the slots are still reserved for its owner, which may start another sandbox with it.
        grace: bool,
    },
}

/// A granted lease request.
#[derive(Debug, Clone, PartialEq)]
pub struct Granted {
    /// Its token.
    pub token: LeaseToken,
    /// The lease.
    pub lease: Lease,
    /// True if the lease was created for this request.
    pub is_new: bool,
    /// The leases that were ended in favour of this one.
    pub ended: Vec<LeaseToken>,
    /// Reservation of a task created with it.
    pub reservation: Reservation,
}

// === impl Devices ===

impl Devices {
    /// Leases slots to an owner under `token`. If the owner has an unbound lease of the same slots, that one
    /// is granted instead.
    ///
    /// # Errors
    /// A [`Refusal`]; nothing has changed then.
    pub fn lease(
        &mut self,
        owner: Owner,
        slots: &[SlotId],
        token: LeaseToken,
    ) -> Result<Granted, Refusal> {
        let refuse = |slot: Option<&SlotId>, reason, holder| Refusal {
            owner,
            resource: Resource::Slot(slot.cloned()),
            reason,
            holder,
        };
        let first = slots.first();
        if let Some(reason) = self.obstacle(slots.len()) {
            return Err(refuse(first, reason, None));
        }
        let wanted: BTreeSet<SlotId> = slots.iter().map(|slot| self.canonical(slot)).collect();
        for slot in &wanted {
            let Some(device) = self.device(slot) else {
                return Err(refuse(Some(slot), RefusalReason::Unknown, None));
            };
            if let Some(holder) = self.foreign_holder(owner, slot) {
                return Err(refuse(
                    Some(slot),
                    RefusalReason::Held,
                    Some(Box::new(holder)),
                ));
            }
            if let Some(why) = device.health.fault() {
                return Err(refuse(
                    Some(slot),
                    RefusalReason::Unhealthy(why.to_owned()),
                    None,
                ));
            }
        }
        if let Some(slot) = self.beyond_quota(owner, &wanted) {
            return Err(refuse(Some(slot), RefusalReason::Quota, None));
        }
        let slots: Vec<SlotId> = wanted.into_iter().collect();
        let unwell = |error: Error| refuse(first, RefusalReason::Unhealthy(error.report()), None);
        let reservation = self.reserve(&slots).map_err(unwell)?;
        let awaits_release = slots.iter().any(|slot| {
            self.on_slot(slot)
                .any(|(_, lease)| matches!(lease.state, LeaseState::Bound { .. }))
        });
        if let Some(token) = self.same_unbound(owner, &slots) {
            let lease = Lease {
                awaits_release,
                ..Lease::new(owner, slots)
            };
            self.leases.insert(token, lease.clone());
            return Ok(Granted {
                token,
                lease,
                is_new: false,
                ended: Vec::new(),
                reservation,
            });
        }
        // An orchestrator that assigns a slot again has given up its earlier request. But a kubelet requests
        // the containers of a pod one after the other, and those after an init container share its devices.
        let of_one_pod = |lease: &Lease| {
            owner == Owner::Kubernetes && lease.owner == owner && lease.age < ONE_ADMISSION
        };
        let ended = self.end_matching(&slots, |lease| match lease.state {
            LeaseState::Unbound { .. } => !of_one_pod(lease),
            LeaseState::Released { .. } => true,
            LeaseState::Bound { .. } => false,
        });
        let lease = Lease {
            awaits_release,
            ..Lease::new(owner, slots)
        };
        self.insert(token, lease.clone());
        Ok(Granted {
            token,
            lease,
            is_new: true,
            ended,
            reservation,
        })
    }

    /// Reason why no lease of this number of slots is possible now, whichever they are.
    fn obstacle(&self, slots: usize) -> Option<RefusalReason> {
        if slots == 0 || slots > LEASE_SLOTS_MAX {
            Some(RefusalReason::TooMany)
        } else if self.leases.len() >= LEASES_MAX {
            Some(RefusalReason::Full)
        } else if !self.recovered || self.known.is_none() {
            Some(RefusalReason::Recovering)
        } else {
            self.withheld.then_some(RefusalReason::Withheld)
        }
    }

    /// Binds a lease to the sandbox in which a task is being created, and returns the claim. Idempotent.
    ///
    /// # Errors
    /// [`RefusalReason::Lost`] for a token that is not known as a lease of this owner; [`RefusalReason::Held`] if another
    /// holder has a slot of it, for example the sandbox whose stop it waits for. Nothing has changed then.
    pub fn bind(
        &mut self,
        owner: Owner,
        token: LeaseToken,
        sandbox: SandboxId,
        name: &str,
    ) -> Result<LeaseClaim, Refusal> {
        let lost = || Refusal {
            owner,
            resource: Resource::Lease(token),
            reason: RefusalReason::Lost,
            holder: None,
        };
        let lease = self
            .leases
            .get(&token)
            .filter(|lease| lease.owner == owner)
            .ok_or_else(lost)?;
        let slots = lease.slots.clone();
        let named = lease.named;
        self.check_free(owner, &slots, sandbox)?;
        // The successor has begun, so what had these slots before is not restarted.
        let superseded: BTreeSet<LeaseToken> = slots
            .iter()
            .flat_map(|slot| self.on_slot(slot).map(|(other, _)| other))
            .filter(|other| *other != token)
            .collect();
        superseded
            .into_iter()
            .for_each(|other| self.end_grace(other));
        self.remembered.retain(|known| *known != token);
        if let Some(lease) = self.leases.get_mut(&token) {
            lease.set_state(LeaseState::Bound {
                sandbox,
                name: name.to_owned(),
            });
        }
        Ok(LeaseClaim {
            token,
            slots,
            named,
        })
    }

    /// Unbinds a lease from a sandbox in which no task was created with it.
    pub fn unbind(&mut self, token: LeaseToken) {
        if let Some(lease) = self
            .leases
            .get_mut(&token)
            .filter(|lease| matches!(lease.state, LeaseState::Bound { .. }))
        {
            lease.set_state(LeaseState::Unbound { contestable: false });
        }
    }

    /// A sandbox has stopped: starts the grace period of its leases and returns them.
    pub fn release_sandbox(&mut self, stopped: SandboxId) -> Vec<LeaseToken> {
        let bound_here = |lease: &&mut Lease| matches!(lease.state, LeaseState::Bound { sandbox, .. } if sandbox == stopped);
        let leases = self.leases.iter_mut().filter_map(|(token, lease)| {
            let lease = Some(lease).filter(bound_here)?;
            lease.set_state(LeaseState::Released { grace: true });
            Some(*token)
        });
        leases.collect()
    }

    /// Advances time by one tick: unused leases reserve their slots for a limited number of ticks. The token
    /// of a lease whose grace period is over is remembered, for a late start that finds its slots still free.
    pub fn tick(&mut self, limits: TickLimits) -> TickOutcome {
        let mut expired = Vec::new();
        let mut freed = false;
        for (token, lease) in &mut self.leases {
            lease.age = lease.age.saturating_add(1);
            match &mut lease.state {
                LeaseState::Unbound { contestable }
                    if !*contestable && lease.age >= limits.unbound =>
                {
                    (*contestable, freed) = (true, true);
                }
                LeaseState::Released { grace } if *grace && lease.age >= limits.grace => {
                    (*grace, freed) = (false, true);
                    expired.push(*token);
                }
                LeaseState::Unbound { .. }
                | LeaseState::Released { .. }
                | LeaseState::Bound { .. } => {}
            }
        }
        self.remember(&expired);
        TickOutcome { freed, expired }
    }

    /// Ends the grace period of a lease whose owner will not restart what used it.
    fn end_grace(&mut self, token: LeaseToken) {
        if let Some(lease) = self.leases.get_mut(&token)
            && lease.state == (LeaseState::Released { grace: true })
        {
            lease.set_state(LeaseState::Released { grace: false });
            self.remember(&[token]);
        }
    }

    /// Returns whether a tick can change anything.
    #[must_use]
    pub fn has_timers(&self) -> bool {
        let waits = |lease: &Lease| match lease.state {
            LeaseState::Unbound { contestable } => !contestable,
            LeaseState::Released { grace } => grace,
            LeaseState::Bound { .. } => false,
        };
        self.leases.values().any(waits)
    }

    /// Ends a lease in any state.
    pub(crate) fn revoke(&mut self, token: LeaseToken) {
        self.end(token);
    }

    /// A lease.
    #[must_use]
    pub fn get(&self, token: LeaseToken) -> Option<&Lease> {
        self.leases.get(&token)
    }

    /// All leases, by token.
    pub fn leases(&self) -> impl Iterator<Item = (LeaseToken, &Lease)> {
        self.leases.iter().map(|(token, lease)| (*token, lease))
    }

    /// Returns whether a sandbox has one of these slots and a newer lease waits for it, that is, a lease
    /// requested while the sandbox had it already. The containers of one pod request their devices together
    /// and do not wait for each other.
    #[must_use]
    pub fn has_slot_awaiting_release(&self, owner: Owner, slots: &[SlotId]) -> bool {
        slots.iter().any(|slot| {
            let leases = || {
                self.on_slot(slot)
                    .map(|(_, lease)| lease)
                    .filter(|lease| lease.owner == owner)
            };
            leases().any(|lease| matches!(lease.state, LeaseState::Bound { .. }))
                && leases().any(|lease| {
                    lease.awaits_release && matches!(lease.state, LeaseState::Unbound { .. })
                })
        })
    }

    /// The leases of before the restart are known: slots can be leased from now on.
    pub fn set_recovered(&mut self) {
        self.recovered = true;
    }

    /// Gives out no slot from now on, except to the sandboxes that have it already.
    pub fn withhold(&mut self) {
        self.withheld = true;
    }

    /// Returns whether no slot is given out because something that cannot be read may hold it.
    #[must_use]
    pub const fn is_withheld(&self) -> bool {
        self.withheld
    }

    /// The holder of a slot that belongs to another owner.
    fn foreign_holder(&self, owner: Owner, slot: &SlotId) -> Option<Holder> {
        let (_, lease) = self
            .on_slot(slot)
            .find(|(_, lease)| lease.owner != owner && lease.holds())?;
        Some(lease.holder())
    }

    /// The holder of a slot if it is a sandbox other than this one.
    fn other_sandbox(&self, slot: &SlotId, this: SandboxId) -> Option<Holder> {
        let other = |lease: &Lease| matches!(lease.state, LeaseState::Bound { sandbox, .. } if sandbox != this);
        self.on_slot(slot)
            .find(|(_, lease)| other(lease))
            .map(|(_, lease)| lease.holder())
    }

    /// Refuses if a holder other than this sandbox has one of these slots, or may have it.
    fn check_free(&self, owner: Owner, slots: &[SlotId], this: SandboxId) -> Result<(), Refusal> {
        let held = |slot: &SlotId| {
            let holder = self
                .foreign_holder(owner, slot)
                .or_else(|| self.other_sandbox(slot, this));
            let reason = match &holder {
                Some(_) => RefusalReason::Held,
                None if self.withheld && !self.has(this, slot) => RefusalReason::Withheld,
                None => return None,
            };
            Some(Refusal {
                owner,
                resource: Resource::Slot(Some(slot.clone())),
                reason,
                holder: holder.map(Box::new),
            })
        };
        slots.iter().find_map(held).map_or(Ok(()), Err)
    }

    /// Returns whether a sandbox has a slot.
    fn has(&self, this: SandboxId, slot: &SlotId) -> bool {
        self.claim_in(slot, this).is_some()
    }

    fn on_slot(&self, slot: &SlotId) -> impl Iterator<Item = (LeaseToken, &Lease)> {
        let tokens = self.by_slot.get(slot).into_iter().flatten();
        tokens.filter_map(|token| Some((*token, self.leases.get(token)?)))
    }

    fn same_unbound(&self, owner: Owner, slots: &[SlotId]) -> Option<LeaseToken> {
        let same = |lease: &Lease| {
            lease.owner == owner
                && lease.slots == slots
                && matches!(lease.state, LeaseState::Unbound { .. })
        };
        self.on_slot(slots.first()?)
            .find(|(_, lease)| same(lease))
            .map(|(token, _)| token)
    }

    fn device(&self, slot: &SlotId) -> Option<&Device> {
        let (group, device) = self.position(slot)?;
        self.known.as_ref()?.groups.get(group)?.devices.get(device)
    }

    fn insert(&mut self, token: LeaseToken, lease: Lease) {
        for slot in &lease.slots {
            self.by_slot.entry(slot.clone()).or_default().insert(token);
        }
        self.leases.insert(token, lease);
    }

    /// Remembers leases that reserve nothing, for a late start that finds their slots still free.
    fn remember(&mut self, leases: &[LeaseToken]) {
        self.remembered.extend(leases);
        while self.remembered.len() > REMEMBERED_MAX
            && let Some(oldest) = self.remembered.front().copied()
        {
            self.end(oldest);
        }
    }

    fn end(&mut self, token: LeaseToken) {
        self.remembered.retain(|known| *known != token);
        let Some(lease) = self.leases.remove(&token) else {
            return;
        };
        for slot in &lease.slots {
            if let Some(tokens) = self.by_slot.get_mut(slot) {
                tokens.remove(&token);
                if tokens.is_empty() {
                    self.by_slot.remove(slot);
                }
            }
        }
    }

    /// Ends the leases of these slots that match.
    fn end_matching(
        &mut self,
        slots: &[SlotId],
        matches: impl Fn(&Lease) -> bool,
    ) -> Vec<LeaseToken> {
        let found: BTreeSet<LeaseToken> = slots
            .iter()
            .flat_map(|slot| {
                self.on_slot(slot)
                    .filter(|(_, lease)| matches(lease))
                    .map(|(token, _)| token)
            })
            .collect();
        for token in &found {
            self.end(*token);
        }
        found.into_iter().collect()
    }
}

// === impl Lease ===

impl Lease {
    /// An unbound lease of these slots.
    #[must_use]
    pub const fn new(owner: Owner, slots: Vec<SlotId>) -> Self {
        Self {
            owner,
            slots,
            state: LeaseState::Unbound { contestable: false },
            age: 0,
            misses: 0,
            awaits_release: false,
            named: false,
        }
    }

    /// A lease of these slots that is bound to a sandbox.
    #[must_use]
    pub fn bound(owner: Owner, slots: Vec<SlotId>, sandbox: SandboxId, name: String) -> Self {
        Self {
            state: LeaseState::Bound { sandbox, name },
            ..Self::new(owner, slots)
        }
    }

    fn set_state(&mut self, state: LeaseState) {
        (self.state, self.age, self.misses) = (state, 0, 0);
    }

    /// Returns whether no other owner may take its slots.
    #[must_use]
    pub const fn holds(&self) -> bool {
        match self.state {
            LeaseState::Unbound { contestable } => !contestable,
            LeaseState::Bound { .. } => true,
            LeaseState::Released { grace } => grace,
        }
    }

    /// The holder of its slots.
    #[must_use]
    pub fn holder(&self) -> Holder {
        match &self.state {
            LeaseState::Bound { sandbox, name } => Holder {
                owner: self.owner,
                sandbox: Some(*sandbox),
                name: name.clone(),
            },
            LeaseState::Unbound { .. } | LeaseState::Released { .. } => Holder {
                owner: self.owner,
                sandbox: None,
                name: String::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
