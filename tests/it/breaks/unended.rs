//! A process waits in the kernel for a disk or server that does not answer: SIGKILL does not end it, and the orchestrator and
//! whoever asks get the process, the wait and the mount.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::bad_disks::FrozenDisk;
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::node::TestNode;
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;
use tonic::Code;

use super::fuse::Fuse;
use super::{LIMIT, assert_recovers, retry};

/// Time for which the daemon waits for an exit after SIGKILL.
const PATIENCE: &str = "[containerd]\nshim_timeout_seconds = 2\n";

/// The name of a runtime that writes.
const RUNTIME: &str = "runc-writes";

/// Time after which a program that would have ended at once waits for something.
const MOMENT: Duration = Duration::from_millis(500);

fn mount(host_path: &Path) -> cri::Mount {
    cri::Mount {
        container_path: "/data".to_owned(),
        host_path: host_path.display().to_string(),
        ..Default::default()
    }
}

/// Installs a runtime that writes a line to a file before each creation, and is runc otherwise.
fn with_writing_runtime(root: &PrivateRoot, file: &Path) -> String {
    fs::write(file, "").expect("the disk can be written");
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' create '*) echo creates >>{} ;; esac\nexec {} \"$@\"\n",
        file.display(),
        prereq::require("runc", "runc").display()
    );
    let program = root.path().join(RUNTIME);
    fs::write(&program, script).expect("the root can be written");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("it is ours");
    format!("[containerd.runtimes.runc]\nbinary = {program:?}\n")
}

/// Waits until a process of the node with this command makes no progress.
fn await_standstill(node: &TestNode, command: &str) {
    let pids = || -> BTreeSet<i32> {
        let mut all = processes::belonging_to(node.root().path());
        all.retain(|process| process.command == command);
        all.into_iter().map(|process| process.pid).collect()
    };
    let stands = || {
        let before = pids();
        thread::sleep(MOMENT);
        pids().intersection(&before).next().is_some()
    };
    assert!(eventually(LIMIT, stands), "no {command} waits");
}

/// The processes that hold up an object, as `switchyard inspect` shows them.
fn blockers(node: &TestNode, name: &str) -> Vec<String> {
    let text = node.output(&["inspect", "--output", "json", name]);
    let views: Vec<Value> = serde_json::from_str(&text).expect("it is JSON");
    let blockers = views.iter().filter_map(|view| view["blockers"].as_array());
    let texts = blockers.flatten().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

/// Checks that a stop fails with what holds the container up, that this is shown, and that the stop succeeds after `answers`.
#[track_caller]
fn check(node: &TestNode, (pod, id): (&str, &str), expected: &[&str], answers: impl FnOnce()) {
    let cri = node.cri();
    let status = cri.stop(id, 0).expect_err("its process cannot end");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    for part in expected {
        assert!(status.message().contains(part), "{part}: {status:?}");
    }
    for name in [id, pod] {
        let shown = blockers(node, name).join("; ");
        let has_all = expected.iter().all(|part| shown.contains(part));
        assert!(has_all, "{name}: {shown}");
    }
    let status = node.output(&["status", "--verbose"]);
    assert!(
        status.contains("unended_task") && expected.iter().all(|part| status.contains(part)),
        "{status}"
    );
    answers();
    retry("StopContainer", || cri.stop(id, 0));
    assert!(blockers(node, id).is_empty());
    assert!(!node.output(&["status"]).contains("unended_task"));
    assert_recovers(node);
}

/// The file of the call is known, so that the disk need not be asked: a frozen one answers all questions.
#[test]
fn process_that_writes_to_a_frozen_disk_is_named_with_the_disk() {
    let node = TestNode::start_with(PATIENCE, |root| {
        // The root unmounts it.
        let _ = root.ext4_disk(&root.path().join("disk"));
    });
    let volume = node.root().path().join("disk");
    let pod = node.pod("ledger");
    let script = "exec 3>>/data/journal; while :; do echo entry >&3; sleep 0.1; done";
    let id = pod.start_shell_with("app", script, |config| config.mounts.push(mount(&volume)));
    let frozen = FrozenDisk::new(&volume);
    let waits = || {
        let all = processes::belonging_to(node.root().path());
        all.iter()
            .any(|process| processes::waits_in_kernel(process.pid))
    };
    assert!(eventually(LIMIT, waits), "no process waits for the disk");
    let expected = [
        "(sh) waits in the kernel",
        "system call write",
        "mount /data (ext4 /dev/loop",
        "only its disk or a reboot ends it",
    ];
    check(&node, (pod.id(), &id), &expected, || drop(frozen));
}

/// The process has no file of the mount: the mount is named because its server does not answer the daemon either. Nothing
/// else of the node is held up.
#[test]
fn process_that_waits_for_a_server_is_named_with_the_mount_that_does_not_answer() {
    let node = TestNode::start_with(PATIENCE, |_| {});
    let fuse = Fuse::mount_as("nas:/export", node.root().path().join("nas"));
    let volume = node.root().path().join("nas");
    let pod = node.pod("reader");
    let script = "while :; do cat /data/file 2>/dev/null; sleep 0.1; done";
    let id = pod.start_shell_with("app", script, |config| config.mounts.push(mount(&volume)));
    fuse.hang();
    await_standstill(&node, "cat /data/file");
    let expected = [
        "(cat) waits in the kernel",
        "mount /data (fuse nas:/export)",
        "only its server or a reboot ends it",
    ];
    check(&node, (pod.id(), &id), &expected, || {
        assert_eq!(node.pod("other").run_shell("echo other", |_| {}), "other");
        fuse.resume();
    });
}

#[test]
fn runtime_that_waits_for_a_disk_is_named_while_it_holds_up_a_start() {
    let node = TestNode::start_configured(|root| {
        let volume = root.path().join("disk");
        // The root unmounts it.
        let _ = root.ext4_disk(&volume);
        with_writing_runtime(root, &volume.join("calls"))
    });
    let pod = node.pod("late");
    let id = pod.create(&node.container("app", &["sleep", "1000"]));
    let frozen = FrozenDisk::new(&node.root().path().join("disk"));
    let waits = format!("({RUNTIME}) waits in the kernel");
    let mut shown = String::new();
    let (is_shown, inspected, started) = thread::scope(|scope| {
        let start = scope.spawn(|| node.cri().start(&id));
        let looks = || {
            shown = node.output(&["status", "--verbose"]);
            shown.contains("is held up: process") && shown.contains(&waits)
        };
        let is_shown = eventually(LIMIT, looks);
        let inspected = blockers(&node, &id).join("; ");
        drop(frozen);
        (is_shown, inspected, start.join().expect("it only waits"))
    });
    assert!(is_shown, "{shown}");
    assert!(inspected.contains(&waits), "{inspected}");
    started.expect("the disk answers");
}
