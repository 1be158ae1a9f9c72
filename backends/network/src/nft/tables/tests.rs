//! Tables in network namespaces of the tests' own, with the kernel and the program `nft`.

mod packets;
mod ports;
mod subnets;
mod users;

use std::cell::RefCell;
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::nft::element::tests::{element, port};
use crate::nft::family::{BridgeName, NftSubnet, Transport};
use crate::nft::monitor::NftMonitor;
use crate::nft::pins::port_pins;
use crate::nft::rules;
use crate::testing::{in_private_netns, run};

fn nft(arguments: &[&str]) -> String {
    run("nft", "nftables", arguments)
}

/// Brings the loopback device up, and makes all tables.
pub(in crate::nft) fn prepare() {
    run("ip", "iproute2", &["link", "set", "lo", "up"]);
    let mut tables = NftTables::open(TableName::default()).unwrap();
    for family in NftFamily::TABLES {
        tables.restore(family, &BTreeSet::new()).unwrap();
    }
}

fn bridge(name: &str) -> BridgeName {
    BridgeName::new(name).unwrap()
}

/// Some of each kind of element.
fn elements(family: NftFamily) -> BTreeSet<Element> {
    if family == NftFamily::Bridge {
        let addresses: [IpAddr; 2] = ["10.88.0.2", "fd00:88::2"].map(|text| text.parse().unwrap());
        let mac = "02:42:0a:58:00:02".parse().unwrap();
        return port_pins(&bridge("veth0"), mac, &addresses);
    }
    let text = |four: &'static str, six: &'static str| match family {
        NftFamily::Ip4 => four,
        NftFamily::Ip6 => six,
        NftFamily::Bridge => unreachable!("it has pins alone"),
    };
    let address =
        |four: &'static str, six: &'static str| -> IpAddr { text(four, six).parse().unwrap() };
    let container = address("10.88.0.2", "fd00:88::2");
    let subnet = |four, six, prefix| NftSubnet::new(address(four, six), prefix).unwrap();
    BTreeSet::from([
        port(8080, text("10.88.0.2", "fd00:88::2")),
        Element::Port {
            at: Some(address("192.0.2.1", "2001:db8::1")),
            protocol: Transport::Sctp,
            port: 65535,
            to: container,
            to_port: 1,
        },
        Element::Hairpin(container),
        Element::Masqueraded(subnet("10.88.0.0", "fd00:88::", 16)),
        Element::Masqueraded(subnet("10.89.0.0", "fd01::", 16)),
        Element::Closed(subnet("0.0.0.0", "::", 0)),
        Element::Bridge(bridge("sw0")),
        Element::Same(bridge("sw0")),
        Element::Apart(bridge("fifteen-bytes-x")),
        Element::Allowed(bridge("sw0"), bridge("sw1")),
    ])
}

/// Looks for up to 20 seconds.
fn eventually(mut look: impl FnMut() -> bool) -> bool {
    for _ in 0..200 {
        if look() {
            return true;
        }
        thread::sleep(Duration::from_millis(100));
    }
    false
}

fn change(family: NftFamily, add: bool, element: Element) -> ElementChange {
    ElementChange {
        family,
        add,
        element,
    }
}

#[test]
fn table_is_as_nft_lists_it() {
    in_private_netns(|| {
        prepare();
        for family in NftFamily::TABLES {
            let listed = nft(&["--terse", "list", "table", family.name(), "switchyard"]);
            // Later versions of nft have a name for this field.
            let listed = listed.replace("icmpv6 taddr", "@th,64,128");
            assert_eq!(listed, rules::text(family, &TableName::default()));
            let mut tables = NftTables::open(TableName::default()).unwrap();
            tables.restore(family, &elements(family)).unwrap();
            for element in elements(family) {
                let set = element.set();
                let listed = nft(&["list", set.word(), family.name(), "switchyard", set.name()]);
                assert!(
                    listed.contains(&element.to_string()),
                    "{element} is not in {listed}"
                );
            }
        }
    });
}

#[test]
fn table_that_nft_loads_is_ours() {
    in_private_netns(|| {
        let mut tables = NftTables::open(TableName::default()).unwrap();
        for family in NftFamily::ALL {
            let mut loader = Command::new("nft")
                .args(["--file", "-"])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let text = rules::text(family, &TableName::default());
            let mut input = loader.stdin.take().unwrap();
            input.write_all(text.as_bytes()).unwrap();
            drop(input);
            assert!(loader.wait().unwrap().success());
            let found = tables.read(family).unwrap().unwrap();
            assert!(found.is_intact(family), "{found:#?}");
            let repair = tables.restore(family, &BTreeSet::new()).unwrap();
            assert_eq!(repair, Repair::Nothing);
        }
    });
}

#[test]
fn elements_are_read_as_they_were_added() {
    in_private_netns(|| {
        prepare();
        let mut tables = NftTables::open(TableName::default()).unwrap();
        for family in NftFamily::TABLES {
            let wanted = elements(family);
            let all = |add| -> Vec<_> {
                let wanted = wanted.iter().cloned();
                wanted.map(|element| change(family, add, element)).collect()
            };
            // Twice: what is there already, or not there any more, is as it should be.
            for _ in 0..2 {
                tables.change(&all(true)).unwrap();
                let found = tables.read(family).unwrap().unwrap();
                assert_eq!(found.elements(), &wanted);
                assert!(found.is_intact(family));
            }
            for _ in 0..2 {
                tables.change(&all(false)).unwrap();
                assert!(tables.read(family).unwrap().unwrap().elements().is_empty());
            }
        }
    });
}

#[test]
fn kernel_lists_any_elements_as_they_were_added() {
    in_private_netns(|| {
        let tables = RefCell::new(NftTables::open(TableName::default()).unwrap());
        let mut runner = TestRunner::new(Config::with_cases(32));
        let of = |family| proptest::collection::btree_set(element(family), 0..40);
        for family in NftFamily::TABLES {
            let outcome = runner.run(&of(family), |elements| {
                // The kernel refuses a map with two values for a key, and subnets that overlap.
                let mut keys = BTreeSet::new();
                let wanted: BTreeSet<_> = elements
                    .into_iter()
                    .filter(|element| match element {
                        Element::Port {
                            at, protocol, port, ..
                        } => keys.insert((*at, *protocol, *port)),
                        Element::Masqueraded(_) | Element::Closed(_) => false,
                        Element::Hairpin(_)
                        | Element::Bridge(_)
                        | Element::Same(_)
                        | Element::Apart(_)
                        | Element::Allowed(..)
                        | Element::PinnedPort(_)
                        | Element::PinnedMac(..)
                        | Element::PinnedAddress(..) => true,
                    })
                    .collect();
                let mut tables = tables.borrow_mut();
                tables.restore(family, &wanted).unwrap();
                let found = tables.read(family).unwrap().unwrap();
                prop_assert_eq!(found.elements(), &wanted);
                prop_assert!(found.is_intact(family));
                Ok(())
            });
            outcome.unwrap();
        }
    });
}

#[test]
fn refused_change_does_nothing_and_names_the_step() {
    in_private_netns(|| {
        let family = NftFamily::Ip4;
        let mut tables = NftTables::open(TableName::default()).unwrap();
        let first = change(family, true, port(80, "10.88.0.2"));
        let error = tables.change(std::slice::from_ref(&first)).unwrap_err();
        assert!(error.is_missing(), "{error:?}");
        prepare();
        tables.change(std::slice::from_ref(&first)).unwrap();
        let elsewhere = change(family, true, port(80, "10.88.0.3"));
        let bridge = change(family, true, Element::Bridge(bridge("sw0")));
        let error = tables.change(&[bridge, elsewhere.clone()]).unwrap_err();
        assert!(!error.is_missing());
        assert_eq!(
            error.to_string(),
            "cannot add tcp . 80 : 10.88.0.3 . 80 to map ports of table ip switchyard; nothing of its transaction was done"
        );
        let only = BTreeSet::from([first.element.clone()]);
        assert_eq!(tables.read(family).unwrap().unwrap().elements(), &only);
        // Given to another container in one transaction, also beside the removal of what is not there.
        let gone = change(family, false, port(81, "10.88.0.2"));
        let taken = ElementChange {
            add: false,
            ..first
        };
        tables.change(&[gone, elsewhere.clone(), taken]).unwrap();
        let only = BTreeSet::from([elsewhere.element]);
        assert_eq!(tables.read(family).unwrap().unwrap().elements(), &only);
        let wrong = change(NftFamily::Ip6, true, port(80, "10.88.0.3"));
        let error = tables.change(&[wrong]).unwrap_err();
        assert!(matches!(error, NftError::WrongFamily { .. }), "{error:?}");
    });
}

#[test]
fn port_that_another_container_has_by_now_is_left_to_it() {
    in_private_netns(|| {
        prepare();
        let mut tables = NftTables::open(TableName::default()).unwrap();
        for (family, first, second) in [
            (NftFamily::Ip4, "10.88.0.2", "10.88.0.3"),
            (NftFamily::Ip6, "fd00:88::2", "fd00:88::3"),
        ] {
            let add = |to| change(family, true, port(80, to));
            let remove = |to| change(family, false, port(80, to));
            tables.change(&[add(first)]).unwrap();
            tables.change(&[remove(first), add(second)]).unwrap();
            // Asked again, by itself and beside a change that is needed.
            tables.change(&[remove(first)]).unwrap();
            let other = change(family, true, Element::Bridge(bridge("sw0")));
            tables.change(&[remove(first), other.clone()]).unwrap();
            let wanted = BTreeSet::from([port(80, second), other.element]);
            assert_eq!(tables.read(family).unwrap().unwrap().elements(), &wanted);
            tables.remove(family).unwrap();
            tables.change(&[remove(second)]).unwrap();
        }
    });
}

#[test]
fn restore_mends_what_others_changed() {
    in_private_netns(|| {
        let family = NftFamily::Ip4;
        let wanted = elements(family);
        let mut tables = NftTables::open(TableName::default()).unwrap();
        nft(&["add", "table", "inet", "other"]);
        nft(&["add", "chain", "inet", "other", "kept"]);
        let elements = |added, ports, removed| Repair::Elements {
            added,
            ports,
            removed,
        };
        for (name, changes, repair) in [
            ("no table", "list tables", Repair::Whole),
            ("nothing", "list tables", Repair::Nothing),
            (
                "port",
                "delete element ip switchyard ports { tcp . 8080 }",
                elements(1, 1, 0),
            ),
            (
                "bridge",
                "delete element ip switchyard bridges { sw0 }",
                elements(1, 0, 0),
            ),
            (
                "foreign element",
                "add element ip switchyard bridges { docker0 }",
                elements(0, 0, 1),
            ),
            (
                "foreign rule",
                "insert rule ip switchyard filter_forward counter",
                Repair::Whole,
            ),
            (
                "foreign chain",
                "add chain ip switchyard own",
                Repair::Whole,
            ),
            (
                "rules gone",
                "flush chain ip switchyard nat_output",
                Repair::Whole,
            ),
            (
                "foreign set",
                "add set ip switchyard own { type ipv4_addr; }",
                Repair::Whole,
            ),
            (
                "dormant",
                "add table ip switchyard { flags dormant; }",
                Repair::Whole,
            ),
            ("all gone", "delete table ip switchyard", Repair::Whole),
        ] {
            nft(&changes.split_whitespace().collect::<Vec<_>>());
            assert_eq!(tables.restore(family, &wanted).unwrap(), repair, "{name}");
            let found = tables.read(family).unwrap().unwrap();
            assert!(found.is_intact(family), "{name}");
            assert_eq!(found.elements(), &wanted, "{name}");
            assert_eq!(
                tables.restore(family, &wanted).unwrap(),
                Repair::Nothing,
                "{name}"
            );
        }
        tables.remove(family).unwrap();
        tables.remove(family).unwrap();
        assert_eq!(tables.read(family).unwrap(), None);
        assert!(
            nft(&["list", "ruleset"]).contains("chain kept"),
            "what is not ours stays"
        );
    });
}

#[test]
fn instances_have_tables_of_their_own() {
    in_private_netns(|| {
        let family = NftFamily::Ip4;
        let second = TableName::of_instance("second").unwrap();
        let mut first = NftTables::open(TableName::default()).unwrap();
        let mut second = NftTables::open(second).unwrap();
        first.restore(family, &elements(family)).unwrap();
        let others = BTreeSet::from([port(9090, "10.99.0.2")]);
        second.restore(family, &others).unwrap();
        assert_eq!(
            first.read(family).unwrap().unwrap().elements(),
            &elements(family)
        );
        assert_eq!(second.read(family).unwrap().unwrap().elements(), &others);
        first.remove(family).unwrap();
        assert!(second.read(family).unwrap().unwrap().is_intact(family));
    });
}

#[test]
fn tables_of_all_instances_are_listed_and_no_others() {
    in_private_netns(|| {
        assert!(NftTables::list().unwrap().is_empty());
        for (family, table) in [
            ("ip", "switchyardx"),
            ("inet", "switchyard"),
            ("ip6", "switchyard_A"),
            ("ip", "other"),
        ] {
            nft(&["add", "table", family, table]);
        }
        assert!(NftTables::list().unwrap().is_empty());
        let second = TableName::of_instance("second").unwrap();
        let ours = BTreeSet::from([
            (NftFamily::Ip4, TableName::default()),
            (NftFamily::Ip4, second.clone()),
            (NftFamily::Ip6, second),
        ]);
        for (family, table) in &ours {
            let mut tables = NftTables::open(table.clone()).unwrap();
            tables.restore(*family, &elements(*family)).unwrap();
        }
        assert_eq!(NftTables::list().unwrap(), ours);
    });
}

#[test]
fn change_that_follows_a_look_is_tried_again() {
    in_private_netns(|| {
        prepare();
        let family = NftFamily::Ip4;
        let mut others = NftTables::open(TableName::default()).unwrap();
        let mut tables = NftTables::open(TableName::default()).unwrap();
        let mut made = 0;
        for (changes_of_others, done) in [
            (0, true),
            (1, true),
            (TRIES - 1, true),
            (TRIES, false),
            (TRIES + 6, false),
        ] {
            let mut looks = 0;
            let outcome = tables.after_a_look("do it", |_| {
                if looks < changes_of_others {
                    made += 1;
                    let another = Element::Bridge(bridge(&format!("other{made}")));
                    others.change(&[change(family, true, another)])?;
                }
                looks += 1;
                let wanted = [change(family, true, Element::Bridge(bridge("sw0")))];
                Ok((steps(&wanted, |_| true), ()))
            });
            match outcome {
                Ok(()) => assert!(done, "{changes_of_others}"),
                Err(NftError::Contended { tries, .. }) => {
                    assert!(!done && tries == TRIES, "{changes_of_others}");
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    });
}

#[test]
fn probe_leaves_nothing() {
    in_private_netns(|| {
        let mut tables = NftTables::open(TableName::default()).unwrap();
        for family in NftFamily::TABLES {
            tables.probe(family).unwrap();
            assert_eq!(tables.read(family).unwrap(), None);
        }
        assert_eq!(nft(&["list", "ruleset"]), "");
        prepare();
        let before = nft(&["list", "ruleset"]);
        tables.probe(NftFamily::Ip4).unwrap();
        assert_eq!(nft(&["list", "ruleset"]), before);
    });
}

#[test]
fn many_ports_are_one_transaction() {
    in_private_netns(|| {
        prepare();
        let family = NftFamily::Ip4;
        let mut tables = NftTables::open(TableName::default()).unwrap();
        let wanted: BTreeSet<_> = (1..=20_000)
            .map(|number| port(number, "10.88.0.2"))
            .collect();
        let added = wanted.iter().cloned();
        let added: Vec<_> = added.map(|element| change(family, true, element)).collect();
        tables.change(&added).unwrap();
        nft(&["flush", "ruleset"]);
        assert_eq!(tables.restore(family, &wanted).unwrap(), Repair::Whole);
        // While the kernel makes a hash table larger, behind its answer, a list of it may lack elements.
        let is_whole = || tables.read(family).unwrap().unwrap().elements() == &wanted;
        assert!(eventually(is_whole), "elements are missing");
    });
}

#[test]
fn monitor_notices_flushes_of_others() {
    in_private_netns(|| {
        let mut monitor = NftMonitor::open(TableName::default()).unwrap();
        let mut tables = NftTables::open(TableName::default()).unwrap();
        let own = [tables.port()];
        for family in NftFamily::TABLES {
            tables.restore(family, &elements(family)).unwrap();
        }
        assert!(
            monitor.read(&own).unwrap().families.is_empty(),
            "our own change"
        );
        nft(&["add", "table", "inet", "other"]);
        assert!(
            monitor.read(&own).unwrap().families.is_empty(),
            "another table"
        );
        let words = "delete element ip6 switchyard bridges {sw0}";
        nft(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(
            monitor.read(&own).unwrap().families,
            BTreeSet::from([NftFamily::Ip6])
        );
        nft(&["flush", "ruleset"]);
        assert_eq!(
            monitor.read(&own).unwrap().families,
            BTreeSet::from(NftFamily::TABLES)
        );
        assert_eq!(
            monitor.read(&own).unwrap(),
            crate::nft::NftNotice::default()
        );
    });
}
