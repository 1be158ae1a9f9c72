//! The package's script before a removal or an upgrade: what it stops, and what it says.

use std::process::Command;

use super::{repository, run_script, said};

/// A number of containers that run.
const CONTAINERS: &str = "running_pids() { seq \"$CONTAINERS\"; }\n";

/// The lines that the script prints on its two outputs at a removal, where `directory` is there and these containers run.
fn said_at_removal(directory: &str, containers: u32) -> Vec<String> {
    let containers = containers.to_string();
    let environment = [("CONTAINERS", containers.as_str())];
    let output = run_script("prerm", CONTAINERS, &["remove"], directory, &environment);
    assert!(output.status.success(), "{output:?}");
    said(&output)
}

#[test]
fn removal_says_what_continues_with_and_without_systemd() {
    let systemd = "/run/systemd/system";
    let networks = "call: switchyard package networks";
    let leave = "call: switchyard package leave";
    let stop = "call: deb-systemd-invoke stop switchyard.service";
    let clear = "call: switchyard network clear --force";
    for (directory, containers, expected) in [
        ("", 0, vec![networks, leave]),
        (
            "",
            2,
            vec![
                "2 containers continue, with what runs of the daemon, the logkeeper, containerd and shims; nothing starts these again.",
                networks,
                leave,
            ],
        ),
        (
            systemd,
            0,
            vec![
                "the daemon is stopped, and no container runs; the logkeeper and a managed containerd continue",
                networks,
                leave,
                stop,
                clear,
            ],
        ),
        (
            systemd,
            2,
            vec![
                "the daemon is stopped; 2 containers continue",
                "nothing starts the logkeeper or a managed containerd again",
                networks,
                leave,
                stop,
                clear,
            ],
        ),
    ] {
        let said = said_at_removal(directory, containers);
        assert_eq!(said.len(), expected.len(), "{said:#?}");
        for (line, part) in said.iter().zip(expected) {
            assert!(line.contains(part), "{part}: {said:#?}");
        }
    }
}

/// The program, which ends with this status when it is asked about networks, and the version of the package.
const NETWORKS: &str = r#"
switchyard() {
    echo "call: switchyard $*" >&2
    [ "$2" != networks ] || return "$STATUS"
}
version=$VERSION
"#;

/// By Debian's policy dpkg calls `upgrade` with the version that is to come, whether that is later or earlier.
#[test]
fn networks_that_only_this_version_ends_keep_it_installed() {
    let own = "2.0-1";
    for (words, own, status, expected) in [
        // Earlier versions that do not know such networks.
        (
            &["upgrade", "0.1.0-1"][..],
            own,
            "3",
            Some("not replaced by version 0.1.0-1"),
        ),
        (
            &["upgrade", "0.1.0+git20260101.000000.abc-1"],
            own,
            "3",
            Some("not replaced by"),
        ),
        (&["upgrade", "0.0.9-7"], own, "3", Some("not replaced by")),
        // It knows those on the gateway's own bridge, and takes all others for such.
        (
            &["upgrade", "0.1.0+git20261130.130000.abc-1"],
            own,
            "3",
            Some("not replaced by"),
        ),
        (
            &["upgrade", "0.1.0+git20261130.130000.abc-1"],
            "0.1.0+git20261130.180000.abc-1",
            "3",
            Some("not replaced by"),
        ),
        (
            &["upgrade", "0.1.0-1"],
            "0.1.0-2",
            "3",
            Some("not replaced by"),
        ),
        (&["upgrade", "0.1.0-1"], own, "0", None),
        // A damaged program says nothing, and is replaced.
        (&["upgrade", "0.1.0-1"], own, "1", None),
        (&["upgrade", "0.1.0-1"], own, "139", None),
        // Those that know them, also of a build that names no commit.
        (
            &["upgrade", "0.1.0+git20261130.180000.abc-1"],
            own,
            "3",
            None,
        ),
        (&["upgrade", "1.9-1"], own, "3", None),
        (&["upgrade", "0.2.0~rc.1-1"], own, "3", None),
        (&["upgrade", "2.0-1"], own, "3", None),
        (&["upgrade", "3.0-1"], own, "3", None),
        (&["upgrade", "0.1.0-2"], "0.1.0-1", "3", None),
        (&["remove"], own, "3", Some("not removed")),
        (&["remove"], own, "0", None),
        (&["remove"], own, "1", None),
        (
            &["deconfigure", "in-favour", "other", "1.0"],
            own,
            "3",
            None,
        ),
    ] {
        let environment = [("STATUS", status), ("VERSION", own), ("CONTAINERS", "0")];
        let definitions = format!("{CONTAINERS}{NETWORKS}");
        let output = run_script(
            "prerm",
            &definitions,
            words,
            "/run/systemd/system",
            &environment,
        );
        let said = said(&output).join("\n");
        let case = format!("{words:?} of {own} with {status}: {said}");
        assert_eq!(output.status.success(), expected.is_none(), "{case}");
        assert!(said.contains(expected.unwrap_or_default()), "{case}");
        if expected.is_some() {
            // Nothing else was done.
            assert_eq!(said.matches("call: ").count(), 1, "{case}");
        }
    }
}

/// dpkg asks the new version if the installed one refuses to be replaced.
#[test]
fn package_does_not_replace_a_version_that_refuses_it() {
    let prerm = |words: &[&str]| {
        let mut command = Command::new("sh");
        command.arg(repository().join("deploy/debian/prerm"));
        command
            .args(words)
            .output()
            .expect("every system has a shell")
    };
    let refused = prerm(&["failed-upgrade", "2.0-1", "1.0-1"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("the installed version 2.0-1 refuses"),
        "{refused:?}"
    );
    for words in [&["upgrade", "1.0-1"][..], &["deconfigure"][..]] {
        assert!(prerm(words).status.success(), "{words:?}");
    }
}
