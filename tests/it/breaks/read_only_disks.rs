//! A state disk that has become read-only, as the kernel makes it after an error, or that cannot be written otherwise.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::symlink;
use std::thread;
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_proto::cri::v1::{ContainerState, PodSandboxState};
use switchyard_tests::bad_disks::ReadOnlyDisk;
use switchyard_tests::daemon::Daemon;
use switchyard_tests::host::{eventually, mounts, processes};
use switchyard_tests::leak_scan::NAMESPACE;
use switchyard_tests::node::TestNode;
use switchyard_tests::root::PrivateRoot;
use tonic::Code;

use super::{LIMIT, assert_no_leaks_since, assert_not_ready, assert_recovers, refused, retry};

/// Time for a call that the disk refuses, including the rollback of its steps.
const SOON: Duration = Duration::from_secs(40);

/// For how many seconds a full disk is looked at: the daemon looks every two.
const FULL_LOOKS: usize = 5;

#[test]
fn read_only_state_disk_is_named_as_the_reason_why_the_daemon_ends() {
    let root = PrivateRoot::new();
    let mut daemon = Daemon::prepare(&root, "");
    let _disk = ReadOnlyDisk::empty_over(&root.state());
    daemon.spawn();
    assert!(
        eventually(LIMIT, || daemon
            .tail()
            .contains("is on a read-only file system")),
        "{}",
        daemon.tail()
    );
    daemon.kill9();
}

#[test]
fn read_only_state_disk_is_reported_until_it_can_be_written() {
    let node = TestNode::start();
    let pod = node.pod("runs");
    let id = pod.start_shell("main", "exec sleep 1000");
    let disk = ReadOnlyDisk::empty_over(&node.root().state());
    assert_not_ready(&node, "RuntimeReady", "DiskReadOnly", "is read-only");
    let (status, body) = node.daemon().get("/readyz/disk");
    assert!(
        status == 503 && body.contains("is read-only"),
        "{status} {body}"
    );
    let (_, metrics) = node.daemon().get("/metrics");
    assert!(
        metrics.contains("switchyard_backend_up{part=\"disk\"} 0"),
        "{metrics}"
    );
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    drop(disk);
    assert_recovers(&node);
    assert_eq!(node.daemon().get("/readyz/disk").0, 200);
}

/// containerd has its files open, and continues: the daemon's writes and new files of containerd are refused.
#[test]
fn daemon_starts_on_a_read_only_state_disk_and_ends_what_runs() {
    let node = TestNode::start();
    let cri = node.cri();
    let pod = node.pod("runs");
    let other = node.pod("other");
    let ids = [&pod, &other].map(|pod| pod.start_shell("main", "exec sleep 1000"));
    node.daemon().kill9();
    let disk = ReadOnlyDisk::with_content_of(&node.root().state());
    node.daemon().spawn();
    assert_eq!(retry("ListContainers", || cri.containers()).len(), 2);
    assert_eq!(cri.pods().expect("they can be listed").len(), 2);
    assert_not_ready(&node, "RuntimeReady", "DiskReadOnly", "is read-only");
    assert_eq!(cri.sh(&ids[0], "echo reached"), "reached");
    cri.stop(&ids[0], 0).expect("it can be stopped");
    assert_eq!(cri.status(&ids[0]).expect("it has a status").exit_code, 137);
    cri.stop_pod(other.id()).expect("it can be stopped");
    drop(disk);
    assert_recovers(&node);
    // It looks for what containerd could not remove.
    node.daemon().restart();
    assert_eq!(cri.status(&ids[0]).expect("it has a status").exit_code, 137);
    cri.remove_pod(other.id()).expect("it can be removed");
    cri.remove(&ids[0]).expect("it can be removed");
    let stored = node
        .root()
        .state()
        .join("containerd/root/io.containerd.runtime.v2.task")
        .join(NAMESPACE);
    let is_gone = |id: &String| !stored.join(id).exists();
    assert!(
        eventually(LIMIT, || ids.iter().all(is_gone)),
        "{}",
        node.daemon().tail()
    );
    assert_eq!(pod.run_shell("echo more", |_| {}), "more");
}

/// As an ext4 file system after an error, which still says of itself that it can be written.
#[test]
fn disk_that_refuses_writes_is_reported_whatever_it_says_of_itself() {
    let node = TestNode::start();
    let written = node.root().state().join("write-test");
    assert!(
        eventually(LIMIT, || written.is_file()),
        "{}",
        node.daemon().tail()
    );
    fs::remove_file(&written).expect("the daemon does not need it");
    fs::create_dir(&written).expect("the root can be written");
    assert_not_ready(&node, "RuntimeReady", "DiskFails", "fails: Is a directory");
    fs::remove_dir(&written).expect("nobody has written to it");
    // As a quota, or a file system that copies what is written.
    let full = node.root().state().join("full");
    symlink("/dev/full", &full).expect("the root can be written");
    fs::rename(&full, &written).expect("the daemon makes a file there at most");
    let disk = || node.daemon().get("/readyz/disk");
    let is_full = || disk().1.contains("no space left on device");
    assert!(eventually(LIMIT, is_full), "{:?}", disk());
    for _ in 0..FULL_LOOKS {
        assert!(is_full(), "{:?}", disk());
        thread::sleep(Duration::from_secs(1));
    }
    assert_recovers(&node);
    fs::remove_file(&written).expect("it is there");
    assert!(eventually(LIMIT, || disk().0 == 200), "{:?}", disk());
}

/// Ends everything of a node, as the end of its boot does, so that nothing uses its disks any more.
fn shut_down(node: &TestNode) {
    node.daemon().kill9();
    let is_of_node = |process: &processes::Process| !process.command.contains("registry");
    let ended = eventually(LIMIT, || {
        let mut left = processes::belonging_to(node.root().path());
        left.retain(is_of_node);
        for process in &left {
            // It may have ended meanwhile.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        left.is_empty()
    });
    assert!(ended, "{:#?}", processes::belonging_to(node.root().path()));
    for mount in mounts::below(&node.root().run()) {
        if mount.kind == "overlay" {
            umount2(&mount.point, MntFlags::empty()).expect("nobody uses it any more");
        }
    }
}

/// As after an error of the device, which also refuses writes to files that are open: containerd's database,
/// and those of the daemon. ext4 takes no `remount,rw` then: it has to be checked and mounted again.
#[test]
fn ext4_that_an_error_made_read_only_is_reported_and_what_runs_can_be_ended() {
    let disk = RefCell::new(None);
    let node = TestNode::start_with("", |root| {
        *disk.borrow_mut() = Some(root.ext4_disk(&root.state()))
    });
    let disk = disk.take().expect("it was made with the node");
    let cri = node.cri().with_timeout(SOON);
    let before = node.leak_scan();
    let pod = node.pod("runs");
    let other = node.pod("other");
    let ids = [&pod, &other].map(|pod| pod.start_shell("main", "exec sleep 1000"));
    disk.fail();
    assert_not_ready(&node, "RuntimeReady", "DiskReadOnly", "is read-only");
    let (status, body) = node.daemon().get("/readyz/disk");
    assert!(
        status == 503 && body.contains("is read-only"),
        "{status} {body}"
    );
    let codes = &[Code::Unknown, Code::Internal];
    let status = refused("RunPodSandbox", cri.run_pod(&node.pod_config("new")), codes);
    assert!(
        status
            .message()
            .to_lowercase()
            .contains("read-only file system"),
        "{status}"
    );
    cri.stop(&ids[1], 0).expect("it can be stopped");
    assert_eq!(cri.status(&ids[1]).expect("it has a status").exit_code, 137);
    cri.stop_pod(other.id())
        .expect("what is left of it shows that it was");
    let status = refused("RemovePodSandbox", cri.remove_pod(other.id()), codes);
    assert!(
        status
            .message()
            .to_lowercase()
            .contains("read-only file system"),
        "{status}"
    );
    // The next daemon serves what it finds.
    node.daemon().kill9();
    node.daemon().spawn();
    assert_eq!(retry("ListContainers", || cri.containers()).len(), 2);
    assert_not_ready(&node, "RuntimeReady", "DiskReadOnly", "is read-only");
    assert_eq!(cri.status(&ids[1]).expect("it has a status").exit_code, 137);
    assert_eq!(other.status().state(), PodSandboxState::SandboxNotready);
    assert_eq!(node.cri().sh(&ids[0], "echo reached"), "reached");

    shut_down(&node);
    disk.repair();
    node.daemon().restart();
    assert_recovers(&node);
    for id in &ids {
        assert_eq!(
            cri.status(id).expect("it has a status").state(),
            ContainerState::ContainerExited
        );
    }
    assert_eq!(
        node.pod("another").run_shell("echo another", |_| {}),
        "another"
    );
    drop((pod, other));
    assert_no_leaks_since(&node, &before);
}
