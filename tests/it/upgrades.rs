//! The program is replaced while containers run: by a copy of itself here, as in every run, by the former and a newer version in
//! the modules of these names, which one shard runs.

mod former;
mod gap;
mod invalid_configuration;
mod kubelet;
mod newer;
mod recipes;
mod unreadable;

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::daemon::binary;
use switchyard_tests::node::{TestNode, TestPod, log_content};

/// Counts on its output and in a file, and ends with its own exit code when it gets SIGTERM.
const COUNT: &str =
    "trap 'exit 7' TERM; n=0; while :; do n=$((n+1)); echo $n; echo $n > /n; sleep 0.01; done";

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
        Self::start_in(node.pod(name), |_| {})
    }

    /// The same in a pod, with a container that `change` changes.
    fn start_in(pod: TestPod<'n>, change: impl FnOnce(&mut cri::ContainerConfig)) -> Self {
        let node = pod.node();
        let id = pod.start_shell_with("counting", COUNT, change);
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

/// The numbers in an output, a line each, without what may be half a line at its end.
fn numbers(output: &str) -> Vec<u64> {
    let whole = output.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect()
}

/// Fails unless an output counts from 1 without a gap or repetition.
#[track_caller]
fn assert_unbroken(output: &str, when: &str) {
    let wrong = numbers(output)
        .into_iter()
        .zip(1..)
        .find(|(number, expected)| number != expected);
    assert_eq!(wrong, None, "{when}");
}

#[test]
fn replaced_program_takes_over_running_containers_and_their_logkeeper() {
    let other = binary();
    let node = TestNode::start_with_copy_of(&other);
    let logkeeper = node
        .root()
        .managed("logkeeper")
        .expect("the daemon writes down whom it started");
    let through_both = Counter::start(&node, "through-both");
    let ends_in_new = Counter::start(&node, "ends-in-new");
    through_both.assert_runs("before the upgrade");

    node.root().put_program(&binary());
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
        "the logkeeper of the replaced program continues"
    );

    node.root().put_program(&other);
    node.daemon().restart();
    for counter in [through_both, starts_in_new] {
        counter.assert_runs("after the downgrade");
        counter.end("after the downgrade");
    }
}
