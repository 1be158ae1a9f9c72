//! Tests of what decides which defaults a node has, of the reading of its record, and of its configuration.

use std::os::unix::fs::symlink;

use proptest::prelude::*;
use switchyard_linux::report;

use super::FoundDefaults::{Recorded, Undecided};
use super::NetworkDefaults::{Cni, Native};
use super::*;
use crate::tests::Etc;
use crate::{Loaded, load};

/// Written by the first version with a record. The file is not changed.
const GOLDEN: &str = include_str!("../golden/network-defaults-1.toml");

fn loaded(etc: &Etc) -> Loaded {
    load(&etc.sources()).unwrap()
}

/// The configuration file of a daemon with this state directory.
fn text(state: &Path, keys: &str) -> String {
    format!("version = 1\n[paths]\nstate = {state:?}\n{keys}")
}

#[test]
fn record_decides_and_without_one_what_an_earlier_daemon_has_left() {
    let native = encode_network_defaults(Native);
    let cni = encode_network_defaults(Cni);
    for (record, has_traces, expected) in [
        (None, false, Undecided(Native)),
        (None, true, Undecided(Cni)),
        (Some(&native), false, Recorded(Native)),
        // Whatever was made since.
        (Some(&native), true, Recorded(Native)),
        (Some(&cni), true, Recorded(Cni)),
        // All objects are gone, and the node stays what it was.
        (Some(&cni), false, Recorded(Cni)),
    ] {
        let found = decide(record.map(String::as_str), has_traces).unwrap();
        assert_eq!(found, expected, "{record:?} {has_traces}");
    }
}

#[test]
fn each_trace_of_an_earlier_daemon_counts_and_nothing_else_does() {
    for name in TRACES {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(name)).unwrap();
        let found = find_network_defaults(dir.path()).unwrap();
        assert_eq!(found, Undecided(Cni), "{name}");
    }
    let dir = tempfile::tempdir().unwrap();
    symlink("/nowhere", dir.path().join("swarm")).unwrap();
    assert_eq!(find_network_defaults(dir.path()).unwrap(), Undecided(Cni));
    // What is there before the first daemon decides, or stays of one that was killed before it had written that down; what packages write, and
    // what their purge leaves.
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "lock",
        "network-defaults.toml.new",
        "nomad-plugins",
        "places",
        "volumes",
        "quickstart",
        "history",
        "containerd",
        "logkeeper.log",
        "lost+found",
    ] {
        fs::write(dir.path().join(name), "x").unwrap();
    }
    assert_eq!(
        find_network_defaults(dir.path()).unwrap(),
        Undecided(Native)
    );
    let missing = dir.path().join("missing");
    assert_eq!(find_network_defaults(&missing).unwrap(), Undecided(Native));
}

#[test]
fn record_that_says_nothing_is_neither_missing_nor_replaced() {
    let long = format!("version = 1\ndriver = \"cni\"\n#{}", "x".repeat(5000));
    for (record, why) in [
        ("", "version"),
        ("\0\0\0\0", ""),
        ("version = 1\n", "driver"),
        ("version = 1\ndriver = \"nat\"\n", "native"),
        ("version = 1\ndriver = 1\n", ""),
        ("driver = \"native\"\n", "version"),
        ("version = 2\ndriver = \"native\"\n", "its version is 2"),
        ("version = 2\n[later]\n", "its version is 2"),
        ("version = \"1\"\ndriver = \"native\"\n", "string"),
        ("{\"version\":1}", ""),
        (long.as_str(), "4096"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = network_defaults_file(dir.path());
        fs::write(&file, record).unwrap();
        let error = find_network_defaults(dir.path()).unwrap_err();
        assert!(!error.is_denied());
        let text = report(&error);
        let part = file.display().to_string();
        assert!(text.contains(&part) && text.contains(why), "{text}");
        assert_eq!(fs::read_to_string(&file).unwrap(), record);
    }
    // Nor is what is no file.
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(network_defaults_file(dir.path())).unwrap();
    assert!(find_network_defaults(dir.path()).is_err());
    // Nor is a directory that cannot be looked at.
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = find_network_defaults(&file).unwrap_err();
    assert!(matches!(error, DefaultsError::Read { .. }), "{error:?}");
}

#[test]
fn record_of_the_first_version_is_read_and_fields_of_a_later_writer_are_ignored() {
    assert_eq!(decide(Some(GOLDEN), true).unwrap(), Recorded(Native));
    assert_eq!(encode_network_defaults(Native), GOLDEN);
    for defaults in NetworkDefaults::ALL {
        let record = format!("{}later = [1]\n", encode_network_defaults(defaults));
        assert_eq!(decide(Some(&record), false).unwrap(), Recorded(defaults));
    }
}

#[test]
fn dump_has_the_keys_that_are_in_force_and_where_they_come_from() {
    let state = tempfile::tempdir().unwrap();
    let record = network_defaults_file(state.path());
    let etc = Etc::new(&text(state.path(), "[network]\ndirect_routing = true\n"));
    let dump = |etc: &Etc| {
        let mut effective = loaded(etc).effective;
        effective.settle_here().unwrap();
        effective.dump(true)
    };
    let shown = dump(&etc);
    let of_node = format!("default of this node: {}", record.display());
    for (key, source) in [
        ("driver = \"native\"", of_node.as_str()),
        ("isolation = \"bridge\"", of_node.as_str()),
        ("direct_routing = true", "config.toml:5"),
    ] {
        let mut lines = shown.lines();
        let line = lines.find(|line| line.starts_with(&format!("{key}  # ")));
        assert!(line.is_some_and(|line| line.ends_with(source)), "{shown}");
    }
    fs::write(&record, encode_network_defaults(Cni)).unwrap();
    let shown = dump(&etc);
    assert!(shown.contains("\nisolation = \"none\"  # default of this node"));
    // With plugins the others are the same on every node.
    for defaults in NetworkDefaults::ALL {
        fs::write(&record, encode_network_defaults(defaults)).unwrap();
        let plugins = Etc::new(&text(state.path(), "[network.bridge]\ndriver = \"cni\"\n"));
        let shown = dump(&plugins);
        for key in [
            "driver = \"cni\"",
            "isolation = \"none\"",
            "direct_routing = true",
        ] {
            let mut lines = shown.lines();
            let line = lines.find(|line| line.starts_with(&format!("{key}  # ")));
            let is_told = line.is_some_and(|line| line.ends_with("config.toml:5"));
            assert!(is_told, "{defaults:?} {shown}");
        }
    }
    fs::write(&record, encode_network_defaults(Cni)).unwrap();
    // What a dump says is what a reader of it gets.
    let mut effective = loaded(&etc).effective;
    effective.settle_here().unwrap();
    let back: crate::Config = toml::from_str(&shown).unwrap();
    assert_eq!(back, effective.config);
}

#[test]
fn keys_that_are_set_need_no_record_and_others_do() {
    let state = tempfile::tempdir().unwrap();
    let record = network_defaults_file(state.path());
    fs::write(&record, "nonsense").unwrap();
    let native = "[network]\nisolation = \"bridge\"\ndirect_routing = false\n[network.bridge]\ndriver = \"native\"\n";
    for (keys, is_settled) in [
        ("", false),
        ("[network.bridge]\ndriver = \"native\"\n", false),
        // The others follow from this one.
        ("[network.bridge]\ndriver = \"cni\"\n", true),
        ("[network]\nisolation = \"none\"\n", false),
        (native, true),
    ] {
        let etc = Etc::new(&text(state.path(), keys));
        let mut effective = loaded(&etc).effective;
        let settled = effective.settle_here();
        assert_eq!(settled.is_ok(), is_settled, "{keys} {settled:?}");
        if let Err(error) = settled {
            let text = report(&error);
            assert!(text.contains(&record.display().to_string()), "{text}");
        }
    }
}

#[test]
fn key_that_closes_nothing_on_this_node_is_an_error_with_its_line() {
    let state = tempfile::tempdir().unwrap();
    fs::create_dir(state.path().join("sandboxes")).unwrap();
    let etc = Etc::new(&text(state.path(), "[network]\nisolation = \"bridge\"\n"));
    let mut effective = loaded(&etc).effective;
    let before = effective.dump(true);
    let error = effective.settle_here().unwrap_err().to_string();
    assert!(
        error.contains("config.toml:5: network.isolation"),
        "{error}"
    );
    // Whoever shows it all the same shows what the sources say.
    assert_eq!(effective.dump(true), before);
    assert_eq!(effective.config, loaded(&etc).effective.config);
}

#[test]
fn reload_keeps_the_defaults_of_the_start() {
    let state = tempfile::tempdir().unwrap();
    let etc = Etc::new(&text(state.path(), ""));
    let mut present = loaded(&etc).effective;
    present.settle_here().unwrap();
    assert!(present.config.network.bridge.is_native());
    // Whatever becomes of the record, and of the directory.
    fs::write(network_defaults_file(state.path()), "nonsense").unwrap();
    fs::create_dir(state.path().join("sandboxes")).unwrap();
    for (keys, expected) in [
        ("", vec![]),
        ("[network.bridge]\ndriver = \"native\"\n", vec![]),
        (
            "[network]\nisolation = \"none\"\n",
            vec!["network.isolation"],
        ),
        (
            "[network.bridge]\ndriver = \"cni\"\n",
            vec![
                "network.bridge.driver",
                "network.direct_routing",
                "network.isolation",
            ],
        ),
    ] {
        etc.write(&text(state.path(), keys));
        let reload = present.reload(&loaded(&etc).effective).unwrap();
        let changes = reload.changes.iter();
        let keys_of: Vec<_> = changes.map(|change| change.key.as_str()).collect();
        assert_eq!(keys_of, expected, "{keys}");
        // They wait for a restart.
        assert_eq!(reload.effective.config, present.config);
    }
}

#[test]
fn reload_refuses_what_closes_nothing_on_this_node() {
    let state = tempfile::tempdir().unwrap();
    let etc = Etc::new(&text(state.path(), ""));
    let mut present = loaded(&etc).effective;
    present.settle_as(Ok(Recorded(Cni))).unwrap();
    etc.write(&text(state.path(), "[network]\nisolation = \"owner\"\n"));
    let error = present.reload(&loaded(&etc).effective).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("config.toml:5: network.isolation"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn no_text_is_taken_for_a_missing_record(record in ".{0,80}", has_traces in any::<bool>()) {
        let known = NetworkDefaults::ALL.map(encode_network_defaults);
        for text in known.iter().chain([&record]) {
            let found = decide(Some(text), has_traces);
            prop_assert!(!matches!(found, Ok(Undecided(_))), "{text:?}");
        }
        // Without one it is never native beside traces.
        let undecided = decide(None, has_traces).unwrap().defaults();
        prop_assert_eq!(undecided == Cni, has_traces);
    }
}
