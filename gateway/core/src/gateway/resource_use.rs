//! Which resources of devices an owner uses: a kubelet that starts is registered with these first.

use std::collections::BTreeMap;

use super::Scope;
use crate::ledger::LeaseState;

/// How a resource is used. The variants are ordered by urgency for the orchestrator, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceUse {
    /// A device of it is leased or was assigned to a task, and not every task with it runs: its
    /// orchestrator may be about to start one.
    Waiting,
    /// Every task with a device of it runs.
    Running,
}

impl Scope {
    /// The resources of which tasks of this owner may have devices, each with its use: according to the
    /// leases that still reserve slots, and to the records of its tasks, including those of stopped
    /// sandboxes.
    #[must_use]
    pub fn resources_in_use(&self) -> BTreeMap<String, ResourceUse> {
        let tasks = self.gateway.shared.table.tasks(self.owner);
        let ledger = self.gateway.ledger();
        let mut slots: BTreeMap<&str, ResourceUse> = BTreeMap::new();
        for task in &tasks {
            let task_use = if task.state.is_running() { ResourceUse::Running } else { ResourceUse::Waiting };
            for slot in task.details.leases.iter().flat_map(|claim| &claim.slots) {
                let slot_use = slots.entry(slot).or_insert(task_use);
                *slot_use = task_use.min(*slot_use);
            }
        }
        for (_, lease) in ledger.devices.leases().filter(|(_, lease)| lease.owner == self.owner) {
            for slot in &lease.slots {
                match lease.state {
                    LeaseState::Unbound { .. } | LeaseState::Released { grace: true } => {
                        slots.insert(slot, ResourceUse::Waiting);
                    }
                    // Without a task, one is being created.
                    LeaseState::Bound { .. } => {
                        slots.entry(slot).or_insert(ResourceUse::Waiting);
                    }
                    // The lease is over; only its token is remembered.
                    LeaseState::Released { grace: false } => {}
                }
            }
        }
        let mut resources = BTreeMap::new();
        for (slot, slot_use) in slots {
            if let Some(resource) = ledger.devices.resource_of(slot).filter(|resource| !resource.is_empty()) {
                let resource_use = resources.entry(resource.to_owned()).or_insert(slot_use);
                *resource_use = slot_use.min(*resource_use);
            }
        }
        resources
    }
}
