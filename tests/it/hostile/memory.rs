//! The memory of the daemon and the logkeeper: who can read it, and whether they keep what a burst of requests took.
//!
//! Access of processes to the memory of others, by ptrace(2), in /proc, or from a core dump, depends on whether the process is
//! dumpable (prctl(2)).

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use switchyard_linux::memory;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::prereq::require;
use tonic::Code;

/// Without this capability, which overrides the mark, root sees of other processes of root what it may.
const BOUNDED: &str = "--bounding-set=-sys_ptrace";

/// Returns whether root without `CAP_SYS_PTRACE` can read the memory of a process that has no more
/// capabilities than that.
fn is_dumpable(pid: i32) -> bool {
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    assert!(link.symlink_metadata().is_ok(), "process {pid} has ended");
    let mut command = Command::new(require("setpriv", "util-linux"));
    let output = command
        .arg(BOUNDED)
        .arg("readlink")
        .arg(&link)
        .output()
        .expect("it was found");
    output.status.success()
}

#[test]
fn daemon_and_logkeeper_are_not_dumpable_but_their_children_are() {
    // So that nothing below has the capability, and the mark decides.
    let node = TestNode::start_with_script(&format!("exec setpriv {BOUNDED} $DAEMON \"$@\""));
    let daemon = node.daemon().pid();
    let managed = |name: &str| {
        node.root()
            .managed(name)
            .expect("the daemon writes down whom it started")
            .as_raw()
    };
    let containerd = managed("containerd");
    let logkeeper = managed("logkeeper");
    let pod = node.pod("memory");
    let id = pod.start_shell("main", "exec sleep 1000");
    let container = pid(&node, &id);
    let shim = parent(container);

    for (name, pid) in [("daemon", daemon), ("logkeeper", logkeeper)] {
        assert!(!is_dumpable(pid), "{name}");
        let owner = std::fs::metadata(format!("/proc/{pid}/status")).expect("it runs");
        assert_eq!((owner.uid(), owner.gid()), (0, 0), "{name}");
    }
    for (name, pid) in [
        ("containerd", containerd),
        ("shim", shim),
        ("container", container),
    ] {
        // The start of a container is answered a moment before its command replaces the runtime, which is not dumpable.
        assert!(
            eventually(Duration::from_secs(20), || is_dumpable(pid)),
            "{name}"
        );
    }
    // Nor do they get another limit on core dumps than they had.
    let own = std::fs::read_to_string("/proc/self/limits").expect("this process has limits");
    let core = |limits: &str| {
        limits
            .lines()
            .find(|line| line.starts_with("Max core"))
            .map(str::to_owned)
    };
    for pid in [shim, container] {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
        assert_eq!(core(&limits), core(&own));
    }

    // A daemon that finds such a logkeeper takes it over all the same.
    node.daemon().restart();
    assert_eq!(managed("logkeeper"), logkeeper);
    assert_eq!(node.cri().sh(&id, "echo lives"), "lives");
}

#[test]
fn memory_that_a_burst_of_requests_took_goes_back_within_a_minute() {
    /// Limit of what may stay, in bytes: connections, and pages of which a part is in use.
    const KEPT: u64 = 12 << 20;
    let node = TestNode::start();
    // Requests that are decoded and then refused: no object makes the difference.
    let mut config = node.pod_config("burst");
    config
        .metadata
        .as_mut()
        .expect("it has a name")
        .name
        .clear();
    config.annotations = (0..40_000)
        .map(|index| (format!("example.com/{index}"), "x".repeat(100)))
        .collect();
    let before = anonymous(&node);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let refused = node.cri().run_pod(&config);
                    let refused = refused.expect_err("a pod has a name");
                    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
                }
            });
        }
    });
    let mut after = 0;
    let is_back = eventually(Duration::from_secs(60), || {
        after = anonymous(&node);
        after <= before + KEPT
    });
    assert!(is_back, "{before} bytes before, {after} after");
}

/// The anonymous memory of the daemon and its logkeeper, in bytes.
fn anonymous(node: &TestNode) -> u64 {
    let logkeeper = node.root().managed("logkeeper");
    let logkeeper = logkeeper.expect("the daemon has one").as_raw();
    let of_process = |pid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
        memory::of_rollup(&text.expect("it runs"))["Anonymous"]
    };
    of_process(node.daemon().pid()) + of_process(logkeeper)
}

/// The main process of a container.
pub(super) fn pid(node: &TestNode, container: &str) -> i32 {
    let info: Value =
        serde_json::from_str(&node.cri().container_info(container)).expect("it is JSON");
    info["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok())
        .expect("it runs")
}

fn parent(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat
        .rsplit_once(')')
        .expect("the name of a process is in brackets");
    let mut fields = fields.split_whitespace();
    fields
        .nth(1)
        .and_then(|parent| parent.parse().ok())
        .expect("the second one is the parent")
}
