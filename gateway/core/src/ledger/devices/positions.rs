//! Positions of the slots' devices in the inventory, by the id of the slot.

use std::sync::Arc;

use crate::device::DeviceGroup;
use crate::id::{SlotId, device_of};

/// The devices of an inventory in the order of their ids. The ids themselves are in the inventory alone:
/// each query is given the groups that the positions were made of, or others with the same slots.
#[derive(Debug, Clone, Default)]
pub(super) struct Positions(Arc<[(u32, u32)]>);

// === impl Positions ===

impl Positions {
    pub(super) fn of(groups: &[Arc<DeviceGroup>]) -> Self {
        let mut all = Vec::with_capacity(groups.iter().map(|group| group.devices.len()).sum());
        for (number, group) in (0_u32..).zip(groups) {
            debug_assert!(
                group.shares <= 1
                    || group
                        .devices
                        .iter()
                        .all(|device| device_of(&device.id) == device.id)
            );
            all.extend((0_u32..).zip(&group.devices).map(|(at, _)| (number, at)));
        }
        all.sort_by_key(|place| (id(groups, *place), *place));
        Self(all.into())
    }

    /// The indices of the group and of the device in it. If several have a slot with this id, the first one
    /// counts.
    pub(super) fn find(
        &self,
        groups: &[Arc<DeviceGroup>],
        slot: &SlotId,
    ) -> Option<(usize, usize)> {
        let whole = self
            .of_device(groups, slot.as_str())
            .find(|(group, _)| groups[*group].shares <= 1);
        let share = slot.number().and_then(|number| {
            self.of_device(groups, slot.device()).find(|(group, _)| {
                let shares = groups[*group].shares;
                shares > 1 && number < shares
            })
        });
        whole.into_iter().chain(share).min()
    }

    /// The indices of all devices with this id, in ascending order.
    fn of_device(
        &self,
        groups: &[Arc<DeviceGroup>],
        wanted: &str,
    ) -> impl Iterator<Item = (usize, usize)> {
        let first = self.0.partition_point(|place| id(groups, *place) < wanted);
        let same = self.0[first..]
            .iter()
            .take_while(move |place| id(groups, **place) == wanted);
        same.map(|(group, device)| (index(*group), index(*device)))
    }
}

/// The id of the device at a position.
fn id(groups: &[Arc<DeviceGroup>], (group, device): (u32, u32)) -> &str {
    &groups[index(group)].devices[index(device)].id
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::device::Device;

    /// The positions by all slots, the first of each id.
    fn all(groups: &[Arc<DeviceGroup>]) -> BTreeMap<SlotId, (usize, usize)> {
        let mut places = BTreeMap::new();
        for (number, group) in groups.iter().enumerate() {
            for (at, device) in group.devices.iter().enumerate() {
                for slot in device.slots(group.shares) {
                    places.entry(slot).or_insert((number, at));
                }
            }
        }
        places
    }

    fn group((shares, mut ids): (u16, Vec<String>)) -> Arc<DeviceGroup> {
        ids.sort();
        ids.dedup();
        // The devices of a group with shares have no ids that look like those of slots.
        ids.retain(|id| {
            SlotId::new(id.as_str()).is_ok_and(|slot| shares <= 1 || slot.device() == id)
        });
        let devices = ids.into_iter().map(Device::without_nodes).collect();
        Arc::new(DeviceGroup {
            shares,
            devices,
            ..DeviceGroup::new("acme", "tpu", "v2")
        })
    }

    proptest! {
        #[test]
        fn every_slot_is_found_and_nothing_else(
            groups in vec((0_u16..12, vec("[ab]{0,2}(::)?[01]{0,2}", 0..6)), 0..4),
            others in vec("[ab]{0,2}(::)?(0|1|2|01|9|11|65536|x)?", 0..50),
        ) {
            let groups: Vec<_> = groups.into_iter().map(group).collect();
            let positions = Positions::of(&groups);
            let expected = all(&groups);
            let others: Vec<SlotId> = others.iter().filter_map(|other| other.parse().ok()).collect();
            for slot in expected.keys().chain(&others) {
                prop_assert_eq!(positions.find(&groups, slot), expected.get(slot).copied(), "{}", slot);
            }
        }
    }
}
