//! Directory trees that are too deep for a recursion, in all places where a container or an image can create
//! one.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use switchyard_crash_points::CrashPoint;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_tests::cri::image_spec;
use switchyard_tests::host::eventually;
use switchyard_tests::image::{ImageBuilder, LayerBuilder, busybox};
use switchyard_tests::node::{TestNode, TestPod, log_content};
use switchyard_tests::ustar::TarEntryKind;
use tonic::Code;

use super::{LONG, ServerPids, assert_alive};

/// Depth of the trees that containers make: deeper than the stack of a thread is for a recursion.
const DEEP: usize = 14_000;

/// Number of directories below this one, each in the other.
fn depth(top: &Path) -> usize {
    depth_of(top, "d")
}

/// The same of directories with this name.
fn depth_of(top: &Path, name: &str) -> usize {
    let mut dir: OwnedFd = File::open(top).expect("it is there").into();
    let mut depth = 0;
    while let Ok(below) = openat(
        &dir,
        name,
        OFlag::O_RDONLY | OFlag::O_DIRECTORY,
        Mode::empty(),
    ) {
        dir = below;
        depth += 1;
    }
    depth
}

/// An image with a volume that has this in it.
fn push(node: &TestNode, name: &str, image: &ImageBuilder) -> String {
    let name = format!("trees/{name}:1");
    node.registry().push(&name, &image.build());
    let reference = node.registry().reference(&name);
    node.cri().pull(&reference, None).expect("it can be pulled");
    reference
}

/// Makes and starts a container with an image volume and a named volume, and makes a deep tree in these
/// places as its root would: seen from its main process.
fn dig(node: &TestNode, pod: &TestPod<'_>, image: &str, places: &[&str]) -> String {
    let config = old::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: "main".to_owned(),
            attempt: 0,
        }),
        image: Some(image_spec(image)),
        command: ["sleep", "1000"].map(str::to_owned).to_vec(),
        mounts: vec![old::Mount {
            container_path: "/named".to_owned(),
            name: "deep".to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let id = node
        .cri()
        .create_v1alpha2(pod.id(), &config)
        .expect("it is well formed");
    node.cri().start(&id).expect("it starts");
    let info: serde_json::Value =
        serde_json::from_str(&node.cri().container_info(&id)).expect("it is JSON");
    let pid = info["pid"].as_u64().expect("it runs");
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    for place in places {
        let top = format!("/proc/{pid}/root{place}");
        let mut dir: OwnedFd = File::open(&top).expect("the container has it").into();
        for _ in 0..DEEP {
            mkdirat(&dir, "d", Mode::S_IRWXU).expect("it can be made");
            dir = openat(&dir, "d", flags, Mode::empty()).expect("it was just made");
        }
    }
    id
}

fn image_volume(node: &TestNode, container: &str) -> PathBuf {
    node.root()
        .state()
        .join("tasks")
        .join(container)
        .join("volumes/0")
}

/// The deep trees in the upper directories of containers, in containerd's snapshotter.
fn deep_snapshots(node: &TestNode) -> Vec<PathBuf> {
    let all = node
        .root()
        .state()
        .join("containerd/root/io.containerd.snapshotter.v1.overlayfs/snapshots");
    let snapshots = fs::read_dir(&all)
        .expect("containerd keeps them there")
        .flatten();
    snapshots
        .map(|snapshot| snapshot.path().join("fs/root/d"))
        .filter(|deep| deep.exists())
        .collect()
}

#[test]
fn deep_directory_tree_is_removed_with_its_container() {
    let node = TestNode::start();
    let image = push(&node, "dug", &busybox().volume("/data"));
    let alive = ServerPids::now(&node);
    let pod = node.pod("digs");
    let id = dig(&node, &pod, &image, &["/data", "/named", "/root"]);
    let volume = image_volume(&node, &id);
    let named = node.root().state().join("volumes/kubernetes/deep");
    let [root] = &deep_snapshots(&node)[..] else {
        panic!("one container has dug")
    };
    for dir in [
        &volume,
        &named,
        &root.parent().expect("it is below").to_path_buf(),
    ] {
        assert!(depth(dir) >= DEEP, "{}: {}", dir.display(), depth(dir));
    }
    let patient = node.cri().with_timeout(LONG);
    patient.stats(&id).expect("it is reported what it uses");
    patient.stop(&id, 0).expect("it can be stopped");
    patient.remove(&id).expect("it can be removed");
    assert!(!volume.exists());
    assert!(
        eventually(LONG, || deep_snapshots(&node).is_empty()),
        "containerd has left it"
    );
    patient.remove_volume("deep").expect("nothing has it");
    assert!(!named.exists());
    assert_alive(&node, &alive);
    drop(pod);
    node.assert_clean();
}

#[test]
fn deep_directory_tree_is_removed_after_daemon_kill() {
    let node = TestNode::start();
    let image = push(&node, "marked", &busybox().volume("/data"));
    let pod = node.pod("marked");
    let id = dig(&node, &pod, &image, &["/data", "/named"]);
    let containerd = node.containerd_pid();
    let volume = image_volume(&node, &id);
    node.cri().stop(&id, 0).expect("it can be stopped");
    // The daemon's last action before it removes the tree.
    node.daemon().kill_at(&[(CrashPoint::TaskSnapshotGone, 1)]);
    node.cri()
        .with_timeout(LONG)
        .remove(&id)
        .expect_err("the daemon dies of it");
    node.daemon().wait_killed();
    assert!(depth(&volume) >= DEEP);
    node.daemon().restart();
    node.cri()
        .with_timeout(LONG)
        .remove(&id)
        .expect("it can be removed");
    assert!(
        eventually(LONG, || !volume.exists()),
        "{}",
        node.daemon().tail()
    );

    node.daemon().kill_at(&[(CrashPoint::VolumeUnnamed, 1)]);
    node.cri()
        .with_timeout(LONG)
        .remove_volume("deep")
        .expect_err("the daemon dies of it");
    node.daemon().wait_killed();
    let passing = node.root().state().join("volumes/.passing");
    let count = || fs::read_dir(&passing).expect("it is there").count();
    assert_eq!(count(), 1);
    node.daemon().restart();
    assert!(
        eventually(LONG, || count() == 0),
        "{}",
        node.daemon().tail()
    );
    assert_eq!(node.containerd_pid(), containerd);
    let alive = ServerPids::now(&node);
    assert_alive(&node, &alive);
    drop(pod);
    node.assert_clean();
}

/// Depth of an image's tree of directories with this name: so deep that a path is as long as it can be with
/// which containerd unpacks it. For each directory of a path containerd follows the path from the root of the layers
/// below, which takes it 45 seconds of processor for 1,900 directories; the copy of deeper trees has tests in
/// `backends/tree`.
const DEEP_IMAGE: usize = 630;
const IMAGE_DIR: &str = "level";

/// An image with a deep volume.
fn deep_image() -> ImageBuilder {
    let layer = LayerBuilder::default().dir("data", 0o755);
    let base = format!("data{}", format!("/{IMAGE_DIR}").repeat(DEEP_IMAGE));
    let file = layer
        .file(&format!("{base}/file"), "deepest\n", 0o640)
        .hard_link("data/name", &format!("{base}/file"));
    let more = file
        .entry("data/fifo", 0o600, 7, 8, TarEntryKind::Fifo)
        .entry("data/null", 0o666, 0, 0, TarEntryKind::Character(1, 3));
    let above = LayerBuilder::default()
        .file("data/mine", "above\n", 0o600)
        .hard_link("data/other", "data/mine");
    busybox()
        .layer(more.build())
        .layer(above.build())
        .volume("/data")
}

#[test]
fn deep_image_volume_is_copied_completely() {
    let node = TestNode::shared();
    let image = push(&node, "deep", &deep_image());
    let alive = ServerPids::now(&node);
    let pod = node.pod("copied");
    let script = "cat /data/name /data/mine; stat -c '%h %a' /data/name /data/mine; \
        stat -c '%F %u %g' /data/fifo; stat -c '%F %t %T' /data/null; exec sleep 1000";
    let id = pod.start_shell_with("main", script, |config| {
        config.image = Some(image_spec(&image))
    });
    let lines = pod.wait_log("main", |lines| lines.len() >= 6);
    let printed: Vec<_> = lines.iter().map(|line| log_content(line)).collect();
    let expected = [
        "deepest",
        "above",
        "2 755",
        "2 755",
        "fifo 7 8",
        "character special file 1 3",
    ];
    assert_eq!(printed, expected);
    assert_eq!(depth_of(&image_volume(&node, &id), IMAGE_DIR), DEEP_IMAGE);
    node.cri()
        .with_timeout(LONG)
        .remove(&id)
        .expect("it can be removed");
    assert!(!image_volume(&node, &id).exists());
    assert_alive(&node, &alive);
}

#[test]
fn image_with_too_many_volumes_is_rejected_with_count_and_key() {
    let node = TestNode::start_with("[images]\nmax_volumes = 3\n", |_| {});
    let volumes = |count: usize| {
        (0..count).fold(busybox(), |image, number| {
            image.volume(&format!("/v/{number}"))
        })
    };
    let alive = ServerPids::now(&node);
    let pod = node.pod("many");
    for (name, count) in [("four", 4), ("legion", 20_000)] {
        let image = push(&node, name, &volumes(count));
        let mut config = node.container("main", &["true"]);
        config.image = Some(image_spec(&image));
        let refused = pod.try_create(&config).expect_err("it has too many");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        for part in [
            format!("{count} volumes"),
            "more than 3".to_owned(),
            "max_volumes".to_owned(),
        ] {
            assert!(refused.message().contains(&part), "{refused}");
        }
    }
    let image = push(&node, "three", &volumes(3));
    let printed = pod.run_shell("ls /v", |config| config.image = Some(image_spec(&image)));
    assert_eq!(printed, "0\n1\n2");
    assert_alive(&node, &alive);
}

#[test]
fn image_volume_over_a_kernel_mount_is_skipped() {
    let node = TestNode::start();
    let places = [
        "/proc",
        "/sys/fs/cgroup",
        "/sys",
        "/dev",
        "/dev/shm",
        "/kept/",
    ];
    let image = push(
        &node,
        "kernels",
        &places
            .iter()
            .fold(busybox(), |image, place| image.volume(place)),
    );
    let pod = node.pod("kernels");
    let script = "grep -c '^proc /proc proc' /proc/mounts; grep -c '^sysfs /sys sysfs' /proc/mounts; \
        test -c /dev/null && echo null; grep -c ' /kept ' /proc/mounts";
    let printed = pod.run_shell(script, |config| config.image = Some(image_spec(&image)));
    assert_eq!(printed, "1\n1\nnull\n1");
    let left_out = || {
        let log = fs::read_to_string(node.root().daemon_log()).unwrap_or_default();
        log.matches("a volume of the image is left out").count()
    };
    let are_told = eventually(LONG, || left_out() == 5);
    assert!(are_told, "{}\n{}", left_out(), node.daemon().tail());
}

#[test]
fn working_directory_in_an_open_descriptor_is_rejected() {
    let node = TestNode::shared();
    let pod = node.pod("descriptor");
    for dir in [
        "/proc/self/fd/7",
        "/proc/self/fd/8/../../..",
        "/tmp/../proc/thread-self/fd/9",
        "/dev/fd/7",
    ] {
        let mut config = node.container("main", &["true"]);
        config.working_dir = dir.to_owned();
        let refused = pod.try_create(&config).expect_err(dir);
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains("descriptor"), "{refused}");
    }
    let image = push(
        &node,
        "descriptor",
        &busybox().working_dir("/proc/self/fd/7"),
    );
    let mut config = node.container("main", &["true"]);
    config.image = Some(image_spec(&image));
    let refused = pod.try_create(&config).expect_err("its image asks for it");
    assert!(refused.message().contains("image cwd"), "{refused}");
    drop(pod);
    node.cri().remove_image(&image).expect("it can be removed");
}

#[test]
fn dev_of_an_image_that_is_no_directory_is_rejected() {
    let node = TestNode::shared();
    let pod = node.pod("dev");
    let dev = |name: &str, layer: LayerBuilder| push(&node, name, &busybox().layer(layer.build()));
    let link = dev("dev-link", LayerBuilder::default().symlink("dev", "/tmp"));
    let file = dev("dev-file", LayerBuilder::default().file("dev", "", 0o644));
    for (name, image, what) in [
        ("link", &link, "a symbolic link"),
        ("file", &file, "no directory"),
        ("again", &link, "a symbolic link"),
    ] {
        let mut config = node.container(name, &["true"]);
        config.image = Some(image_spec(image));
        let status = pod
            .try_create(&config)
            .expect_err("a runtime would follow it");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(
            status
                .message()
                .contains(&format!("/dev of the image is {what}")),
            "{status}"
        );
    }
    let there = dev(
        "dev-dir",
        LayerBuilder::default()
            .dir("dev", 0o755)
            .file("dev/mine", "", 0o644),
    );
    assert_eq!(
        pod.run_shell("test -c /dev/null && echo made", |config| config.image =
            Some(image_spec(&there))),
        "made"
    );
}
