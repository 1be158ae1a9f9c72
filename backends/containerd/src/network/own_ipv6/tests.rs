//! Which range a bridge has by itself, and when.

use super::*;

const MACHINE: &str = "0123456789abcdef0123456789abcdef\n";
const RANGE: &str = "fd33:fbb1:fdc2:c40e::/64";

/// Bridges have these ranges on nodes: no later version makes others.
#[test]
fn range_follows_from_the_node_and_the_name_of_the_bridge() {
    for (machine, bridge, range) in [
        (MACHINE, "switchyard0", RANGE),
        (MACHINE, "switchyard1", "fd33:fbb1:fdc2:9c00::/64"),
        (
            "0123456789abcdef0123456789abcdee",
            "switchyard0",
            "fd55:57c2:6678:83b4::/64",
        ),
    ] {
        let found = range_of(machine_id(machine).unwrap(), bridge);
        assert_eq!(found.to_string(), range);
        assert_eq!(recorded(range), RecordedRange::Range(found));
    }
}

#[test]
fn node_without_an_id_has_none() {
    for (text, is_one) in [
        (MACHINE, true),
        ("0123456789ABCDEF0123456789ABCDEF", true),
        ("uninitialized\n", false),
        ("", false),
        ("\n", false),
        ("00000000000000000000000000000000\n", false),
        ("0123456789abcdef\n", false),
        ("0123456789abcdef0123456789abcdef00\n", false),
        ("01234567-89ab-cdef-0123-456789abcdef\n", false),
    ] {
        assert_eq!(machine_id(text).is_some(), is_one, "{text:?}");
    }
}

#[test]
fn bridge_keeps_what_it_has_and_gets_a_range_only_when_it_is_made() {
    let range: Subnet = RANGE.parse().unwrap();
    let on_record = RecordedRange::Range(range);
    for (recorded, is_there, is_native, expected) in [
        (RecordedRange::Missing, false, true, RangeStep::Look(None)),
        (on_record, false, true, RangeStep::Look(Some(range))),
        (on_record, true, true, RangeStep::With(range)),
        // Containers may have addresses of it.
        (on_record, true, false, RangeStep::With(range)),
        (on_record, false, false, RangeStep::Without),
        // It was made by plugins, or by a version before.
        (RecordedRange::Missing, true, true, RangeStep::NoteNone),
        (RecordedRange::Missing, true, false, RangeStep::Without),
        (RecordedRange::Missing, false, false, RangeStep::Without),
        (RecordedRange::NoRange, false, true, RangeStep::Without),
        (RecordedRange::NoRange, true, true, RangeStep::Without),
        (RecordedRange::Strange, false, true, RangeStep::Without),
        (RecordedRange::Strange, true, true, RangeStep::Without),
    ] {
        let found = step(recorded, is_there, is_native);
        assert_eq!(found, expected, "{recorded:?} {is_there} {is_native}");
    }
}

#[test]
fn only_a_range_that_could_have_been_made_is_read() {
    for (text, expected) in [
        (RANGE, Some(true)),
        ("fd33:fbb1:fdc2:c40e::/64\n", Some(true)),
        ("none\n", Some(false)),
        ("", None),
        ("fd33:fbb1:fdc2::/48\n", None),
        ("fc00::/64\n", None),
        ("2001:db8::/64\n", None),
        ("10.1.0.0/16\n", None),
        ("fd33:fbb1:fdc2:c40e::/64 and more", None),
    ] {
        let found = match recorded(text) {
            RecordedRange::Range(_) => Some(true),
            RecordedRange::NoRange => Some(false),
            RecordedRange::Missing | RecordedRange::Strange => None,
        };
        assert_eq!(found, expected, "{text:?}");
    }
}

#[test]
fn what_an_operator_has_configured_comes_first() {
    type Change = fn(&mut config::BridgeConfig);
    let cases: [(Change, bool); 6] = [
        (|_| {}, true),
        (|bridge| bridge.ipv6 = false, false),
        (|bridge| bridge.subnets.push("fd00::/64".into()), false),
        (|bridge| bridge.mtu = 1279, false),
        (|bridge| bridge.mtu = 1280, true),
        (|bridge| bridge.subnets = vec!["10.1.0.0/16".into()], true),
    ];
    for (change, takes) in cases {
        let mut bridge = config::BridgeConfig::default();
        change(&mut bridge);
        assert_eq!(bridge.takes_ipv6(), takes, "{bridge:?}");
        assert_eq!(bridge.recorded_ipv6(RANGE).is_some(), takes, "{bridge:?}");
        assert_eq!(bridge.recorded_ipv6("none\n"), None);
    }
}

/// `lo` stands for a bridge that is there: each node has it.
#[test]
fn decision_is_on_record_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(dir.path(), dir.path());
    let mut network = config::NetworkConfig::default();
    network.bridge.name = "lo".to_owned();
    let file = network.bridge.ipv6_record(layout.state());
    let ranges = |network: &config::NetworkConfig| with_own_ipv6(network, &layout).bridge.subnets;
    let configured = network.bridge.subnets.clone();
    assert_eq!(ranges(&network), configured);
    assert!(!file.exists(), "plugins are to make it");
    network.bridge.driver = config::BridgeDriverChoice::Native;
    assert_eq!(ranges(&network), configured);
    assert_eq!(fs::read_to_string(&file).unwrap(), "none\n");
    // It was made while something was in the way: it has no address of the range.
    assert!(note(&file, RANGE));
    assert_eq!(ranges(&network), configured);
    for strange in ["fd00::/48\n", "\0"] {
        fs::write(&file, strange).unwrap();
        assert_eq!(ranges(&network), configured);
        assert_eq!(fs::read_to_string(&file).unwrap(), strange, "it stays");
    }
}
