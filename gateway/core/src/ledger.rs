//! The ledger: which resources of the node are allocated to whom, so that nothing is allocated twice.
//!
//! | resource | holder | claimed | released |
//! |---|---|---|---|
//! | host port | a sandbox | before its creation and before its restart | when its network is released |
//! | exclusive cores | a task | before its creation and before its start | when its sandbox has stopped |
//! | processor time and memory | a task | before its creation and before its start | when it has exited |
//! | device slot | a lease, and its sandbox | at an orchestrator's request | when that sandbox has stopped |
//!
//! The ledger is pure: it has no clock and does no I/O. The gateway consults it before the backend creates
//! anything. The claims of sandboxes and tasks are recorded with them and come back with their recovery; a
//! [`LeaseStore`] keeps the leases that no sandbox uses yet. Objects that cannot be read hold what they claim, or,
//! if that cannot be read either, all devices and the right to have processors exclusively.

use std::collections::BTreeMap;

use crate::id::Owner;

pub mod compute;
pub mod devices;
pub mod ports;
mod refusal;
mod store;

pub use compute::{Compute, ComputeHolder, Cpus, Overcommit};
pub use devices::{
    DeviceNames, DeviceReport, Devices, Granted, GroupReport, LEASE_SLOTS_MAX, Lease, LeaseState,
    SlotHolder, SlotReport, TickLimits, TickOutcome, View, ViewSnapshot,
};
pub use ports::{PortHolder, Ports};
pub use refusal::{Holder, ListeningProcess, Refusal, RefusalReason, Resource};
pub use store::{LeaseStore, MemoryStore, StoredLease};

/// Number of refusals, by requesting owner, kind of resource, and reason.
pub type Refusals = BTreeMap<(Owner, &'static str, &'static str), u64>;

/// The allocations of the node's resources.
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
    /// Without allocations.
    #[must_use]
    pub fn new(compute: Compute) -> Self {
        Self {
            compute,
            ..Self::default()
        }
    }

    /// Gives out no device, and no processor exclusively, from now on: something that cannot be read may hold
    /// any of them.
    pub fn withhold(&mut self) {
        self.devices.withhold();
        self.compute.withhold();
    }

    /// Counts a refusal.
    pub fn count(&mut self, refusal: &Refusal) {
        *self
            .refusals
            .entry((refusal.owner, refusal.resource(), refusal.reason.as_str()))
            .or_default() += 1;
    }

    /// Number of refusals, by requesting owner, kind of resource, and reason.
    #[must_use]
    pub const fn refusals(&self) -> &Refusals {
        &self.refusals
    }
}
