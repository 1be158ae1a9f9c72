//! Devices: which slots are leased, to whom, and how each owner sees them.
//!
//! ```text
//! (free) ──lease──► Unbound ──bind──► Bound ──the sandbox has stopped──► LetGo ──grace is over──► (free, its token remembered)
//!                     │  ▲              │                                 │
//!                     │  └─nothing made─┘   ◄──────────bind───────────────┘
//!                     ├──aged──► contestable: another owner may overtake it
//!                     └──dropped──► (free)
//! ```
//!
//! All leases of a slot are one owner's, and one sandbox at most has it. An orchestrator is believed about its own devices: it may lease a
//! slot that a sandbox of its own still has, since it counts devices as free before their containers have ended. What is made with the
//! new lease waits for the end of that sandbox.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::refusal::{Holder, Reason, Refusal, Resource};
use crate::device::{Device, Inventory, Reservation};
use crate::error::Error;
use crate::id::{LeaseToken, Owner, SandboxId};
use crate::spec::LeaseClaim;

mod inventory;
mod named;
mod quota;
mod recovery;
mod report;
mod unused;
mod view;

pub use named::DeviceNames;
pub use report::{DeviceReport, GroupReport, SlotHolder, SlotReport};
pub use view::{View, ViewSnapshot};

/// As many slots as one lease may have.
pub const LEASE_SLOTS_MAX: usize = 1024;

/// As many leases as there may be. Callers get the same one for the same question, so that more are a fault.
const LEASES_MAX: usize = 16_384;

/// After so many lists of what its orchestrator's pods have, one after the other, in which a slot is missing, a lease of it that nothing was
/// made with has ended.
const MISSES: u32 = 3;

/// Within so many ticks a kubelet has asked for the devices of all containers of a pod.
const ONE_ADMISSION: u32 = 2;

/// As many tokens as are remembered of leases whose slots are free again.
const REMEMBERED_MAX: usize = 1024;

/// Which devices there are, and who has them.
#[derive(Debug, Clone, Default)]
pub struct Devices {
    /// What there is, with what there was: an id that a kubelet was told of is never taken back.
    known: Option<Arc<Inventory>>,
    /// The group and the device of each slot, by their numbers in `known`.
    positions: Arc<BTreeMap<String, (usize, usize)>>,
    leases: BTreeMap<LeaseToken, Lease>,
    /// The leases of each slot that has any.
    by_slot: BTreeMap<String, BTreeSet<LeaseToken>>,
    /// Leases that hold nothing, the oldest first.
    remembered: VecDeque<LeaseToken>,
    /// What was leased before a predecessor ended is known.
    recovered: bool,
}

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Whose it is.
    pub owner: Owner,
    /// What it is of, in ascending order.
    pub slots: Vec<String>,
    /// How far it has come.
    pub state: LeaseState,
    /// For how many ticks it has been so.
    pub age: u32,
    /// How many lists of its orchestrator it was missing in, one after the other.
    pub misses: u32,
    /// A sandbox had one of its slots when it was asked for: what is made with it waits for the end of that sandbox.
    pub awaits_release: bool,
    /// Nobody has asked for it: a task named the devices.
    pub named: bool,
}

/// How long leases hold what nobody uses, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TickLimits {
    /// Until another owner may have the slots of a lease that nothing has been made with.
    pub unbound: u32,
    /// Until another owner may have the slots of a lease whose sandbox has stopped.
    pub grace: u32,
}

/// What time has changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TickOutcome {
    /// A slot is free for others now.
    pub freed: bool,
    /// The leases whose grace is over.
    pub expired: Vec<LeaseToken>,
}

/// How far a lease has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// Nothing has been made with it.
    Unbound {
        /// It has waited so long that another owner may have its slots.
        contestable: bool,
    },
    /// A sandbox has it.
    Bound {
        /// That sandbox.
        sandbox: SandboxId,
        /// Its name.
        name: String,
    },
    /// The sandbox that had it has stopped.
    Released {
        /// Its owner may still start another one with it before anybody else has its slots.
        grace: bool,
    },
}

/// A lease that was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Granted {
    /// Its token.
    pub token: LeaseToken,
    /// The lease.
    pub lease: Lease,
    /// Whether it was made for this request.
    pub is_new: bool,
    /// Leases that have ended for it.
    pub ended: Vec<LeaseToken>,
    /// What a task gets with it.
    pub reservation: Reservation,
}

// === impl LeaseState ===

impl LeaseState {
    /// Whether no other owner may have the slots of the lease, except for a lease that is contestable.
    pub(crate) const fn keeps_slots(&self) -> bool {
        match self {
            Self::Unbound { .. } | Self::Bound { .. } => true,
            Self::Released { grace } => *grace,
        }
    }
}

// === impl Devices ===

impl Devices {
    /// Leases slots to an owner under `token`. The same slots, leased and not made use of, are the same lease.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub fn lease(&mut self, owner: Owner, slots: &[String], token: LeaseToken) -> Result<Granted, Refusal> {
        let refuse = |slot: &str, reason, holder| Refusal {
            owner,
            resource: Resource::Slot(slot.to_owned()),
            reason,
            holder,
        };
        let first = slots.first().map_or("", String::as_str);
        if slots.is_empty() || slots.len() > LEASE_SLOTS_MAX {
            return Err(refuse(first, Reason::TooMany, None));
        }
        if self.leases.len() >= LEASES_MAX {
            return Err(refuse(first, Reason::Full, None));
        }
        if !self.recovered || self.known.is_none() {
            return Err(refuse(first, Reason::Recovering, None));
        }
        let wanted: BTreeSet<String> = slots.iter().map(|slot| self.canonical(slot)).collect();
        for slot in &wanted {
            let Some(device) = self.device(slot) else {
                return Err(refuse(slot, Reason::Unknown, None));
            };
            if let Some(holder) = self.foreign_holder(owner, slot) {
                return Err(refuse(slot, Reason::Held, Some(Box::new(holder))));
            }
            if let Some(why) = device.health.fault() {
                return Err(refuse(slot, Reason::Unhealthy(why.to_owned()), None));
            }
        }
        if let Some(slot) = self.beyond_quota(owner, &wanted) {
            return Err(refuse(slot, Reason::Quota, None));
        }
        let slots: Vec<String> = wanted.into_iter().collect();
        let unwell = |error: Error| refuse(first, Reason::Unhealthy(error.report()), None);
        let reservation = self.reserve(&slots).map_err(unwell)?;
        let behind = slots
            .iter()
            .any(|slot| self.on_slot(slot).any(|(_, lease)| matches!(lease.state, LeaseState::Bound { .. })));
        if let Some(token) = self.same_unbound(owner, &slots) {
            let lease = Lease { awaits_release: behind, ..Lease::new(owner, slots) };
            self.leases.insert(token, lease.clone());
            return Ok(Granted { token, lease, is_new: false, ended: Vec::new(), reservation });
        }
        // An orchestrator that gives a slot out anew has given up what it asked for before; but a kubelet asks for the containers of a pod
        // one after the other, and those after an init container have its devices too.
        let of_one_pod =
            |lease: &Lease| owner == Owner::Kubernetes && lease.owner == owner && lease.age < ONE_ADMISSION;
        let ended = self.end_matching(&slots, |lease| match lease.state {
            LeaseState::Unbound { .. } => !of_one_pod(lease),
            LeaseState::Released { .. } => true,
            LeaseState::Bound { .. } => false,
        });
        let lease = Lease { awaits_release: behind, ..Lease::new(owner, slots) };
        self.insert(token, lease.clone());
        Ok(Granted { token, lease, is_new: true, ended, reservation })
    }

    /// Gives a lease to a sandbox that something is made in, and says what it is of. Idempotent.
    ///
    /// # Errors
    /// [`Reason::Lost`] for a token that is not known to be this owner's; [`Reason::Held`] if somebody else has a slot of it, as the sandbox
    /// whose end it waits for. Nothing has changed then.
    pub fn bind(
        &mut self,
        owner: Owner,
        token: LeaseToken,
        sandbox: SandboxId,
        name: &str,
    ) -> Result<LeaseClaim, Refusal> {
        let lost = || Refusal { owner, resource: Resource::Lease(token), reason: Reason::Lost, holder: None };
        let lease = self.leases.get(&token).filter(|lease| lease.owner == owner).ok_or_else(lost)?;
        let slots = lease.slots.clone();
        let named = lease.named;
        self.check_free(owner, &slots, sandbox)?;
        // Its successor has begun: what had a slot of it before is not restarted.
        let over: BTreeSet<LeaseToken> = slots
            .iter()
            .flat_map(|slot| self.on_slot(slot).map(|(other, _)| other))
            .filter(|other| *other != token)
            .collect();
        over.into_iter().for_each(|other| self.end_grace(other));
        self.remembered.retain(|known| *known != token);
        if let Some(lease) = self.leases.get_mut(&token) {
            lease.set_state(LeaseState::Bound { sandbox, name: name.to_owned() });
        }
        Ok(LeaseClaim { token, slots, named })
    }

    /// Takes a lease back from a sandbox in which nothing was made with it after all.
    pub fn unbind(&mut self, token: LeaseToken) {
        if let Some(lease) =
            self.leases.get_mut(&token).filter(|lease| matches!(lease.state, LeaseState::Bound { .. }))
        {
            lease.set_state(LeaseState::Unbound { contestable: false });
        }
    }

    /// A sandbox has stopped: says which leases it had. Each has its grace now.
    pub fn release_sandbox(&mut self, stopped: SandboxId) -> Vec<LeaseToken> {
        let of_it = |lease: &&mut Lease| matches!(lease.state, LeaseState::Bound { sandbox, .. } if sandbox == stopped);
        let leases = self.leases.iter_mut().filter_map(|(token, lease)| {
            let lease = Some(lease).filter(of_it)?;
            lease.set_state(LeaseState::Released { grace: true });
            Some(*token)
        });
        leases.collect()
    }

    /// Some time has passed: leases that nobody uses hold their slots no longer than so many ticks. The token of a lease whose grace is over
    /// is remembered, for a start that comes late and finds its slots free.
    pub fn tick(&mut self, limits: TickLimits) -> TickOutcome {
        let mut over = Vec::new();
        let mut freed = false;
        for (token, lease) in &mut self.leases {
            lease.age = lease.age.saturating_add(1);
            match &mut lease.state {
                LeaseState::Unbound { contestable } if !*contestable && lease.age >= limits.unbound => {
                    (*contestable, freed) = (true, true);
                }
                LeaseState::Released { grace } if *grace && lease.age >= limits.grace => {
                    (*grace, freed) = (false, true);
                    over.push(*token);
                }
                LeaseState::Unbound { .. } | LeaseState::Released { .. } | LeaseState::Bound { .. } => {}
            }
        }
        self.remember(&over);
        TickOutcome { freed, expired: over }
    }

    /// The owner of a lease starts nothing with it any more before somebody else has its slots.
    fn end_grace(&mut self, token: LeaseToken) {
        if let Some(lease) = self.leases.get_mut(&token)
            && lease.state == (LeaseState::Released { grace: true })
        {
            lease.set_state(LeaseState::Released { grace: false });
            self.remember(&[token]);
        }
    }

    /// Whether time changes anything.
    #[must_use]
    pub fn has_timers(&self) -> bool {
        let waits = |lease: &Lease| match lease.state {
            LeaseState::Unbound { contestable } => !contestable,
            LeaseState::Released { grace } => grace,
            LeaseState::Bound { .. } => false,
        };
        self.leases.values().any(waits)
    }

    /// Ends a lease, whoever has it.
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

    /// Whether a sandbox has one of these slots that something else is to be made with: a lease of it was asked for after that sandbox had
    /// it. An orchestrator asks for all containers of a pod in one go, and those wait for none of their own.
    #[must_use]
    pub fn has_slot_awaiting_release(&self, owner: Owner, slots: &[String]) -> bool {
        slots.iter().any(|slot| {
            let leases = || self.on_slot(slot).map(|(_, lease)| lease).filter(|lease| lease.owner == owner);
            leases().any(|lease| matches!(lease.state, LeaseState::Bound { .. }))
                && leases()
                    .any(|lease| lease.awaits_release && matches!(lease.state, LeaseState::Unbound { .. }))
        })
    }

    /// What was leased before is known: slots can be leased from now on.
    pub fn set_recovered(&mut self) {
        self.recovered = true;
    }

    /// Who of another owner has a slot.
    fn foreign_holder(&self, owner: Owner, slot: &str) -> Option<Holder> {
        let (_, lease) = self.on_slot(slot).find(|(_, lease)| lease.owner != owner && lease.holds())?;
        Some(lease.holder())
    }

    /// Which sandbox other than this has a slot.
    fn other_sandbox(&self, slot: &str, this: SandboxId) -> Option<Holder> {
        let other =
            |lease: &Lease| matches!(lease.state, LeaseState::Bound { sandbox, .. } if sandbox != this);
        self.on_slot(slot).find(|(_, lease)| other(lease)).map(|(_, lease)| lease.holder())
    }

    /// Refuses if somebody else than this sandbox of this owner has one of these slots.
    fn check_free(&self, owner: Owner, slots: &[String], this: SandboxId) -> Result<(), Refusal> {
        let held = |slot: &String| {
            let holder = self.foreign_holder(owner, slot).or_else(|| self.other_sandbox(slot, this))?;
            let resource = Resource::Slot(slot.clone());
            let holder = Some(Box::new(holder));
            Some(Refusal { owner, resource, reason: Reason::Held, holder })
        };
        slots.iter().find_map(held).map_or(Ok(()), Err)
    }

    fn on_slot(&self, slot: &str) -> impl Iterator<Item = (LeaseToken, &Lease)> {
        let tokens = self.by_slot.get(slot).into_iter().flatten();
        tokens.filter_map(|token| Some((*token, self.leases.get(token)?)))
    }

    fn same_unbound(&self, owner: Owner, slots: &[String]) -> Option<LeaseToken> {
        let same = |lease: &Lease| {
            lease.owner == owner && lease.slots == slots && matches!(lease.state, LeaseState::Unbound { .. })
        };
        self.on_slot(slots.first()?).find(|(_, lease)| same(lease)).map(|(token, _)| token)
    }

    fn device(&self, slot: &str) -> Option<&Device> {
        let (group, device) = self.positions.get(slot)?;
        self.known.as_ref()?.groups.get(*group)?.devices.get(*device)
    }

    fn insert(&mut self, token: LeaseToken, lease: Lease) {
        for slot in &lease.slots {
            self.by_slot.entry(slot.clone()).or_default().insert(token);
        }
        self.leases.insert(token, lease);
    }

    /// Keeps leases that hold nothing, for a start that comes late and finds their slots free.
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
        let Some(lease) = self.leases.remove(&token) else { return };
        for slot in &lease.slots {
            if let Some(tokens) = self.by_slot.get_mut(slot) {
                tokens.remove(&token);
                if tokens.is_empty() {
                    self.by_slot.remove(slot);
                }
            }
        }
    }

    /// Ends those leases of these slots that are so.
    fn end_matching(&mut self, slots: &[String], so: impl Fn(&Lease) -> bool) -> Vec<LeaseToken> {
        let found: BTreeSet<LeaseToken> = slots
            .iter()
            .flat_map(|slot| self.on_slot(slot).filter(|(_, lease)| so(lease)).map(|(token, _)| token))
            .collect();
        for token in &found {
            self.end(*token);
        }
        found.into_iter().collect()
    }
}

// === impl Lease ===

impl Lease {
    /// A lease of these slots that nothing has been made with.
    #[must_use]
    pub const fn new(owner: Owner, slots: Vec<String>) -> Self {
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

    /// A lease of these slots that a sandbox has.
    #[must_use]
    pub fn bound(owner: Owner, slots: Vec<String>, sandbox: SandboxId, name: String) -> Self {
        Self { state: LeaseState::Bound { sandbox, name }, ..Self::new(owner, slots) }
    }

    fn set_state(&mut self, state: LeaseState) {
        (self.state, self.age, self.misses) = (state, 0, 0);
    }

    /// Whether no other owner can have its slots.
    #[must_use]
    pub const fn holds(&self) -> bool {
        match self.state {
            LeaseState::Unbound { contestable } => !contestable,
            LeaseState::Bound { .. } => true,
            LeaseState::Released { grace } => grace,
        }
    }

    /// Who has its slots.
    #[must_use]
    pub fn holder(&self) -> Holder {
        match &self.state {
            LeaseState::Bound { sandbox, name } => {
                Holder { owner: self.owner, sandbox: Some(*sandbox), name: name.clone() }
            }
            LeaseState::Unbound { .. } | LeaseState::Released { .. } => {
                Holder { owner: self.owner, sandbox: None, name: String::new() }
            }
        }
    }
}

#[cfg(test)]
mod tests;
