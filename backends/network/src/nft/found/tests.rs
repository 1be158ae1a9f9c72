//! Tests of what a dump of the kernel says about a table, and of repairs against a model of one.

use proptest::prelude::*;

use super::*;
use crate::nft::element::tests::{element, port};
use crate::nft::family::BridgeName;
use crate::nft::kept::dumps_of;

/// Steps as a model of the kernel does them: on the elements of a table, or on none if it has no table.
fn done(steps: &[TableStep], table: Option<BTreeSet<Element>>) -> Option<BTreeSet<Element>> {
    let mut table = table;
    for step in steps {
        match &step.action {
            Action::DeleteTable => table = None,
            Action::AddTable => table = Some(table.unwrap_or_default()),
            Action::AddElements(_, elements) => {
                table.as_mut().unwrap().extend(elements.iter().cloned());
            }
            Action::RemoveElements(_, elements) => {
                let table = table.as_mut().unwrap();
                assert!(
                    elements.iter().all(|element| table.remove(element)),
                    "removed what is not there"
                );
            }
            Action::AddSet(_) | Action::AddChain(_) | Action::AddRule(..) => {}
        }
    }
    table
}

fn bridge(name: &str) -> Element {
    Element::Bridge(BridgeName::new(name).unwrap())
}

#[test]
fn dump_of_the_kernel_is_our_table() {
    for family in NftFamily::ALL {
        let found = FoundTable::read(&dumps_of(family), family, "switchyard").unwrap();
        assert_eq!(found.structure, Structure::of(family), "{family:?}");
        assert!(found.is_intact(family));
        let texts: Vec<_> = found
            .elements()
            .iter()
            .map(|element| format!("{} {element}", element.set().name()))
            .collect();
        let wanted: &[&str] = match family {
            NftFamily::Ip4 => &[
                "ports tcp . 8080 : 10.88.0.2 . 80",
                "ports udp . 53 : 10.88.0.3 . 5353",
                "ports_at 192.0.2.1 . tcp . 8080 : 10.88.0.2 . 80",
                "hairpins 10.88.0.2 . 10.88.0.2",
                "masqueraded 10.88.0.0/16",
                "masqueraded 10.90.0.0/16",
                "masqueraded 255.0.0.0/8",
                "bridges \"sw0\"",
                "bridges \"sw1\"",
                "same \"sw0\" . \"sw0\"",
                "same \"sw1\" . \"sw1\"",
            ],
            NftFamily::Ip6 => &[
                "ports tcp . 8080 : fd00:88::2 . 80",
                "ports udp . 53 : fd00:88::3 . 5353",
                "ports_at 2001:db8::1 . tcp . 8080 : fd00:88::2 . 80",
                "hairpins fd00:88::2 . fd00:88::2",
                "masqueraded fd00:88::/64",
                "masqueraded fd00:90::/64",
                "bridges \"sw0\"",
                "bridges \"sw1\"",
                "same \"sw0\" . \"sw0\"",
                "same \"sw1\" . \"sw1\"",
            ],
            NftFamily::Bridge => &[],
        };
        assert_eq!(texts, wanted);
        let other = if family == NftFamily::Ip4 {
            NftFamily::Ip6
        } else {
            NftFamily::Ip4
        };
        assert_eq!(
            FoundTable::read(&dumps_of(family), other, "switchyard"),
            None
        );
        assert_eq!(
            FoundTable::read(&dumps_of(family), family, "switchyard_2"),
            None
        );
    }
}

#[test]
fn table_in_a_dump_of_the_kernel_is_listed() {
    for family in NftFamily::ALL {
        let listed: Vec<_> = messages(&dumps_of(family))
            .filter_map(|message| table_of(&message))
            .collect();
        assert_eq!(listed, [(family, TableName::default())]);
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is one table of cases")]
fn table_that_is_not_ours_is_made_anew() {
    let family = NftFamily::Ip4;
    let good = FoundTable::read(&dumps_of(family), family, "switchyard").unwrap();
    let changed = |change: &dyn Fn(&mut FoundTable)| {
        let mut found = good.clone();
        change(&mut found);
        found
    };
    let wanted = good.elements.clone();
    for (name, found) in [
        ("dormant", changed(&|found| found.structure.flags = 1)),
        (
            "without a set",
            changed(&|found| {
                found.structure.sets.remove("ports");
            }),
        ),
        (
            "another set",
            changed(&|found| {
                let shape = found.structure.sets["ports"];
                found.structure.sets.insert("more".to_owned(), shape);
            }),
        ),
        (
            "a set of another type",
            changed(&|found| found.structure.sets.get_mut("ports").unwrap().key_length = 4),
        ),
        (
            "a chain with policy drop",
            changed(&|found| found.structure.chains.get_mut("nat_output").unwrap().policy = 0),
        ),
        (
            "a chain without its rules",
            changed(&|found| found.structure.rules.get_mut("nat_output").unwrap().clear()),
        ),
        (
            "a rule behind ours",
            changed(&|found| {
                found
                    .structure
                    .rules
                    .get_mut("filter_forward")
                    .unwrap()
                    .push(vec![Expression::Drop]);
            }),
        ),
        (
            "rules in another order",
            changed(&|found| {
                found
                    .structure
                    .rules
                    .get_mut("nat_output")
                    .unwrap()
                    .reverse()
            }),
        ),
        (
            "a rule with a counter",
            changed(&|found| {
                found.structure.rules.get_mut("nat_output").unwrap()[0]
                    .push(Expression::Foreign("counter".to_owned()));
            }),
        ),
        (
            "a chain without a hook",
            changed(&|found| found.structure.foreign = 1),
        ),
        (
            "an element that is not understood",
            changed(&|found| found.foreign = 1),
        ),
    ] {
        assert!(!found.is_intact(family), "{name}");
        let (steps, change) = repair(family, Some(&found), &wanted);
        assert_eq!(change, Repair::Whole, "{name}");
        assert_eq!(steps[0].action, Action::DeleteTable, "{name}");
        assert_eq!(
            done(&steps, Some(found.elements)),
            Some(wanted.clone()),
            "{name}"
        );
    }
    let (steps, change) = repair(family, None, &wanted);
    assert_eq!(
        (done(&steps, None), change),
        (Some(wanted.clone()), Repair::Whole)
    );
    let (steps, change) = repair(family, Some(&good), &wanted);
    assert_eq!((steps, change), (vec![], Repair::Nothing));
}

#[test]
fn key_that_leads_elsewhere_is_removed_before_it_is_added() {
    let family = NftFamily::Ip4;
    let mut found = FoundTable::read(&dumps_of(family), family, "switchyard").unwrap();
    found.elements = BTreeSet::from([port(80, "10.0.0.1"), bridge("sw0")]);
    let wanted = BTreeSet::from([port(80, "10.0.0.2"), bridge("sw0")]);
    let (steps, change) = repair(family, Some(&found), &wanted);
    assert_eq!(
        change,
        Repair::Elements {
            added: 1,
            ports: 1,
            removed: 1
        }
    );
    let actions: Vec<_> = steps.into_iter().map(|step| step.action).collect();
    assert_eq!(
        actions,
        [
            Action::RemoveElements(TableSet::Ports, vec![port(80, "10.0.0.1")]),
            Action::AddElements(TableSet::Ports, vec![port(80, "10.0.0.2")]),
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn repair_leads_from_any_elements_to_any_others(
        found in proptest::collection::btree_set(element(NftFamily::Ip6), 0..20),
        wanted in proptest::collection::btree_set(element(NftFamily::Ip6), 0..20),
        kept in proptest::collection::btree_set(element(NftFamily::Ip6), 0..5),
    ) {
        let family = NftFamily::Ip6;
        let union = |set: BTreeSet<Element>| -> BTreeSet<Element> { set.union(&kept).cloned().collect() };
        let wanted = union(wanted);
        let mut table = FoundTable::read(&dumps_of(family), family, "switchyard").unwrap();
        table.elements = union(found);
        let (steps, _) = repair(family, Some(&table), &wanted);
        prop_assert_eq!(done(&steps, Some(table.elements.clone())), Some(wanted.clone()));
        let removed = steps.iter().any(|step| match &step.action {
            Action::RemoveElements(_, elements) => elements.iter().any(|element| kept.contains(element)),
            Action::AddTable | Action::DeleteTable | Action::AddSet(_) | Action::AddChain(_) | Action::AddRule(..) | Action::AddElements(..) => false,
        });
        prop_assert!(!removed, "what is in both stays");
    }
}
