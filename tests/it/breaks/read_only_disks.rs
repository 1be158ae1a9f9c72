//! A state disk that has become read-only, as the kernel makes it after an error.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use switchyard_tests::daemon::Daemon;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::root::PrivateRoot;

use super::{LIMIT, assert_not_ready, assert_recovers};

/// An empty file system that cannot be written, over a directory until it is dropped. Whoever has files below it open
/// keeps them.
struct ReadOnlyDisk(PathBuf);

impl ReadOnlyDisk {
    fn over(dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("the scratch directory can be written");
        mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::MS_RDONLY, Some("mode=0700,size=1m"))
            .expect("root can mount a tmpfs");
        Self(dir.to_owned())
    }
}

impl Drop for ReadOnlyDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn read_only_state_disk_is_named_as_the_reason_why_the_daemon_ends() {
    let root = PrivateRoot::new();
    let mut daemon = Daemon::prepare(&root, "");
    let _disk = ReadOnlyDisk::over(&root.state());
    daemon.spawn();
    assert!(
        eventually(LIMIT, || daemon.tail().contains("is on a read-only file system")),
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
    let disk = ReadOnlyDisk::over(&node.root().state());
    assert_not_ready(&node, "RuntimeReady", "DiskReadOnly", "is read-only");
    let (status, body) = node.daemon().get("/readyz/disk");
    assert!(status == 503 && body.contains("is read-only"), "{status} {body}");
    let (_, metrics) = node.daemon().get("/metrics");
    assert!(metrics.contains("switchyard_backend_up{part=\"disk\"} 0"), "{metrics}");
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    drop(disk);
    assert_recovers(&node);
    assert_eq!(node.daemon().get("/readyz/disk").0, 200);
}
