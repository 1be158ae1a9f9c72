//! Ids and owners of nodes, whatever is found, in any order.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn group(name: &str) -> DeviceGroup {
    DeviceGroup::new("acme", "tpu", name)
}

fn candidate(known_by: &str, distinct_by: &str, minors: &[u32]) -> Candidate {
    Candidate {
        known_by: known_by.to_owned(),
        distinct_by: Some(distinct_by.to_owned()),
        aliases: vec![format!("/dev/{distinct_by}")],
        numbers: minors
            .iter()
            .map(|minor| Number {
                block: false,
                major: 1,
                minor: *minor,
            })
            .collect(),
        ..Candidate::default()
    }
}

fn of_family(name: &str, minors: &[u32]) -> Candidate {
    Candidate {
        family: Some("acme.com/tpu".into()),
        ..candidate(name, name, minors)
    }
}

/// The ids of a group, with the reasons why they are unhealthy.
fn told(inventory: &Inventory, group: usize) -> Vec<(&str, &str)> {
    let devices = inventory.groups[group].devices.iter();
    devices
        .map(|device| {
            (
                device.id.as_str(),
                device.health.fault().unwrap_or_default(),
            )
        })
        .collect()
}

#[test]
fn a_number_belongs_to_the_first_device_and_the_second_names_it() {
    let inventory = assemble(vec![
        (group("one"), vec![candidate("a", "ttyA", &[3])]),
        (
            group("two"),
            vec![
                candidate("a", "linkA", &[3, 4]),
                candidate("b", "ttyB", &[4]),
            ],
        ),
    ]);
    assert_eq!(
        told(&inventory, 0),
        [("a", "")],
        "who comes later takes no id away"
    );
    let [(id, why), b] = told(&inventory, 1)[..] else {
        panic!("{inventory:?}")
    };
    assert!(id.starts_with("a-") && identity::is_id(id), "{id}");
    assert_eq!(
        why,
        "character device 1:3 belongs to device a of acme/tpu/one"
    );
    assert_eq!(b, ("b", ""), "what is refused holds nothing");
    assert_eq!(inventory.groups[0].devices[0].aliases, ["/dev/ttyA"]);
    assert!(inventory.groups[1].devices[0].aliases.is_empty());
}

#[test]
fn devices_of_a_family_may_overlap_but_not_be_the_sum_of_others() {
    let candidates = vec![
        of_family("pair", &[0, 1]),
        of_family("0", &[0]),
        of_family("1", &[1]),
        of_family("part", &[0, 7]),
    ];
    let inventory = assemble(vec![(group("one"), candidates)]);
    let expected = [
        ("0", ""),
        ("1", ""),
        (
            "pair",
            "character device 1:0 belongs to device 0 of acme/tpu/one",
        ),
    ];
    assert_eq!(told(&inventory, 0)[..3], expected);
    assert_eq!(told(&inventory, 0)[3], ("part", ""));
    let inventory = assemble(vec![
        (group("one"), vec![of_family("0", &[0])]),
        (group("two"), vec![candidate("x", "x", &[0])]),
    ]);
    assert!(
        !told(&inventory, 1)[0].1.is_empty(),
        "who is of no family may not overlap"
    );
}

#[test]
fn twins_are_both_told_apart_by_what_stays() {
    let one = || candidate("0403:6001:1", "1-1", &[1]);
    let other = || candidate("0403:6001:1", "1-2", &[2]);
    let ids = |candidates: Vec<Candidate>| -> Vec<String> {
        let inventory = assemble(vec![(group("one"), candidates)]);
        inventory.groups[0]
            .devices
            .iter()
            .map(|device| device.id.clone())
            .collect()
    };
    let both = ids(vec![one(), other()]);
    assert_eq!(both, ids(vec![other(), one()]));
    assert!(
        both.iter()
            .all(|id| id.starts_with("0403:6001:1-") && identity::is_id(id)),
        "{both:?}"
    );
    assert_eq!(ids(vec![one()]), ["0403:6001:1"]);
}

#[test]
fn very_many_that_are_the_same_in_everything_cost_no_more_than_others() {
    let found = vec![candidate("same", "same", &[]); 20_000];
    let inventory = assemble(vec![(group("one"), found)]);
    let ids: BTreeSet<&str> = inventory.groups[0]
        .devices
        .iter()
        .map(|device| device.id.as_str())
        .collect();
    assert_eq!(ids.len(), 20_000);
}

/// Few different texts and numbers, so that they often collide.
fn any_candidate() -> impl Strategy<Value = Candidate> {
    let text = prop_oneof![
        "[ab]{1,2}",
        "[a/:]{0,60}",
        "(?s).{0,4}",
        Just("x".repeat(80))
    ];
    let family = prop_oneof![Just(None), Just(Some("f".into()))];
    (text, "[a-c]", vec(0_u32..6, 0..3), family).prop_map(
        |(known_by, distinct_by, minors, family)| Candidate {
            family,
            ..candidate(&known_by, &distinct_by, &minors)
        },
    )
}

proptest! {
    #[test]
    fn ids_are_valid_and_unique_and_no_healthy_devices_have_all_nodes_in_common(
        found in vec(vec(any_candidate(), 0..8), 1..4)
    ) {
        let groups: Vec<_> =
            found.iter().enumerate().map(|(at, found)| (group(&format!("g{at}")), found.clone())).collect();
        let inventory = assemble(groups);
        let devices: Vec<&Device> = inventory.groups.iter().flat_map(|group| &group.devices).collect();
        prop_assert_eq!(devices.len(), found.iter().map(Vec::len).sum::<usize>());
        let ids: BTreeSet<&str> = devices.iter().map(|device| device.id.as_str()).collect();
        prop_assert_eq!(ids.len(), devices.len());
        prop_assert!(ids.iter().all(|id| identity::is_id(id)), "{:?}", ids);
        let aliases: Vec<&String> = devices.iter().flat_map(|device| &device.aliases).collect();
        prop_assert_eq!(aliases.iter().collect::<BTreeSet<_>>().len(), aliases.len());
    }

    #[test]
    fn the_order_in_which_devices_are_found_does_not_matter(
        found in vec(any_candidate(), 0..8).prop_flat_map(|found| (Just(found.clone()), Just(found).prop_shuffle()))
    ) {
        let (one, other) = found;
        // Devices that are equal in everything have no defined order.
        let distinct: BTreeSet<_> = one.iter().map(Candidate::order).collect();
        prop_assume!(distinct.len() == one.len());
        prop_assert_eq!(assemble(vec![(group("g"), one)]), assemble(vec![(group("g"), other)]));
    }

    #[test]
    fn who_is_alone_with_its_id_keeps_it_whatever_else_is_found(
        others in vec(any_candidate(), 0..8)
    ) {
        let own = candidate("own-serial", "1-1", &[99]);
        let mut found = others;
        found.retain(|other| identity::id(&other.known_by) != "own-serial");
        found.push(own);
        let inventory = assemble(vec![(group("g"), found)]);
        let own = inventory.groups[0].devices.iter().find(|device| device.id == "own-serial");
        prop_assert_eq!(own.map(|device| &device.health), Some(&Health::Healthy));
    }
}
