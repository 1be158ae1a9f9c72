//! The package's script before a removal or an upgrade: what it stops, and what it says.

use std::fs;
use std::process::Command;

use switchyard_tests::scratch::Scratch;

use super::{read, repository};

/// A call by dpkg for a removal, while a number of containers run.
const REMOVE: &str = "running_pids() { seq \"$CONTAINERS\"; }\nset -- remove\n";

/// Makes a /run of its own, with programs that write down their calls, and runs the script there.
const IN_OWN_RUN: &str = r#"
mount -t tmpfs tmpfs /run
mkdir -p /run/bin $DIRECTORY
for program in switchyard deb-systemd-invoke; do
    printf '#!/bin/sh\necho "call: ${0##*/} $*" >&2\n' >/run/bin/$program
    chmod 0755 /run/bin/$program
done
PATH=/run/bin:$PATH exec sh "$0"
"#;

/// The lines that the script prints on its two outputs at a removal, where `directory` is there and these containers run.
fn said_at_removal(directory: &str, containers: u32) -> Vec<String> {
    let scratch = Scratch::new();
    let prerm = read(&repository().join("deploy/debian/prerm"));
    let common = read(&repository().join("deploy/debian/common.sh"));
    let (begin, end) = prerm
        .split_once("# @COMMON@\n")
        .expect("the package's build replaces this line");
    let script = scratch.path().join("prerm");
    fs::write(&script, format!("{begin}{common}{REMOVE}{end}"))
        .expect("the scratch directory can be written");
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-ec", IN_OWN_RUN])
        .arg(&script)
        .env("DIRECTORY", directory)
        .env("CONTAINERS", containers.to_string())
        .output()
        .expect("every system has it");
    assert!(output.status.success(), "{output:?}");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    said.lines().map(str::to_owned).collect()
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
