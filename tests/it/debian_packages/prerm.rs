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
    let leave = "call: switchyard package leave";
    let stop = "call: deb-systemd-invoke stop switchyard.service";
    for (directory, containers, expected) in [
        ("", 0, vec![leave]),
        (
            "",
            2,
            vec![
                "2 containers continue, with what runs of the daemon, the logkeeper, containerd and shims; nothing starts these again.",
                leave,
            ],
        ),
        (
            systemd,
            0,
            vec![
                "the daemon is stopped, and no container runs; the logkeeper and a managed containerd continue",
                leave,
                stop,
            ],
        ),
        (
            systemd,
            2,
            vec![
                "the daemon is stopped; 2 containers continue",
                "nothing starts the logkeeper or a managed containerd again",
                leave,
                stop,
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
