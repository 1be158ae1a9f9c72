//! The operator's report: each group with its numbers, and each slot with its leases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Devices, Lease, LeaseState};
use crate::device::{DeviceGroup, Health};
use crate::id::{LeaseToken, Owner, SandboxId, SlotId};

/// Reason why a leased slot of no group cannot be allocated to a task.
const NO_GROUP: &str = "no group of devices.groups has it";

/// All devices and their leases at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceReport {
    /// The groups, as they are configured.
    pub groups: Vec<GroupReport>,
    /// The slots of all groups, in ascending order within each group; then the leased slots that are in no
    /// group.
    pub slots: Vec<SlotReport>,
}

/// A group and its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupReport {
    /// The vendor of the devices.
    pub vendor: String,
    /// The type of the devices.
    pub kind: String,
    /// Their model.
    pub name: String,
    /// Their resource name for kubelets; empty if they are not offered to kubelets.
    pub resource: String,
    /// The number of slots of devices that are present.
    pub capacity: usize,
    /// Number of them that an owner without a quota could get now.
    pub free: usize,
    /// The number of slots that each owner has.
    pub held: BTreeMap<Owner, usize>,
}

/// A slot and its leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotReport {
    /// Its id.
    pub id: SlotId,
    /// The id of its device.
    pub device: String,
    /// The vendor, type and name of its group, separated by slashes; empty if it is in no group.
    pub group: String,
    /// Health of its device.
    pub health: Health,
    /// The leases of it.
    pub holders: Vec<SlotHolder>,
}

/// A lease of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHolder {
    /// The owner of the lease.
    pub owner: Owner,
    /// The sandbox it is bound to, if any.
    pub sandbox: Option<SandboxId>,
    /// The name of that sandbox; empty if there is none.
    pub name: String,
    /// The state of the lease, as one word.
    pub state: &'static str,
    /// Its token.
    pub token: LeaseToken,
}

// === impl Devices ===

impl Devices {
    /// All devices and their leases. Leases that reserve nothing any more are left out.
    #[must_use]
    pub fn report(&self) -> DeviceReport {
        let known: &[Arc<DeviceGroup>] = self.known.as_ref().map_or(&[], |known| &known.groups);
        let mut slots: Vec<SlotReport> = known
            .iter()
            .flat_map(|group| self.slots_of(group))
            .collect();
        let elsewhere = self
            .by_slot
            .keys()
            .filter(|slot| self.position(slot).is_none())
            .map(|slot| {
                let health = Health::Unhealthy(NO_GROUP.to_owned());
                self.slot(
                    slot.clone(),
                    slot.device().to_owned(),
                    String::new(),
                    health,
                )
            });
        slots.extend(elsewhere.filter(|slot| !slot.holders.is_empty()));
        let groups = known.iter().map(|group| self.numbers_of(group)).collect();
        DeviceReport { groups, slots }
    }

    /// Returns whether the leases of before the restart are known, so that slots can be leased.
    #[must_use]
    pub const fn is_recovered(&self) -> bool {
        self.recovered
    }

    /// Returns whether the hardware was scanned.
    #[must_use]
    pub const fn is_scanned(&self) -> bool {
        self.known.is_some()
    }

    fn slots_of(&self, group: &DeviceGroup) -> Vec<SlotReport> {
        let slots = group.devices.iter().flat_map(|device| {
            device
                .slots(group.shares)
                .map(move |slot| (slot, device.id.clone(), device.health.clone()))
        });
        slots
            .map(|(slot, device, health)| self.slot(slot, device, group.title(), health))
            .collect()
    }

    fn slot(&self, id: SlotId, device: String, group: String, health: Health) -> SlotReport {
        let holders = self.on_slot(&id).filter_map(|(token, lease)| {
            let state = lease.word()?;
            let holder = lease.holder();
            Some(SlotHolder {
                owner: holder.owner,
                sandbox: holder.sandbox,
                name: holder.name,
                state,
                token,
            })
        });
        let holders = holders.collect();
        SlotReport {
            id,
            device,
            group,
            health,
            holders,
        }
    }

    fn numbers_of(&self, group: &DeviceGroup) -> GroupReport {
        let mut report = GroupReport {
            vendor: group.vendor.clone(),
            kind: group.kind.clone(),
            name: group.name.clone(),
            resource: group.resource.clone(),
            capacity: 0,
            free: 0,
            held: BTreeMap::new(),
        };
        for device in &group.devices {
            let is_there = device.health != Health::Gone;
            for slot in device.slots(group.shares) {
                let owners: BTreeSet<Owner> = self
                    .on_slot(&slot)
                    .filter(|(_, lease)| lease.holds())
                    .map(|(_, lease)| lease.owner)
                    .collect();
                report.capacity += usize::from(is_there);
                let is_free = owners.is_empty() && !self.withheld;
                report.free += usize::from(is_free && device.health == Health::Healthy);
                for owner in owners {
                    *report.held.entry(owner).or_default() += 1;
                }
            }
        }
        report
    }
}

// === impl Lease ===

impl Lease {
    /// The state as one word; `None` for a lease that is only remembered.
    const fn word(&self) -> Option<&'static str> {
        match self.state {
            LeaseState::Unbound { contestable: false } => Some("unbound"),
            LeaseState::Unbound { contestable: true } => Some("contestable"),
            LeaseState::Bound { .. } => Some("bound"),
            LeaseState::Released { grace: true } => Some("grace"),
            LeaseState::Released { grace: false } => None,
        }
    }
}

// === impl DeviceGroup ===

impl DeviceGroup {
    /// The vendor, type and name, separated by slashes.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}/{}/{}", self.vendor, self.kind, self.name)
    }
}
