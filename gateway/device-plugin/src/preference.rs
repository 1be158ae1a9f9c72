//! Chooses slots where several would do. Pure, and it never fails, since a kubelet rejects the pod if
//! GetPreferredAllocation fails.
//!
//! 1. Required slots are included, as far as they are available.
//! 2. All slots come from one NUMA node, if one has enough: the node of the required slots, else the node
//!    where the choice is best. Otherwise from as few NUMA nodes as possible.
//! 3. Within a NUMA node, `packed` prefers devices that have slots in use already, and `spread` prefers the
//!    devices with the fewest slots in use.

use std::collections::{BTreeMap, BTreeSet};

use switchyard_core::device::SlotPlacement;
use switchyard_core::id::{SlotId, device_of};

use crate::listing::Listing;

/// A kubelet's request for one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreferenceRequest {
    /// The slots that may be chosen.
    pub(crate) available: BTreeSet<SlotId>,
    /// The available slots that must be chosen.
    pub(crate) required: BTreeSet<SlotId>,
    /// Number of slots that the container needs.
    pub(crate) size: usize,
}

/// A device that has free slots.
#[derive(Debug, Clone)]
struct DeviceSlots<'a> {
    /// Number of its slots that are in use, or chosen.
    used: usize,
    /// Its free slots; the last one is chosen next.
    free: Vec<&'a SlotId>,
}

/// The free slots near one NUMA node, by device.
type SlotsByDevice<'a> = BTreeMap<&'a str, DeviceSlots<'a>>;

/// A choice within a NUMA node, and its cost: lower is better.
struct Choice<'a> {
    cost: usize,
    slots: Vec<&'a SlotId>,
}

/// The slots to take, in ascending order: as many as asked for, or all if there are fewer.
pub(crate) fn prefer(listing: &Listing, question: &PreferenceRequest) -> Vec<SlotId> {
    let PreferenceRequest {
        available,
        required: must,
        size,
    } = question;
    let mut chosen: BTreeSet<&SlotId> = must.intersection(available).collect();
    let nodes_of_must: BTreeMap<Option<u32>, usize> =
        chosen.iter().fold(BTreeMap::new(), |mut counts, id| {
            *counts.entry(node_of(listing, id)).or_default() += 1;
            counts
        });
    let mut left = size.saturating_sub(chosen.len());
    let mut nodes = free(listing, available, &chosen);
    while left > 0 {
        let Some(node) = best(&nodes, &nodes_of_must, left, listing.placement()) else {
            break;
        };
        let near = nodes.remove(&node).unwrap_or_default();
        let slots = choose(near, left, listing.placement()).slots;
        left -= slots.len();
        chosen.extend(slots);
    }
    chosen.into_iter().cloned().collect()
}

fn node_of(listing: &Listing, id: &SlotId) -> Option<u32> {
    listing.get(id.as_str()).and_then(|slot| slot.numa_node)
}

/// The free slots, by NUMA node and device.
fn free<'a>(
    listing: &Listing,
    available: &'a BTreeSet<SlotId>,
    chosen: &BTreeSet<&SlotId>,
) -> BTreeMap<Option<u32>, SlotsByDevice<'a>> {
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    for (id, _) in listing.slots() {
        let in_use = available.get(id).is_none_or(|id| chosen.contains(id));
        *used.entry(device_of(id)).or_default() += usize::from(in_use);
    }
    let mut nodes: BTreeMap<Option<u32>, SlotsByDevice<'a>> = BTreeMap::new();
    // In descending order, so that the lowest id is popped first.
    for id in available.iter().rev().filter(|id| !chosen.contains(id)) {
        let device = id.device();
        let near = nodes.entry(node_of(listing, id)).or_default();
        let part = near.entry(device).or_insert_with(|| DeviceSlots {
            used: used.get(device).copied().unwrap_or_default(),
            free: Vec::new(),
        });
        part.free.push(id);
    }
    nodes
}

/// The NUMA node to choose from next, if any is left.
fn best(
    nodes: &BTreeMap<Option<u32>, SlotsByDevice<'_>>,
    wanted: &BTreeMap<Option<u32>, usize>,
    left: usize,
    placement: SlotPlacement,
) -> Option<Option<u32>> {
    let key = |(node, near): (&Option<u32>, &SlotsByDevice<'_>)| {
        let free: usize = near.values().map(|part| part.free.len()).sum();
        let beside = wanted.get(node).copied().unwrap_or_default();
        let enough = free >= left;
        let cost = if enough {
            choose(near.clone(), left, placement).cost
        } else {
            0
        };
        // Among the nodes with enough slots, the one that has the fewest (packed) or the most (spread) left
        // afterwards; if none has enough, the one that gives the most.
        let rest = match (enough, placement) {
            (true, SlotPlacement::Packed) => free,
            (true, SlotPlacement::Spread) | (false, _) => usize::MAX - free,
        };
        (std::cmp::Reverse(beside), !enough, cost, rest, *node)
    };
    nodes.iter().map(key).min().map(|(.., node)| node)
}

/// Chooses `count` slots near one NUMA node, or all if there are fewer.
fn choose(mut near: SlotsByDevice<'_>, count: usize, placement: SlotPlacement) -> Choice<'_> {
    // Devices are taken in ascending order of rank.
    let rank = |device, part: &DeviceSlots<'_>| match placement {
        SlotPlacement::Packed => (usize::MAX - part.used, device),
        SlotPlacement::Spread => (part.used, device),
    };
    let mut order: BTreeSet<_> = near
        .iter()
        .map(|(device, part)| rank(*device, part))
        .collect();
    let mut choice = Choice {
        cost: 0,
        slots: Vec::new(),
    };
    while choice.slots.len() < count
        && let Some((_, device)) = order.pop_first()
        && let Some(part) = near.get_mut(device)
        && let Some(slot) = part.free.pop()
    {
        choice.cost += match placement {
            // The number of devices that were not in use before.
            SlotPlacement::Packed => usize::from(part.used == 0),
            SlotPlacement::Spread => part.used,
        };
        choice.slots.push(slot);
        part.used += 1;
        if !part.free.is_empty() {
            order.insert(rank(device, part));
        }
    }
    choice
}

#[cfg(test)]
mod tests;
