//! The ledger: what of the node is given to whom, so that nothing is given out twice.
//!
//! | what | who holds it | taken | given back |
//! |---|---|---|---|
//! | port of the host | a sandbox | before it is made, and when it is made ready again | when its network is released |
//! | cores, processors and memory | a task | before it is made, and when it is started | when its sandbox has stopped; amounts when it has ended |
//! | slot of a device | a lease, and the sandbox that it is bound in | when an orchestrator asks for it | when that sandbox has stopped |
//!
//! It is pure: it knows no clock and does no I/O. The gateway asks it before the backend makes anything. What sandboxes and tasks hold is
//! on record with them, and comes back with their recovery; a [`LeaseStore`] keeps the leases that nothing has been made with.

use std::collections::BTreeMap;

use crate::id::Owner;

pub mod compute;
pub mod devices;
pub mod ports;
mod refusal;
mod store;

pub use compute::{Compute, ComputeHolder, Cpus, Overcommit};
pub use devices::{
    DeviceNames, DeviceReport, Devices, Granted, GroupReport, LEASE_SLOTS_MAX, Lease, LeaseState, SlotHolder,
    SlotReport, TickLimits, TickOutcome, View, ViewSnapshot,
};
pub use ports::{PortHolder, Ports};
pub use refusal::{Holder, Reason, Refusal, Resource};
pub use store::{LeaseStore, MemoryStore, StoredLease};

/// How often something was refused: by who asked, by the kind of what was asked for, and by reason.
pub type Refusals = BTreeMap<(Owner, &'static str, &'static str), u64>;

/// What of the node is given to whom.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Ports of the host.
    pub ports: Ports,
    /// Devices.
    pub devices: Devices,
    /// Processors and memory.
    pub compute: Compute,
    refusals: Refusals,
}

// === impl Ledger ===

impl Ledger {
    /// Nothing is given out yet.
    #[must_use]
    pub fn new(compute: Compute) -> Self {
        Self { compute, ..Self::default() }
    }

    /// Counts a refusal.
    pub fn count(&mut self, refusal: &Refusal) {
        *self.refusals.entry((refusal.owner, refusal.resource(), refusal.reason.as_str())).or_default() += 1;
    }

    /// How often something was refused, by who asked, what for and why.
    #[must_use]
    pub const fn refusals(&self) -> &Refusals {
        &self.refusals
    }
}
