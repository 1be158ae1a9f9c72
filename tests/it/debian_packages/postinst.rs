//! The package's script after its files are in place: what it refuses, and by which steps it starts the daemon.

use std::fs;
use std::process::Output;

use switchyard_tests::scratch::Scratch;

use super::{run_script, said};

/// The program and the units.
const FILES: [&str; 3] = [
    "usr/bin/switchyard",
    "usr/lib/systemd/system/switchyard.service",
    "usr/lib/systemd/system/switchyard-logkeeper.service",
];

/// Runs the script, after this version if any, in a root of its own in which this file is empty.
fn configure(former: &str, empty: Option<&str>) -> Output {
    let root = Scratch::new();
    for file in FILES {
        let path = root.path().join(file);
        let dir = path.parent().expect("it has one");
        fs::create_dir_all(dir).expect("the scratch directory can be written");
        let text = if empty == Some(file) { "" } else { "text" };
        fs::write(&path, text).expect("the scratch directory can be written");
    }
    let root = root.path().to_str().expect("its path is text");
    let words = ["configure", former];
    let environment = [("DPKG_ROOT", root)];
    run_script("postinst", "", &words, "/run/systemd/system", &environment)
}

#[test]
fn empty_program_or_unit_fails_the_installation_before_anything_is_started() {
    for file in FILES {
        let output = configure("1.0-1", Some(file));
        let said = said(&output);
        assert!(!output.status.success(), "{said:#?}");
        let text = said.join("\n");
        assert!(text.contains(&format!("/{file} is empty")), "{text}");
        assert!(!text.contains("call: deb-systemd-invoke"), "{text}");
    }
}

#[test]
fn daemon_is_started_between_a_check_and_a_judgement() {
    for (former, expected) in [
        (
            "",
            [
                "call: switchyard package before",
                "call: deb-systemd-invoke start switchyard.service",
                "call: switchyard package after",
            ],
        ),
        (
            "1.0-1",
            [
                "call: switchyard package before",
                "call: deb-systemd-invoke restart switchyard.service",
                "call: switchyard package after --upgrade",
            ],
        ),
    ] {
        let output = configure(former, None);
        let said = said(&output);
        assert!(output.status.success(), "{said:#?}");
        assert!(said.ends_with(&expected.map(str::to_owned)), "{said:#?}");
    }
}
