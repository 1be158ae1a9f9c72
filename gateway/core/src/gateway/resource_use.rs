//! Which resources of devices an owner uses: a kubelet that starts is registered with these first.

use std::collections::BTreeMap;

use super::Scope;
use crate::ledger::LeaseState;

/// How a resource is used. The variants are ordered by urgency for the orchestrator, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceUse {
    /// A device of it is leased or was assigned to a task, and no task with that lease runs: one may be about to start.
    Waiting,
    /// Every leased or assigned device of it has a running task.
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
        for (_, lease) in ledger.devices.leases() {
            if lease.owner == self.owner && lease.state.keeps_slots() {
                slots.extend(lease.slots.iter().map(|slot| (slot.as_str(), ResourceUse::Waiting)));
            }
        }
        for task in &tasks {
            for slot in task.details.leases.iter().flat_map(|claim| &claim.slots) {
                let slot_use = slots.entry(slot).or_insert(ResourceUse::Waiting);
                if task.state.is_running() {
                    *slot_use = ResourceUse::Running;
                }
            }
        }
        // What is created with such a lease waits for the end of the task that still has the slot.
        for (_, lease) in ledger.devices.leases() {
            if lease.owner == self.owner && lease.state == (LeaseState::Unbound { contestable: false }) {
                slots.extend(lease.slots.iter().map(|slot| (slot.as_str(), ResourceUse::Waiting)));
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
