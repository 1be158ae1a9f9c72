//! An owner's view of the devices: its own slots with their health, those of others as unhealthy.
//!
//! A view is built from a [`ViewSnapshot`], a small copy of its inputs, so that lease requests do not wait
//! for it. A group without a change relevant to the owner is shared with the previous view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Devices;
use crate::device::{Device, DeviceGroup, Health, Inventory, shared};
use crate::id::{Owner, SlotId};

/// The health of all slots before the leases are recovered. A constant, because an orchestrator treats a
/// different text as a change.
const RECOVERING: &str = "the gateway is still recovering what its predecessor left";

/// The health of a slot that an owner does not have, while something that cannot be read may hold any of them.
const WITHHELD: &str = "an object that cannot be read may hold it";

/// The health of a free slot beyond an owner's quota.
const QUOTA: &str = "its owner may not have more of them";

/// The owners of the slots of a group; slots without an owner are not in the map.
type SlotOwners = BTreeMap<SlotId, BTreeSet<Owner>>;

/// The input for the views of all owners, as of one moment.
#[derive(Debug, Clone, Default)]
pub struct ViewSnapshot {
    /// The groups, and the owners of their slots; `None` until the hardware was scanned.
    groups: Option<Vec<(Arc<DeviceGroup>, SlotOwners)>>,
    recovered: bool,
    withheld: bool,
}

/// An owner's view of the devices, and the snapshot it was built from.
#[derive(Debug, Clone, Default)]
pub struct View {
    from: Arc<ViewSnapshot>,
    /// The slots, each as a device of its own; `None` until the hardware was scanned.
    pub inventory: Option<Arc<Inventory>>,
}

// === impl Devices ===

impl Devices {
    /// The input for the views of all owners.
    #[must_use]
    pub fn snapshot(&self) -> ViewSnapshot {
        let known = self.known.iter().flat_map(|known| &known.groups);
        let mut groups: Vec<_> = known
            .map(|group| (Arc::clone(group), SlotOwners::new()))
            .collect();
        for slot in self.by_slot.keys() {
            let holding = self.on_slot(slot).filter(|(_, lease)| lease.holds());
            let owners: BTreeSet<Owner> = holding.map(|(_, lease)| lease.owner).collect();
            if let Some((group, _)) = self.position(slot).filter(|_| !owners.is_empty()) {
                groups[group].1.insert(slot.clone(), owners);
            }
        }
        ViewSnapshot {
            groups: self.known.as_ref().map(|_| groups),
            recovered: self.recovered,
            withheld: self.withheld,
        }
    }

    /// The slots as an owner sees them, built from scratch: see [`ViewSnapshot::view`].
    #[cfg(test)]
    pub(crate) fn view(&self, owner: Owner) -> Option<Arc<Inventory>> {
        Arc::new(self.snapshot())
            .view(owner, &View::default())
            .inventory
    }
}

// === impl ViewSnapshot ===

impl ViewSnapshot {
    /// The slots as an owner sees them. `before` is an earlier view of the same owner: unchanged groups are
    /// shared with it, or the whole inventory if nothing changed.
    ///
    /// An owner with a quota sees as many free slots as it may still get: Kubernetes the first ones, other
    /// owners the last ones, so that two owners seldom choose the same slot.
    #[must_use]
    pub fn view(self: &Arc<Self>, owner: Owner, before: &View) -> View {
        let from = Arc::clone(self);
        let Some(groups) = &self.groups else {
            return View {
                from,
                inventory: None,
            };
        };
        let group = |(at, (group, held)): (usize, &(Arc<DeviceGroup>, SlotOwners))| {
            let earlier = before
                .inventory
                .as_ref()
                .and_then(|earlier| earlier.groups.get(at));
            match earlier {
                Some(earlier) if self.is_unchanged(owner, at, &before.from) => Arc::clone(earlier),
                Some(_) | None => shared(self.group(owner, group, held), earlier),
            }
        };
        let now = Inventory {
            groups: groups.iter().enumerate().map(group).collect(),
        };
        let same = before
            .inventory
            .as_ref()
            .filter(|before| now.is_shared_with(before))
            .cloned();
        View {
            from,
            inventory: Some(same.unwrap_or_else(|| Arc::new(now))),
        }
    }

    /// Returns whether everything that affects an owner's view of a group is unchanged.
    fn is_unchanged(&self, owner: Owner, at: usize, before: &Self) -> bool {
        let (Some((group, held)), Some((last, had))) = (self.at(at), before.at(at)) else {
            return false;
        };
        // The owner's own slots affect its view only through its quota.
        let counts = |(_, owners): &(&SlotId, &BTreeSet<Owner>)| {
            group.quota.contains_key(&owner) || is_foreign(owner, owners)
        };
        Arc::ptr_eq(group, last)
            && (self.recovered, self.withheld) == (before.recovered, before.withheld)
            // Those of its own are healthy then, and no others.
            && !self.withheld
            && held.iter().filter(counts).eq(had.iter().filter(counts))
    }

    fn at(&self, at: usize) -> Option<&(Arc<DeviceGroup>, SlotOwners)> {
        self.groups.as_ref()?.get(at)
    }

    /// A group as an owner sees it.
    fn group(&self, owner: Owner, group: &Arc<DeviceGroup>, held: &SlotOwners) -> Arc<DeviceGroup> {
        let quota = group.quota.get(&owner);
        let is_all_its_own = !held.values().any(|owners| is_foreign(owner, owners));
        let is_open = self.recovered && !self.withheld;
        if is_open && group.shares <= 1 && quota.is_none() && is_all_its_own {
            return Arc::clone(group);
        }
        let is_own = |slot: &str| held.get(slot).is_some_and(|owners| owners.contains(&owner));
        let mut devices: Vec<Device> = group
            .devices
            .iter()
            .flat_map(|device| device.slots(group.shares).map(move |slot| (device, slot)))
            .map(|(device, slot)| {
                let health = self.health(owner, device, held.get(&slot));
                let aliases = if group.shares <= 1 {
                    device.aliases.clone()
                } else {
                    Vec::new()
                };
                Device {
                    id: slot.into(),
                    aliases,
                    health,
                    ..device.clone()
                }
            })
            .collect();
        let own = held
            .values()
            .filter(|owners| owners.contains(&owner))
            .count();
        let mut left = quota.map(|quota| quota.saturating_sub(own));
        let mut limit = |device: &mut Device| {
            let free = device.health == Health::Healthy && !is_own(&device.id);
            let Some(left) = left.as_mut().filter(|_| free) else {
                return;
            };
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => device.health = Health::Unhealthy(QUOTA.to_owned()),
            }
        };
        if owner == Owner::Kubernetes {
            devices.iter_mut().for_each(&mut limit);
        } else {
            devices.iter_mut().rev().for_each(&mut limit);
        }
        Arc::new(DeviceGroup {
            devices,
            ..DeviceGroup::clone(group)
        })
    }

    fn health(&self, owner: Owner, device: &Device, owners: Option<&BTreeSet<Owner>>) -> Health {
        if !self.recovered {
            return Health::Unhealthy(RECOVERING.to_owned());
        }
        let foreign = owners.into_iter().flatten().find(|other| **other != owner);
        match (&device.health, foreign) {
            (health @ (Health::Unhealthy(_) | Health::Gone), _) => health.clone(),
            (Health::Healthy, Some(holder)) => Health::Unhealthy(format!("it is held by {holder}")),
            (Health::Healthy, None) if self.withheld && owners.is_none() => {
                Health::Unhealthy(WITHHELD.to_owned())
            }
            (Health::Healthy, None) => Health::Healthy,
        }
    }
}

/// Returns whether any of these is a different owner.
fn is_foreign(owner: Owner, owners: &BTreeSet<Owner>) -> bool {
    owners.iter().any(|other| *other != owner)
}
