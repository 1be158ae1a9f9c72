//! Files of older versions, and what becomes of them.

use std::fs;

use super::*;
use crate::tests::Etc;

/// Renames of a version that does not exist.
const RENAMES: &[RenamedKey] = &[
    RenamedKey {
        key: "exec.most_per_container",
        to: "exec.max_per_container",
        since: "0.9.0",
    },
    RenamedKey {
        key: "images.most_commands",
        to: "exec.max_per_container",
        since: "0.9.0",
    },
    RenamedKey {
        key: "record",
        to: "ledger",
        since: "0.9.0",
    },
];

fn rewritten(text: &str) -> (String, Vec<String>) {
    let document = Document::parse(text).unwrap();
    let Migrated { text, changes } = rewrite(Path::new("f"), document, RENAMES);
    (text, changes)
}

#[test]
fn keys_are_renamed_and_deleted_in_place_with_their_comments() {
    let before = "\
# Of the fleet.
version = 1

[exec]
# Half of it.
max_output_bytes = 7 # bytes
# Few.
most_per_container = 3 # in each
unknown = { a = 1 } # stays

[recovery]
# Long.
settle_seconds = 60
wait_seconds = 3

# Books.
[record]
overcommit = \"off\"
";
    let after = "\
# Of the fleet.
version = 1

[exec]
# Half of it.
max_output_bytes = 7 # bytes
# Few.
max_per_container = 3 # in each
unknown = { a = 1 } # stays

[recovery]
wait_seconds = 3

# Books.
[ledger]
overcommit = \"off\"
";
    let (text, changes) = rewritten(before);
    assert_eq!(text, after);
    assert_eq!(
        changes,
        [
            "f:8: exec.most_per_container is renamed to exec.max_per_container",
            "f:17: record is renamed to ledger",
            "f:13: recovery.settle_seconds is deleted, because it has no effect",
        ]
    );
    assert_eq!(
        rewritten(&text),
        (text.clone(), Vec::new()),
        "once is enough"
    );
}

#[test]
fn inline_tables_dotted_keys_and_other_sections_are_rewritten() {
    let (text, _) =
        rewritten("version = 1\nexec = { most_per_container = 3, max_output_bytes = 7 }\n");
    assert_eq!(
        text,
        "version = 1\nexec = { max_per_container = 3, max_output_bytes = 7 }\n"
    );
    let (text, _) =
        rewritten("version = 1\nrecovery.settle_seconds = 1\nexec.most_per_container = 3\n");
    assert_eq!(text, "version = 1\nexec.max_per_container = 3\n");
    let (text, _) = rewritten("version = 1\n[images]\nmost_commands = 3\nmax_layers = 9\n");
    let expected = "version = 1\n[images]\nmax_layers = 9\n[exec]\nmax_per_container = 3\n";
    let parsed = |text: &str| text.parse::<toml::Table>().unwrap();
    assert_eq!(parsed(&text), parsed(expected));
}

#[test]
fn former_name_beside_the_present_one_is_deleted() {
    let (text, changes) =
        rewritten("version = 1\n[exec]\nmost_per_container = 3\nmax_per_container = 4\n");
    assert_eq!(text, "version = 1\n[exec]\nmax_per_container = 4\n");
    assert_eq!(
        changes,
        ["f:3: exec.most_per_container is deleted, because it has no effect"]
    );
}

#[test]
fn file_without_former_keys_is_printed_as_it_is_and_nothing_is_written() {
    let path = |etc: &Etc| etc.sources().file.unwrap();
    let plain = Etc::new(crate::DOCUMENTED);
    let Migrated { text, changes } = migrate(&path(&plain)).unwrap();
    assert_eq!((text.as_str(), changes.len()), (crate::DOCUMENTED, 0));
    let old = "version = 1\n[nomad]\nmax_streams = 5\nenabled = false\n";
    let etc = Etc::new(old);
    let migrated = migrate(&path(&etc)).unwrap();
    assert_eq!(migrated.text, "version = 1\n[nomad]\nenabled = false\n");
    assert_eq!(fs::read_to_string(path(&etc)).unwrap(), old);
    for (wrong, why) in [
        ("version = 2\n", "version 2"),
        ("[x]\n", "is missing"),
        ("[\n", ""),
    ] {
        let error = migrate(&path(&Etc::new(wrong))).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
