//! Daemon and logkeeper, each in either version.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nix::unistd::Pid;
use switchyard_tests::daemon::binary;
use switchyard_tests::node::{Containerd, TestNode};
use switchyard_tests::versions;

use super::super::Counter;
use super::install;

/// Process whose version is replaced.
enum Replaced {
    Daemon(PathBuf),
    Logkeeper,
}

fn logkeeper(node: &TestNode) -> Pid {
    let pid = node.root().managed("logkeeper");
    pid.expect("the daemon writes down whom it started")
}

/// Returns whether the logkeeper runs the file that is installed, rather than one that this has replaced.
#[track_caller]
fn runs_installed(node: &TestNode) -> bool {
    let exe = fs::read_link(format!("/proc/{}/exe", logkeeper(node)));
    exe.expect("it runs") == node.daemon().program()
}

/// Restarts the logkeeper by the command of the installed version.
#[track_caller]
fn restart_logkeeper(node: &TestNode) {
    let output = Command::new(node.daemon().program())
        .args(["restart", "logkeeper", "--socket"])
        .arg(node.root().run().join("admin.sock"))
        .output()
        .expect("the program is there");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    node.daemon().wait_ready();
}

/// Fails unless a log can be rotated as by a kubelet.
#[track_caller]
fn assert_rotates(node: &TestNode) {
    let pod = node.pod("rotated");
    let id = pod.start_shell("main", "while :; do echo x; sleep 0.05; done");
    let _ = pod.wait_log("main", |lines| !lines.is_empty());
    let path = pod.log_path("main");
    fs::rename(&path, path.with_extension("1")).expect("the directory is ours");
    node.cri().reopen_log(&id).expect("it has a log");
    let _ = pod.wait_log("main", |lines| !lines.is_empty());
}

#[track_caller]
fn logkeepers_go_through_versions(containerd: Containerd) {
    let node = TestNode::start_version(&versions::former(), containerd, |_| String::new());
    let mut counters = vec![Counter::start(&node, "both-former")];
    let steps = [
        (Replaced::Daemon(binary()), "upgraded-daemon"),
        (Replaced::Logkeeper, "both-upgraded"),
        (Replaced::Daemon(versions::former()), "former-daemon"),
        (Replaced::Logkeeper, "both-former-again"),
        (Replaced::Daemon(binary()), "upgraded-again"),
    ];
    for (replaced, when) in steps {
        let before = logkeeper(&node);
        match replaced {
            Replaced::Daemon(program) => {
                install(&node, &program);
                assert_eq!(logkeeper(&node), before, "{when}: it continues");
                assert!(
                    !runs_installed(&node),
                    "{when}: it is of the former program"
                );
            }
            Replaced::Logkeeper => {
                restart_logkeeper(&node);
                assert_ne!(logkeeper(&node), before, "{when}: it is another one");
                assert!(
                    runs_installed(&node),
                    "{when}: it is of the installed program"
                );
            }
        }
        for counter in &counters {
            counter.assert_runs(when);
        }
        assert_rotates(&node);
        counters.push(Counter::start(&node, when));
    }
    for counter in counters {
        counter.end("at the end");
    }
}

#[test]
fn logs_are_whole_with_daemon_and_logkeeper_each_in_either_version() {
    logkeepers_go_through_versions(Containerd::Managed);
}

#[test]
fn logs_are_whole_with_either_version_of_each_beside_an_external_containerd() {
    logkeepers_go_through_versions(Containerd::External);
}
