//! The command line of one version and the daemon of another one, as in a shell that is open during an upgrade.

use std::path::Path;
use std::process::Command;

use switchyard_tests::daemon::binary;
use switchyard_tests::node::{Containerd, TestNode};
use switchyard_tests::versions;

use super::super::Counter;
use super::{BEFORE, following, install};

/// Commands that both versions have, each with a part of its output.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["status"], "ready"),
    (&["ps"], "counting"),
    (&["ps", "--output", "json"], "counting"),
    (&["images"], "busybox"),
    (&["devices"], ""),
    (&["volume", "ls"], ""),
    (&["events"], ""),
    (&["config", "dump", "--running"], "[paths]"),
    (&["config", "reload"], "reloaded "),
    (&["log", "level", "debug", "--for", "1m"], "debug until "),
    (&["log", "level", "--reset"], ""),
];

/// Runs all commands of a program against the daemon of a node.
#[track_caller]
fn assert_answered(node: &TestNode, program: &Path, container: &str, when: &str) {
    let inspect: &[&str] = &["inspect", container];
    let commands = COMMANDS.iter().copied().chain([(inspect, "counting")]);
    for (words, part) in commands {
        let output = Command::new(program)
            .args(words)
            .arg("--socket")
            .arg(node.root().run().join("admin.sock"))
            .output()
            .expect("the program is there");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{when}: {words:?}: {errors}");
        assert!(text.contains(part), "{when}: {words:?}: {text}");
    }
}

#[test]
fn commands_of_each_version_are_answered_by_the_daemon_of_the_other() {
    let node = TestNode::start_version(&versions::former(), Containerd::Managed, |_| String::new());
    let counter = Counter::start(&node, "counted");
    let programs = [binary(), versions::former()];
    for program in &programs {
        assert_answered(&node, program, &counter.id, BEFORE);
    }
    for (installed, when) in following() {
        install(&node, &installed);
        for program in &programs {
            assert_answered(&node, program, &counter.id, when);
        }
    }
    counter.end("at the end");
}
