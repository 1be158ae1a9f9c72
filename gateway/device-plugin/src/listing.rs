//! The list of slots that a kubelet is sent for a resource. Pure.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use switchyard_core::device::{
    Device, DeviceGroup, Health, Inventory, OFFERED_SLOT_ID_MAX, SlotPlacement,
};

/// The largest message that a kubelet accepts, in bytes, less room for the message's own header.
const MESSAGE_MAX: usize = (4 << 20) - 1024;

/// Maximum size of a slot in a message besides its id: health, topology, and the lengths of all these fields.
const SLOT_BYTES: usize = 40;

/// The most resources that are offered at a time: each has a socket of its own.
pub(crate) const RESOURCES_MAX: usize = 256;

/// A slot as it is sent to a kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// True if the kubelet may allocate it to a pod.
    pub(crate) healthy: bool,
    /// The NUMA node that the slot's device is next to.
    pub(crate) numa_node: Option<u32>,
}

/// The device groups of a resource.
pub(crate) type Groups = Vec<Arc<DeviceGroup>>;

/// The slots that a resource has at present.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Offer<'a> {
    pub(crate) slots: BTreeMap<&'a str, Slot>,
    pub(crate) placement: SlotPlacement,
}

/// All slots of a resource that were ever sent to a kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Listing {
    /// Shared between consecutive listings with the same ids.
    ids: Arc<Ids>,
    /// The slots, in the order of their ids.
    slots: Box<[Slot]>,
    placement: SlotPlacement,
    /// The size of the message, at most.
    bytes: usize,
}

/// Ids in ascending order, one after the other in one text: there may be thousands of a few bytes each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Ids {
    text: Box<str>,
    /// Position at which each of them ends.
    ends: Box<[usize]>,
}

/// The resources of an inventory, each with its device groups.
pub(crate) fn resources(inventory: &Inventory) -> BTreeMap<&str, Groups> {
    let mut resources: BTreeMap<&str, Groups> = BTreeMap::new();
    for group in inventory
        .groups
        .iter()
        .filter(|group| !group.resource.is_empty())
    {
        resources
            .entry(&group.resource)
            .or_default()
            .push(Arc::clone(group));
    }
    resources
}

fn slot(device: &Device) -> Slot {
    Slot {
        healthy: device.health == Health::Healthy,
        numa_node: device.numa_node,
    }
}

// === impl Offer ===

impl<'a> Offer<'a> {
    /// The slots of these groups.
    pub(crate) fn of(groups: &'a [Arc<DeviceGroup>]) -> Self {
        let devices = groups.iter().flat_map(|group| &group.devices);
        Self {
            slots: devices
                .map(|device| (device.id.as_str(), slot(device)))
                .collect(),
            placement: groups
                .last()
                .map(|group| group.placement)
                .unwrap_or_default(),
        }
    }
}

// === impl Listing ===

impl Listing {
    /// The listing after this offer, and the ids that do not fit into it. Slots that are no longer offered
    /// stay, unhealthy.
    pub(crate) fn after(&self, offer: &Offer<'_>) -> (Self, Vec<String>) {
        let mut bytes = self.bytes;
        let mut new = Vec::new();
        let mut left_out = Vec::new();
        // All ids are in ascending order: none of these loops searches.
        let mut known = self.ids.iter().peekable();
        for id in offer.slots.keys() {
            while known.next_if(|other| other < id).is_some() {}
            if known.next_if(|other| other == id).is_some() {
                continue;
            }
            let more = bytes + id.len() + SLOT_BYTES;
            if id.is_empty() || id.len() > OFFERED_SLOT_ID_MAX || more > MESSAGE_MAX {
                left_out.push((*id).to_owned());
            } else {
                bytes = more;
                new.push(*id);
            }
        }
        let ids = if new.is_empty() {
            Arc::clone(&self.ids)
        } else {
            Arc::new(self.ids.with(&new))
        };
        let mut offered = offer.slots.iter().peekable();
        let mut before = self.slots().peekable();
        let slot = |id: &str| {
            while offered.next_if(|(other, _)| **other < id).is_some() {}
            let now = offered
                .next_if(|(other, _)| **other == id)
                .map(|(_, slot)| *slot);
            let last = before
                .next_if(|(other, _)| *other == id)
                .map(|(_, slot)| slot);
            let numa_node = last.and_then(|slot| slot.numa_node);
            now.unwrap_or(Slot {
                healthy: false,
                numa_node,
            })
        };
        let slots = ids.iter().map(slot).collect();
        (
            Self {
                ids,
                slots,
                placement: offer.placement,
                bytes,
            },
            left_out,
        )
    }

    /// The slots, by id in ascending order.
    pub(crate) fn slots(&self) -> impl ExactSizeIterator<Item = (&str, Slot)> {
        self.ids.iter().zip(self.slots.iter().copied())
    }

    /// A slot.
    pub(crate) fn get(&self, id: &str) -> Option<Slot> {
        self.slots.get(self.ids.find(id)?).copied()
    }

    /// Returns which slots are preferred where several are suitable.
    pub(crate) const fn placement(&self) -> SlotPlacement {
        self.placement
    }
}

// === impl Ids ===

impl Ids {
    /// These and further ones, which are none of these.
    fn with(&self, new: &[&str]) -> Self {
        let mut all: Vec<&str> = self.iter().chain(new.iter().copied()).collect();
        all.sort_unstable();
        let ends = all.iter().scan(0, |end, id| {
            *end += id.len();
            Some(*end)
        });
        Self {
            ends: ends.collect(),
            text: all.concat().into(),
        }
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.ends.len()).map(|index| self.at(index))
    }

    fn at(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start..self.ends[index]]
    }

    fn find(&self, wanted: &str) -> Option<usize> {
        let mut low = 0;
        let mut high = self.ends.len();
        while low < high {
            let middle = low.midpoint(high);
            match self.at(middle).cmp(wanted) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Some(middle),
                Ordering::Greater => high = middle,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::to_proto;

    fn offer<'a>(ids: &[(&'a str, bool)]) -> Offer<'a> {
        let slots = ids.iter().map(|(id, healthy)| {
            (
                *id,
                Slot {
                    healthy: *healthy,
                    numa_node: Some(u32::MAX),
                },
            )
        });
        Offer {
            slots: slots.collect(),
            ..Offer::default()
        }
    }

    fn health(listing: &Listing) -> Vec<(&str, bool)> {
        listing
            .slots()
            .map(|(id, slot)| (id, slot.healthy))
            .collect()
    }

    #[test]
    fn what_has_gone_stays_unhealthy_and_is_healthy_again_when_it_comes_back() {
        let (listing, left_out) = Listing::default().after(&offer(&[("a", true), ("b", true)]));
        assert!(left_out.is_empty());
        let (listing, _) = listing.after(&offer(&[("b", true), ("c", false)]));
        assert_eq!(health(&listing), [("a", false), ("b", true), ("c", false)]);
        let (listing, _) = listing.after(&offer(&[("a", true)]));
        assert_eq!(health(&listing), [("a", true), ("b", false), ("c", false)]);
        let (listing, _) = listing.after(&Offer::default());
        assert_eq!(health(&listing), [("a", false), ("b", false), ("c", false)]);
    }

    #[test]
    fn a_message_never_grows_beyond_what_a_kubelet_takes_and_what_is_known_keeps_its_place() {
        let ids: Vec<String> = (0..60_000).map(|number| format!("{number:0>63}")).collect();
        let all: Vec<(&str, bool)> = ids.iter().map(|id| (id.as_str(), false)).collect();
        let (first, left_out) = Listing::default().after(&offer(&all));
        assert!(first.slots().len() > 40_000, "{}", first.slots().len());
        assert_eq!(first.slots().len() + left_out.len(), ids.len());
        assert!(to_proto::list(&first).encoded_len() <= 4 << 20);
        let new = format!("{:x>63}", "new");
        let (next, left_out) = first.after(&offer(&[(&new, true)]));
        assert_eq!(left_out, [new]);
        assert_eq!(next.slots().len(), first.slots().len());
    }

    #[test]
    fn an_id_that_no_annotation_takes_is_left_out() {
        let long = "x".repeat(OFFERED_SLOT_ID_MAX + 1);
        let (listing, left_out) =
            Listing::default().after(&offer(&[(&long, true), ("", true), ("a", true)]));
        assert_eq!(health(&listing), [("a", true)]);
        assert_eq!(left_out, ["".to_owned(), long]);
    }
}
