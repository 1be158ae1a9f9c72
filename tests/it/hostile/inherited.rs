//! A daemon that is started with a strict umask, ignored and blocked signals, as by a script of init or a hardened shell: neither it
//! nor what it starts has them.

use std::fs;

use nix::unistd::Pid;
use switchyard_proto::cri::v1::{Int64Value, Mount, NamespaceMode};
use switchyard_tests::cri::{context, namespaces};
use switchyard_tests::node::TestNode;

use super::memory::pid;

/// Starts the daemon as a service manager does not.
const STARTED_BY: &str = "umask 077
exec env --ignore-signal=CHLD,HUP --block-signal=TERM,USR1,CHLD $DAEMON \"$@\"";

/// The bits of SIGHUP and SIGCHLD in the masks of proc(5).
const HUP_AND_CHLD: u64 = 1 | (1 << 16);

/// Asserts what a process has of whoever started the daemon: nothing. Programs in Go block signals in their first thread
/// themselves.
#[track_caller]
fn assert_clean(name: &str, is_go: bool, pid: Pid) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let field = |key: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(key));
        value.expect("the kernel tells it").trim().to_owned()
    };
    let mask = |key: &str| u64::from_str_radix(&field(key), 16).expect("a mask is hexadecimal");
    let found = (
        field("Umask:"),
        if is_go { 0 } else { mask("SigBlk:") },
        mask("SigIgn:") & HUP_AND_CHLD,
    );
    assert_eq!(found, ("0022".to_owned(), 0, 0), "{name}: {status}");
}

#[test]
fn whoever_starts_the_daemon_passes_neither_umask_nor_signals_on() {
    let node = TestNode::start_with_script(STARTED_BY);
    let managed = |name: &str| {
        let process = node.root().managed(name);
        process.expect("the daemon writes down whom it started")
    };
    let daemon = Pid::from_raw(node.daemon().pid());
    let shared = node.pod_with("shared", |config| {
        namespaces(config).set_pid(NamespaceMode::Pod)
    });
    let id = shared.start_shell("main", "echo runs; exec sleep 1000");
    // Before that, its process may be the runtime's still.
    shared.wait_log("main", |lines| lines.len() == 1);
    for (name, is_go, process) in [
        ("daemon", false, daemon),
        ("logkeeper", false, managed("logkeeper")),
        ("containerd", true, managed("containerd")),
        ("shim", true, node.shim(shared.id())),
        ("container", false, Pid::from_raw(pid(&node, &id))),
    ] {
        assert_clean(name, is_go, process);
    }
    // The root of a container is open to all its users, and so is a directory that is made on the host for a mount.
    let made = node.root().path().join("made");
    let seen = shared.run_shell(
        "id -u; ls / | grep -c '^bin$'; stat -c %a / /made",
        |config| {
            context(config).run_as_user = Some(Int64Value { value: 1000 });
            config.mounts.push(Mount {
                container_path: "/made".to_owned(),
                host_path: made.display().to_string(),
                ..Default::default()
            });
        },
    );
    assert_eq!(seen, "1000\n1\n755\n755");
    // Children of the daemon are waited for, and SIGTERM, which was blocked, ends it.
    let log = fs::read_to_string(node.root().daemon_log()).expect("it has one");
    assert!(!log.contains("No child processes"), "{log}");
    let status = node.daemon().terminate();
    assert!(status.success(), "{status}");
    node.daemon().restart();
    assert_eq!(node.cri().sh(&id, "echo lives"), "lives");
}
