//! Quotas of owners: the slots of a group that an owner has and may have.

use std::collections::{BTreeMap, BTreeSet};

use super::Devices;
use crate::device::DeviceGroup;
use crate::id::{Owner, SlotId};

impl Devices {
    /// Returns the number of slots of a group that an owner has.
    pub(super) fn held_of(&self, owner: Owner, group: &DeviceGroup) -> usize {
        let slots = group
            .devices
            .iter()
            .flat_map(|device| device.slots(group.shares));
        slots.filter(|slot| self.is_held_by(owner, slot)).count()
    }

    pub(super) fn is_held_by(&self, owner: Owner, slot: &SlotId) -> bool {
        self.on_slot(slot)
            .any(|(_, lease)| lease.owner == owner && lease.holds())
    }

    /// The first of these slots that exceeds the owner's quota for its group.
    pub(super) fn beyond_quota<'a>(
        &self,
        owner: Owner,
        wanted: &'a BTreeSet<SlotId>,
    ) -> Option<&'a SlotId> {
        let mut more: BTreeMap<usize, (usize, &SlotId)> = BTreeMap::new();
        for slot in wanted.iter().filter(|slot| !self.is_held_by(owner, slot)) {
            if let Some((group, _)) = self.position(slot) {
                more.entry(group).or_insert((0, slot)).0 += 1;
            }
        }
        let groups = self.known.as_ref().map(|known| &known.groups)?;
        more.into_iter().find_map(|(number, (count, slot))| {
            let group = groups.get(number)?;
            let quota = group.quota.get(&owner)?;
            (self.held_of(owner, group) + count > *quota).then_some(slot)
        })
    }
}
