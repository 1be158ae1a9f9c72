//! A snapshotter that is missing or hangs: it is reported by name, and affects nobody who does not use it.

use std::cell::RefCell;
use std::fs;

use nix::mount::{MsFlags, mount};
use switchyard_proto::cri::v1::ImageFsInfoRequest;
use switchyard_tests::daemon::Daemon;
use switchyard_tests::host::eventually;
use switchyard_tests::http;
use switchyard_tests::node::TestNode;
use switchyard_tests::root::PrivateRoot;

use super::LIMIT;
use super::versions::node_behind_proxy;

/// Returns whether the node reports a snapshotter that does not answer.
fn reports(node: &TestNode, name: &str) -> bool {
    let (status, body) = node.daemon().get("/readyz?verbose");
    let lines = body
        .lines()
        .filter(|line| line.contains("snapshotters") && line.contains(name));
    status == 200 && lines.count() > 0
}

#[track_caller]
fn assert_usage_is_told(node: &TestNode) {
    let info = node
        .cri()
        .images(async |mut client| client.image_fs_info(ImageFsInfoRequest {}).await);
    let systems = info
        .expect("the other snapshotter answers")
        .image_filesystems;
    assert!(
        systems
            .iter()
            .any(|system| system.used_bytes.is_some_and(|used| used.value > 0)),
        "{systems:?}"
    );
}

#[test]
fn snapshotter_that_containerd_lacks_is_told_and_costs_nobody_else() {
    let extra = "[containerd.runtimes.elsewhere]\nsnapshotter = \"nobody\"\n";
    let node = TestNode::start_with(extra, |_| {});
    assert_eq!(node.pod("served").run_shell("echo works", |_| {}), "works");
    assert_usage_is_told(&node);
    assert!(
        eventually(LIMIT, || reports(&node, "nobody")),
        "{:?}",
        node.daemon().get("/readyz?verbose")
    );
    let doctor = node.call(&["doctor"]);
    assert!(
        String::from_utf8_lossy(&doctor.stdout).contains("snapshotters: "),
        "{doctor:?}"
    );
}

#[test]
fn default_snapshotter_that_containerd_cannot_use_makes_the_node_not_ready_with_its_reason() {
    // None of the disks here is of ZFS or btrfs, and devmapper needs a pool.
    for (name, reason) in [
        ("zfs", "zfs filesystem"),
        ("btrfs", "btrfs filesystem"),
        ("devmapper", "devmapper not configured"),
        ("nobody", "no such plugin"),
    ] {
        let root = PrivateRoot::new();
        let config = format!("[containerd]\nsnapshotter = {name:?}\n");
        let mut daemon = Daemon::prepare(&root, &config);
        daemon.spawn();
        let part = format!("SnapshotterUnusable: the snapshotter {name} cannot be used: ");
        let seen = not_ready_with(&root, &part);
        let seen = seen.unwrap_or_else(|seen| panic!("{name}: {seen}\n{}", daemon.tail()));
        // A containerd may be built without the plugin.
        let has_reason = seen.contains(reason) || seen.contains("no such plugin");
        assert!(
            has_reason && seen.contains("\"native\" works"),
            "{name}: {seen}"
        );
        // That one works, with the containerd that runs.
        root.write_config("[containerd]\nsnapshotter = \"native\"\n");
        daemon.restart();
    }
}

/// As in a container whose data are not on a volume. containerd itself takes overlayfs for usable there.
#[test]
fn overlay_that_the_kernel_refuses_on_the_disk_makes_the_node_not_ready() {
    let root = PrivateRoot::new();
    let at = |name: &str| root.path().join("other-overlay").join(name);
    for name in ["lower", "upper", "work"] {
        fs::create_dir_all(at(name)).expect("the scratch directory can be written");
    }
    let options = ["lower", "upper", "work"]
        .map(|name| format!("{name}dir={}", at(name).display()))
        .join(",");
    mount(
        Some("overlay"),
        &root.state(),
        Some("overlay"),
        MsFlags::empty(),
        Some(options.as_str()),
    )
    .expect("root can mount an overlay");
    let mut daemon = Daemon::prepare(&root, "");
    daemon.spawn();
    let told = "the snapshotter overlayfs cannot be used: the kernel mounts no overlay that can be written on a disk of the type overlay";
    let seen = not_ready_with(&root, told);
    assert!(seen.is_ok(), "{seen:?}\n{}", daemon.tail());
    root.write_config("[containerd]\nsnapshotter = \"native\"\n");
    daemon.restart();
    let places = fs::read_dir(
        root.state()
            .join("containerd/root/io.containerd.snapshotter.v1.overlayfs"),
    );
    let trials = places
        .expect("containerd has made it")
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("switchyard-trial")
        });
    assert_eq!(trials.count(), 0);
}

/// Waits until the part that the whole node needs is down with this text; the answer of the daemon then, or the last one.
fn not_ready_with(root: &PrivateRoot, text: &str) -> Result<String, String> {
    let mut seen = (0, String::new());
    let is_told = eventually(LIMIT, || {
        let answer = http::get_unix(&root.run().join("admin.sock"), "/readyz?verbose");
        seen = answer.map_or_else(
            |error| (0, error.to_string()),
            |answer| (answer.status, answer.text()),
        );
        let mut lines = seen.1.lines();
        seen.0 == 503 && lines.any(|line| line.contains("runtime") && line.contains(text))
    });
    if is_told {
        Ok(seen.1)
    } else {
        Err(format!("{seen:?}"))
    }
}

#[test]
fn snapshotter_that_hangs_does_not_delay_recovery_for_ever() {
    let behind = RefCell::new(None);
    let node = node_behind_proxy(&behind);
    let silence = |parts: &[&str]| {
        behind
            .borrow()
            .as_ref()
            .expect("it was started with the node")
            .1
            .set_silent(parts);
    };
    let pod = node.pod("kept");
    let id = pod.start_shell("main", "exec sleep 1000");
    silence(&["Snapshots/List"]);
    node.daemon().restart();
    let served = || {
        node.cri()
            .containers()
            .is_ok_and(|containers| containers.len() == 1)
    };
    assert!(eventually(LIMIT, served), "{}", node.daemon().tail());
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    assert!(
        reports(&node, "overlayfs"),
        "{:?}",
        node.daemon().get("/readyz?verbose")
    );
    let info = node
        .cri()
        .images(async |mut client| client.image_fs_info(ImageFsInfoRequest {}).await);
    info.expect("the content store is reported");

    silence(&[]);
    // What predecessors left in it is dealt with now.
    assert!(
        eventually(LIMIT, || !reports(&node, "overlayfs")),
        "{}",
        node.daemon().tail()
    );
    assert_eq!(node.pod("later").run_shell("echo works", |_| {}), "works");
    node.cri().stop(&id, 0).expect("it can be stopped");
}

#[test]
fn snapshotter_that_hangs_costs_the_metrics_of_containers_their_sizes_alone() {
    let behind = RefCell::new(None);
    let node = node_behind_proxy(&behind);
    behind
        .borrow()
        .as_ref()
        .expect("it was started with the node")
        .1
        .set_silent(&["Snapshots/Usage"]);
    let pod = node.pod("measured");
    let id = pod.start_shell("main", "exec sleep 1000");
    let used = "container_memory_working_set_bytes{owner=\"kubernetes\"";
    let mut last = (0, String::new());
    let read = eventually(LIMIT, || {
        last = node.daemon().get("/metrics/containers");
        last.0 == 200 && last.1.contains(used)
    });
    assert!(read, "{last:?}");
    assert!(!last.1.contains("\ncontainer_fs_usage_bytes{"), "{last:?}");
    node.cri().stop(&id, 0).expect("it can be stopped");
}
