//! Hostile input of clients, images, jobs and containers: the daemon, the logkeeper and containerd stay up,
//! nothing has an effect that was not asked for, and the client gets an error that names the cause.

mod accounts;
mod admin;
mod archives;
mod commands;
mod connections;
mod images;
mod inherited;
mod jobs;
mod labels;
mod logkeeper;
mod memory;
mod names;
mod operators;
mod trees;
mod watchdog;

use std::time::Duration;

use nix::unistd::Pid;
use switchyard_tests::node::TestNode;

/// Time for a call that has more work to do than calls of well-behaved clients.
const LONG: Duration = Duration::from_secs(180);

/// The processes that must outlive what a test does.
#[derive(Debug, PartialEq, Eq)]
struct ServerPids {
    daemon: i32,
    containerd: Pid,
    logkeeper: Option<Pid>,
}

impl ServerPids {
    fn now(node: &TestNode) -> Self {
        let logkeeper = node.root().managed("logkeeper");
        Self {
            daemon: node.daemon().pid(),
            containerd: node.containerd_pid(),
            logkeeper,
        }
    }
}

/// Fails unless these processes are there still, and serve.
#[track_caller]
fn assert_alive(node: &TestNode, before: &ServerPids) {
    assert_eq!(
        ServerPids::now(node),
        *before,
        "something has died: {}",
        node.daemon().tail()
    );
    for pid in [before.containerd.as_raw(), before.daemon] {
        assert!(
            std::path::Path::new(&format!("/proc/{pid}/exe")).exists(),
            "{pid} has died"
        );
    }
    assert_eq!(node.pod("after").run_shell("echo served", |_| {}), "served");
}

/// The most memory that the daemon has had at a time, in bytes. The kernel counts it roughly, so that it can also fall a little.
#[track_caller]
fn peak_memory(node: &TestNode) -> u64 {
    let path = format!("/proc/{}/status", node.daemon().pid());
    let status = std::fs::read_to_string(path).expect("the daemon runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("the kernel counts it");
    let kib = line
        .trim()
        .trim_end_matches(" kB")
        .parse::<u64>()
        .expect("it is a number");
    kib << 10
}
