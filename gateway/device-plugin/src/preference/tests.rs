//! Examples, and properties that hold for any request.

use proptest::prelude::*;

use super::*;
use crate::listing::{Offer, Slot};

/// A listing of slots, with their NUMA nodes.
fn listing(slots: &[(&str, Option<u32>)], placement: SlotPlacement) -> Listing {
    let slots = slots.iter().map(|(id, numa_node)| {
        (
            *id,
            Slot {
                healthy: true,
                numa_node: *numa_node,
            },
        )
    });
    Listing::default()
        .after(&Offer {
            slots: slots.collect(),
            placement,
        })
        .0
}

fn ids(ids: &[&str]) -> BTreeSet<SlotId> {
    ids.iter().map(|id| id.parse().unwrap()).collect()
}

/// Two devices of three slots each near node 0, one near node 1.
const SHARED: [(&str, Option<u32>); 9] = [
    ("a::0", Some(0)),
    ("a::1", Some(0)),
    ("a::2", Some(0)),
    ("b::0", Some(0)),
    ("b::1", Some(0)),
    ("b::2", Some(0)),
    ("c::0", Some(1)),
    ("c::1", Some(1)),
    ("c::2", Some(1)),
];

#[track_caller]
fn check(placement: SlotPlacement, used: &[&str], must: &[&str], size: usize, expected: &[&str]) {
    let listing = listing(&SHARED, placement);
    let ids_of = listing
        .slots()
        .map(|(id, _)| id)
        .filter(|id| !used.contains(id));
    let available = ids_of.map(|id| id.parse().unwrap()).collect();
    let question = PreferenceRequest {
        available,
        required: ids(must),
        size,
    };
    assert_eq!(prefer(&listing, &question), expected);
}

#[test]
fn packed_takes_the_devices_that_are_in_use() {
    use SlotPlacement::Packed;
    check(Packed, &[], &[], 1, &["c::0"]);
    check(Packed, &["b::1"], &[], 1, &["b::0"]);
    check(Packed, &["b::1"], &[], 3, &["c::0", "c::1", "c::2"]);
    check(Packed, &["b::1"], &[], 4, &["a::0", "a::1", "b::0", "b::2"]);
    check(Packed, &["a::0", "b::0", "b::1"], &[], 1, &["b::2"]);
}

#[test]
fn spread_takes_the_devices_that_are_used_least() {
    use SlotPlacement::Spread;
    check(Spread, &["a::0"], &[], 1, &["b::0"]);
    check(Spread, &[], &[], 2, &["a::0", "b::0"]);
    check(Spread, &["a::0", "b::0"], &[], 1, &["c::0"]);
    check(Spread, &["a::0"], &[], 3, &["a::1", "b::0", "b::1"]);
}

#[test]
fn slots_come_from_the_memory_node_of_what_must_be_included() {
    use SlotPlacement::{Packed, Spread};
    check(Packed, &["a::0"], &["c::2"], 2, &["c::0", "c::2"]);
    check(Spread, &[], &["c::2"], 3, &["c::0", "c::1", "c::2"]);
    check(
        Packed,
        &[],
        &["c::2"],
        5,
        &["a::0", "a::1", "c::0", "c::1", "c::2"],
    );
}

#[test]
fn one_memory_node_that_has_enough_is_preferred_to_two() {
    use SlotPlacement::{Packed, Spread};
    check(Packed, &["c::0"], &[], 4, &["a::0", "a::1", "a::2", "b::0"]);
    check(Spread, &[], &[], 4, &["a::0", "a::1", "b::0", "b::1"]);
    check(
        Packed,
        &[],
        &[],
        7,
        &["a::0", "a::1", "a::2", "b::0", "b::1", "b::2", "c::0"],
    );
}

#[test]
fn what_was_never_listed_is_taken_all_the_same() {
    let listing = Listing::default();
    let question = PreferenceRequest {
        available: ids(&["x", "y"]),
        required: ids(&["z"]),
        size: 5,
    };
    assert_eq!(prefer(&listing, &question), ["x", "y"]);
}

#[test]
fn many_slots_are_chosen_quickly() {
    let names: Vec<String> = (0..4000)
        .map(|number| format!("d{:04}::{}", number / 10, number % 10))
        .collect();
    let slots: Vec<(&str, Option<u32>)> =
        names.iter().map(|name| (name.as_str(), Some(0))).collect();
    for placement in [SlotPlacement::Packed, SlotPlacement::Spread] {
        let listing = listing(&slots, placement);
        let question = PreferenceRequest {
            available: names.iter().map(|name| name.parse().unwrap()).collect(),
            required: BTreeSet::new(),
            size: usize::MAX,
        };
        assert_eq!(prefer(&listing, &question).len(), 4000);
    }
}

fn slot() -> impl Strategy<Value = SlotId> {
    (0..4_u8, 0..4_u8).prop_map(|(device, slot)| format!("d{device}::{slot}").parse().unwrap())
}

fn node() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![Just(None), (0..3_u32).prop_map(Some)]
}

proptest! {
    #[test]
    fn the_answer_is_what_a_kubelet_can_take(
        slots in proptest::collection::btree_map(slot(), node(), 0..12),
        available in proptest::collection::btree_set(slot(), 0..12),
        must in proptest::collection::btree_set(slot(), 0..4),
        size in 0..14_usize,
        spread in any::<bool>(),
    ) {
        let placement = if spread { SlotPlacement::Spread } else { SlotPlacement::Packed };
        let slots = slots.iter().map(|(id, node)| (id.as_str(), Slot { healthy: true, numa_node: *node }));
        let (listing, _) = Listing::default().after(&Offer { slots: slots.collect(), placement });
        let question = PreferenceRequest { available, required: must, size };
        let answer = prefer(&listing, &question);
        let set: BTreeSet<SlotId> = answer.iter().cloned().collect();
        let bound: BTreeSet<_> = question.required.intersection(&question.available).collect();
        prop_assert_eq!(set.len(), answer.len());
        prop_assert!(set.is_subset(&question.available));
        prop_assert!(bound.iter().all(|id| set.contains(*id)));
        prop_assert_eq!(set.len(), size.min(question.available.len()).max(bound.len()));
        prop_assert_eq!(prefer(&listing, &question), answer);
    }

    #[test]
    fn one_memory_node_is_enough_if_one_has_enough(
        nodes in proptest::collection::btree_map(slot(), 0..3_u32, 1..12),
        size in 1..6_usize,
    ) {
        let slots = nodes.iter().map(|(id, node)| (id.as_str(), Slot { healthy: true, numa_node: Some(*node) }));
        let (listing, _) = Listing::default().after(&Offer { slots: slots.collect(), ..Offer::default() });
        let question = PreferenceRequest { available: nodes.keys().cloned().collect(), required: BTreeSet::new(), size };
        let answer = prefer(&listing, &question);
        let used: BTreeSet<u32> = answer.iter().map(|id| nodes[id]).collect();
        let enough = (0..3).any(|node| nodes.values().filter(|near| **near == node).count() >= size);
        prop_assert!(!enough || used.len() == 1, "{:?}", answer);
    }
}
