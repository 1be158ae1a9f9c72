//! A daemon of another version takes over while containers run, and the logkeeper of the version before goes
//! on.
//!
//! The other version is the binary that `SWITCHYARD_OTHER_BIN` names, for example one built from an earlier
//! commit; without it, a copy of the tested binary under another path, so that what is tested is the
//! replacement of the program alone.

mod invalid_configuration;
mod unreadable;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::daemon::binary;
use switchyard_tests::node::{TestNode, TestPod, log_content};
use switchyard_tests::prereq;

/// Counts on its output and in a file, and ends with its own exit code when it gets SIGTERM.
const COUNT: &str =
    "trap 'exit 7' TERM; n=0; while :; do n=$((n+1)); echo $n; echo $n > /n; sleep 0.01; done";

/// The binary of the other version.
fn other_version() -> PathBuf {
    env::var_os("SWITCHYARD_OTHER_BIN").map_or_else(binary, PathBuf::from)
}

/// Replaces the program of a node as a package manager does: the new file takes the name of the old one, which
/// may be running.
#[track_caller]
fn replace_program(node: &TestNode, by: &Path) {
    let program = node.daemon().program();
    let draft = program.with_extension("new");
    // Copied by another process: a child that another test forks meanwhile would inherit a descriptor for
    // writing, and executing the file would fail with ETXTBSY.
    let install = prereq::require("install", "coreutils");
    let installed = Command::new(install)
        .arg("-m755")
        .arg(by)
        .arg(&draft)
        .status();
    assert!(
        installed.is_ok_and(|status| status.success()),
        "the binary cannot be copied"
    );
    std::fs::rename(&draft, &program).expect("the root can be written");
}

/// Prints the present number of [`COUNT`]. The file is empty for a moment whenever it is rewritten.
const NUMBER: &str = "until grep . /n; do sleep 0.05; done";

/// A container that was started by one version and is used under others.
struct Counter<'n> {
    node: &'n TestNode,
    pod: TestPod<'n>,
    id: String,
    pid: u64,
}

impl<'n> Counter<'n> {
    fn start(node: &'n TestNode, name: &str) -> Self {
        let pod = node.pod(name);
        let id = pod.start_shell("counting", COUNT);
        let pid = pid(node, &id);
        Self { node, pod, id, pid }
    }

    /// Fails unless the container runs as the same process, its log continues without a gap, and commands can
    /// be run in it.
    #[track_caller]
    fn assert_runs(&self, when: &str) {
        let status = self
            .node
            .cri()
            .status(&self.id)
            .expect("the container exists");
        assert_eq!(
            status.state(),
            cri::ContainerState::ContainerRunning,
            "{when}"
        );
        assert_eq!(pid(self.node, &self.id), self.pid, "{when}");
        let so_far: usize = self
            .node
            .cri()
            .sh(&self.id, NUMBER)
            .trim()
            .parse()
            .expect("it is a number");
        let lines = self
            .pod
            .wait_log("counting", |lines| lines.len() > so_far + 5);
        assert_counted(&lines[..lines.len() - 1], when);
    }

    /// Stops the container and removes it with its pod: its own exit code is reported and its log is complete.
    #[track_caller]
    fn end(self, when: &str) {
        self.node
            .cri()
            .stop(&self.id, 10)
            .expect("it can be stopped");
        let status = self
            .node
            .cri()
            .status(&self.id)
            .expect("the container exists");
        assert_eq!(
            (status.state(), status.exit_code),
            (cri::ContainerState::ContainerExited, 7),
            "{when}"
        );
        assert_counted(&self.pod.log("counting"), when);
    }
}

/// The pid of a container's main process.
#[track_caller]
fn pid(node: &TestNode, id: &str) -> u64 {
    let info: serde_json::Value =
        serde_json::from_str(&node.cri().container_info(id)).expect("the information is JSON");
    info["pid"].as_u64().expect("a running container has a pid")
}

/// Fails unless log lines count from 1 without a gap or repetition.
#[track_caller]
fn assert_counted(lines: &[String], when: &str) {
    let wrong = lines
        .iter()
        .enumerate()
        .find(|(index, line)| log_content(line) != (index + 1).to_string().as_str());
    assert!(
        wrong.is_none() && !lines.is_empty(),
        "{when}: line {wrong:?} of {}",
        lines.len()
    );
}

#[test]
fn daemon_of_another_version_takes_over_running_containers_and_an_old_logkeeper() {
    let other = other_version();
    let node = TestNode::start_with_copy_of(&other);
    let logkeeper = node
        .root()
        .managed("logkeeper")
        .expect("the daemon writes down whom it started");
    let through_both = Counter::start(&node, "through-both");
    let ends_in_new = Counter::start(&node, "ends-in-new");
    through_both.assert_runs("before the upgrade");

    replace_program(&node, &binary());
    node.daemon().restart();
    through_both.assert_runs("after the upgrade");
    ends_in_new.assert_runs("after the upgrade");
    ends_in_new.end("after the upgrade");
    let starts_in_new = Counter::start(&node, "starts-in-new");
    starts_in_new.assert_runs("after the upgrade");
    let kept = node
        .root()
        .managed("logkeeper")
        .expect("the daemon writes down whom it started");
    assert_eq!(
        kept, logkeeper,
        "the logkeeper of the other version continues"
    );

    replace_program(&node, &other);
    node.daemon().restart();
    for counter in [through_both, starts_in_new] {
        counter.assert_runs("after the downgrade");
        counter.end("after the downgrade");
    }
}
