//! Mounts, devices, and volumes of images.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use switchyard_proto::cri::v1::{ContainerConfig, Device, Mount, MountPropagation};
use switchyard_tests::cri::{context, image_spec};
use switchyard_tests::host::random_name;
use switchyard_tests::image::{LayerBuilder, busybox};
use switchyard_tests::node::TestNode;
use tonic::Code;

/// A directory of the host for one test.
fn directory(node: &TestNode) -> PathBuf {
    let path = node.root().path().join(format!("host-{}", random_name()));
    fs::create_dir(&path).expect("the root can be written");
    path
}

fn mount(host: &Path, container: &str) -> Mount {
    Mount {
        host_path: host.to_str().expect("the path is ASCII").to_owned(),
        container_path: container.to_owned(),
        ..Default::default()
    }
}

#[test]
fn host_directories_are_mounted_with_their_options() {
    let node = TestNode::shared();
    let pod = node.pod("mounts");
    let dir = directory(&node);
    fs::create_dir(dir.join("real")).expect("the root can be written");
    fs::write(dir.join("real/file"), "content\n").expect("the root can be written");
    symlink("real", dir.join("link")).expect("the root can be written");
    let mounts = vec![
        mount(&dir.join("real"), "/deep/er/writable"),
        Mount {
            readonly: true,
            ..mount(&dir.join("link"), "/deep/er/readonly")
        },
        mount(&dir.join("made/here"), "/made"),
        mount(&dir.join("real/file"), "/etc/a-file"),
    ];
    let wanted = mounts.clone();
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| config.mounts = mounts);
    let sh = |script: &str| node.cri().sh(&id, script);
    assert_eq!(
        sh("cat /deep/er/readonly/file /etc/a-file"),
        "content\ncontent"
    );
    assert_eq!(
        sh("echo written > /deep/er/writable/new; echo x > /deep/er/readonly/no || echo refused"),
        "refused"
    );
    assert_eq!(
        fs::read_to_string(dir.join("real/new")).expect("it was written"),
        "written\n"
    );
    sh("touch /made/file");
    assert!(dir.join("made/here/file").exists());
    assert_eq!(
        node.cri().status(&id).expect("it has a status").mounts,
        wanted
    );
}

#[test]
fn mount_propagation_is_applied() {
    let node = TestNode::shared();
    let pod = node.pod_with("propagation", |config| {
        switchyard_tests::cri::security(config).privileged = true
    });
    let dir = directory(&node);
    let run = |words: &[&str]| {
        let done = Command::new("mount")
            .args(words)
            .status()
            .expect("mount starts");
        assert!(done.success(), "mount {words:?}: {done}");
    };
    let text = dir.to_str().expect("the path is ASCII");
    run(&["-t", "tmpfs", "tmpfs", text]);
    run(&["--make-shared", text]);
    fs::create_dir(dir.join("later")).expect("it can be written");
    fs::create_dir(dir.join("inner")).expect("it can be written");
    let with = |name: &str, propagation: MountPropagation| {
        pod.start_shell_with(name, "exec sleep 1000", |config| {
            context(config).privileged = true;
            let mut mount = mount(&dir, "/data");
            mount.set_propagation(propagation);
            config.mounts = vec![mount];
        })
    };
    let private = with("private", MountPropagation::PropagationPrivate);
    let slave = with("slave", MountPropagation::PropagationHostToContainer);
    let shared = with("shared", MountPropagation::PropagationBidirectional);
    run(&["-t", "tmpfs", "tmpfs", &format!("{text}/later")]);
    fs::write(dir.join("later/file"), "").expect("it can be written");
    let sees_file = |id: &str, file: &str| {
        node.cri()
            .sh(id, &format!("test -e /data/{file} && echo yes || echo no"))
    };
    assert_eq!(
        [&private, &slave, &shared].map(|id| sees_file(id, "later/file")),
        ["no", "yes", "yes"]
    );
    for id in [&slave, &shared] {
        let _ = node.cri().sh(
            id,
            "mount -t tmpfs tmpfs /data/inner && touch /data/inner/file",
        );
        let reaches_host = dir.join("inner/file").exists();
        assert_eq!(reaches_host, *id == shared);
        let _ = node.cri().sh(id, "umount /data/inner");
    }
    let mut config = node.container("unshared", &["true"]);
    let mut bad = mount(&directory(&node), "/data");
    bad.set_propagation(MountPropagation::PropagationBidirectional);
    run(&["--bind", &bad.host_path, &bad.host_path]);
    run(&["--make-private", &bad.host_path]);
    let private_path = bad.host_path.clone();
    config.mounts = vec![bad];
    let refused = pod.try_create(&config).and_then(|id| node.cri().start(&id));
    assert!(refused.is_err(), "the source is not shared");
    drop(pod);
    for path in [format!("{text}/later"), text.to_owned(), private_path] {
        assert!(
            Command::new("umount")
                .arg(&path)
                .status()
                .expect("umount starts")
                .success(),
            "{path}"
        );
    }
}

#[test]
fn image_volumes_are_populated_and_removed_with_the_container() {
    let node = TestNode::shared();
    let seed = LayerBuilder::default()
        .dir("data", 0o750)
        .file("data/seed", "seeded\n", 0o640)
        .build();
    node.registry().push(
        "mounts/volume:1",
        &busybox()
            .layer(seed)
            .volume("data")
            .volume("/empty/../empty/new/")
            .build(),
    );
    let reference = node.registry().reference("mounts/volume:1");
    node.cri().pull(&reference, None).expect("it can be pulled");
    let pod = node.pod("volume");
    let with_image = |config: &mut ContainerConfig| config.image = Some(image_spec(&reference));
    let id = pod.start_shell_with("first", "exec sleep 1000", with_image);
    let sh = |script: &str| node.cri().sh(&id, script);
    assert_eq!(
        sh("cat /data/seed; stat -c %a /data /data/seed; ls /empty/new"),
        "seeded\n750\n640"
    );
    sh("echo changed > /data/seed; touch /empty/new/file");
    let mountinfo = sh("grep -cE ' (/data|/empty/new) ' /proc/self/mountinfo");
    assert_eq!(mountinfo, "2");
    // Each container has its own.
    assert_eq!(
        pod.run_shell("cat /data/seed; ls /empty/new", with_image),
        "seeded"
    );
    let dir = directory(&node);
    let overridden = pod.run_shell("ls /data; touch /data/own", |config| {
        with_image(config);
        config.mounts = vec![mount(&dir, "/data")];
    });
    assert!(
        overridden.is_empty() && dir.join("own").exists(),
        "{overridden}"
    );
    node.cri().remove(&id).expect("it can be removed");
    node.assert_gone(&[&id]);
    drop(pod);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn later_of_two_mounts_at_one_path_is_used() {
    let node = TestNode::shared();
    let pod = node.pod("twice");
    let [first, second] = ["first", "second"].map(|name| {
        let dir = directory(&node);
        fs::write(dir.join(name), "").expect("the root can be written");
        dir
    });
    let seen = pod.run_shell("ls /d /e", |config| {
        config.mounts = vec![
            mount(&first, "/d"),
            mount(&second, "/e"),
            mount(&second, "/d/"),
            mount(&first, "/x/../e"),
        ];
    });
    assert_eq!(seen, "/d:\nsecond\n\n/e:\nfirst");
}

#[test]
fn read_only_root_allows_writable_mounts() {
    let node = TestNode::shared();
    let pod = node.pod("readonly");
    let dir = directory(&node);
    let script = "echo x > /file || echo refused; echo y > /data/file && cat /data/file; echo z > /dev/shm/z && echo shm";
    let seen = pod.run_shell(script, |config| {
        context(config).readonly_rootfs = true;
        config.mounts = vec![mount(&dir, "/data")];
    });
    let lines: Vec<_> = seen
        .lines()
        .filter(|line| !line.starts_with("sh:"))
        .collect();
    assert_eq!(lines, ["refused", "y", "shm"], "{seen}");
}

#[test]
fn host_devices_have_their_permissions() {
    let node = TestNode::shared();
    let pod = node.pod("devices");
    let device = |host: &str, container: &str, permissions: &str| Device {
        host_path: host.into(),
        container_path: container.into(),
        permissions: permissions.into(),
    };
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        config.devices = vec![
            device("/dev/kmsg", "/dev/my/kmsg", "r"),
            device("/dev/loop-control", "/dev/ctl", "rw"),
        ];
    });
    let seen = node
        .cri()
        .sh(&id, "test -c /dev/my/kmsg && test -c /dev/ctl && echo both");
    assert_eq!(seen, "both");
    assert_eq!(
        node.cri().sh(&id, "echo no > /dev/my/kmsg || echo refused"),
        "refused"
    );
    // What is not given is not there, and cannot be made.
    let script =
        "ls /dev/kmsg 2>/dev/null; mknod /tmp/disk c 1 11 && cat /tmp/disk || echo refused";
    assert_eq!(node.cri().sh(&id, script), "refused");
    let mut config = node.container("missing", &["true"]);
    config.devices = vec![device("/dev/no-such-device", "/dev/x", "rw")];
    let status = pod.try_create(&config).expect_err("it is not there");
    assert!(
        matches!(status.code(), Code::InvalidArgument | Code::NotFound),
        "{status}"
    );
    assert!(status.message().contains("no-such-device"), "{status}");
}
