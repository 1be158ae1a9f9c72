//! Tests of which range a bridge has by itself, and when.

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
        assert_eq!(RangeRecord::read(range), Some(RangeRecord::Range(found)));
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
    let on_record = FoundRecord::Known(RangeRecord::Range(range));
    let withheld = FoundRecord::Known(RangeRecord::Withheld(range));
    let none = FoundRecord::Known(RangeRecord::NoRange);
    let note_none = RangeStep::Note(RangeRecord::NoRange);
    let note_withheld = RangeStep::Note(RangeRecord::Withheld(range));
    for (found, is_there, is_native, expected) in [
        (FoundRecord::Missing, false, true, RangeStep::Look(None)),
        (on_record, false, true, RangeStep::Look(Some(range))),
        // A kill came before it had an address, or somebody has set it down for a moment.
        (on_record, true, true, RangeStep::Keep(Some(range))),
        // Containers may have addresses of it.
        (on_record, true, false, RangeStep::Keep(Some(range))),
        (on_record, false, false, note_withheld),
        (withheld, true, true, RangeStep::Keep(None)),
        (withheld, true, false, RangeStep::Keep(None)),
        (withheld, false, false, RangeStep::Keep(None)),
        (withheld, false, true, RangeStep::Look(Some(range))),
        // It was made by plugins, or by a version before.
        (FoundRecord::Missing, true, true, note_none),
        (FoundRecord::Missing, true, false, RangeStep::Keep(None)),
        (FoundRecord::Missing, false, false, RangeStep::Keep(None)),
        (none, false, true, RangeStep::Keep(None)),
        (none, true, true, RangeStep::Keep(None)),
        (FoundRecord::Strange, false, true, RangeStep::Keep(None)),
        (FoundRecord::Strange, true, true, RangeStep::Keep(None)),
    ] {
        let step = step(found, is_there, is_native);
        assert_eq!(step, expected, "{found:?} {is_there} {is_native}");
    }
}

#[test]
fn only_a_range_that_could_have_been_made_is_read() {
    let range: Subnet = RANGE.parse().unwrap();
    for (text, expected) in [
        (RANGE, Some(RangeRecord::Range(range))),
        (
            "fd33:fbb1:fdc2:c40e::/64\n",
            Some(RangeRecord::Range(range)),
        ),
        ("none\n", Some(RangeRecord::NoRange)),
        (
            "withheld fd33:fbb1:fdc2:c40e::/64\n",
            Some(RangeRecord::Withheld(range)),
        ),
        ("", None),
        ("withheld\n", None),
        ("withheldfd33:fbb1:fdc2:c40e::/64", None),
        ("withheld 10.1.0.0/16", None),
        ("fd33:fbb1:fdc2::/48\n", None),
        ("fc00::/64\n", None),
        ("2001:db8::/64\n", None),
        ("10.1.0.0/16\n", None),
        ("fd33:fbb1:fdc2:c40e::/64 and more", None),
    ] {
        let found = RangeRecord::read(text);
        assert_eq!(found, expected, "{text:?}");
        if let Some(record) = found {
            assert_eq!(record.to_string(), text.trim());
        }
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
        for without in ["none\n", "withheld fd33:fbb1:fdc2:c40e::/64\n"] {
            assert_eq!(bridge.recorded_ipv6(without), None);
        }
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
    network.bridge.driver = Some(config::BridgeDriverChoice::Native);
    assert_eq!(ranges(&network), configured);
    assert_eq!(fs::read_to_string(&file).unwrap(), "none\n");
    let with_range = [configured.clone(), vec![RANGE.to_owned()]].concat();
    for (text, expected) in [
        (RANGE, &with_range),
        ("withheld fd33:fbb1:fdc2:c40e::/64\n", &configured),
        ("fd00::/48\n", &configured),
        ("\0", &configured),
    ] {
        fs::write(&file, text).unwrap();
        assert_eq!(&ranges(&network), expected, "{text:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "it stays");
    }
}

/// No node has a bridge with a name of this length.
#[test]
fn bridge_that_plugins_are_to_make_has_no_range_when_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(dir.path(), dir.path());
    let mut network = config::NetworkConfig::default();
    network.bridge.name = "x".repeat(16);
    let file = network.bridge.ipv6_record(layout.state());
    let record = RangeRecord::Range(RANGE.parse().unwrap());
    assert!(note(&file, record));
    let found = with_own_ipv6(&network, &layout).bridge.subnets;
    assert_eq!(found, network.bridge.subnets);
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text, "withheld fd33:fbb1:fdc2:c40e::/64\n");
}
