//! A copy of the ledger for readers.

use crate::id::SandboxId;
use crate::ledger::{Compute, Devices, PortHolder, Refusals};

/// All allocations of node resources at one moment.
#[derive(Debug, Clone)]
pub struct LedgerReport {
    /// Devices and their leases.
    pub devices: Devices,
    /// Processors and memory.
    pub compute: Compute,
    /// The sandboxes that hold host ports, by id.
    pub ports: Vec<(SandboxId, PortHolder)>,
    /// Counts of refused requests.
    pub refusals: Refusals,
}
