//! 1xx: the disks of the node.

use super::*;

#[test]
fn disks_that_fill_up() {
    check(|node| node.space.free_bytes = 14 << 30, &["SY111 warning"]);
    check(|node| node.space.free_bytes = 1 << 20, &["SY111 error"]);
    check(|node| node.space.free_inodes = 49, &["SY112 warning"]);
    check(|node| node.space.free_inodes = 0, &["SY112 error"]);
    // Of an external containerd, the root in its configuration counts.
    for root in [
        "root = \"/srv/images\"",
        "root = \"/srv/other\"\nimports = [\"root.toml\"]",
    ] {
        let found = check(
            |node| {
                node.config("[containerd]\nmode = \"external\"");
                node.sockets
                    .insert("/run/containerd/containerd.sock".into(), true);
                let config = format!("{root}\ndisabled_plugins = [\"cri\"]\n");
                node.file("/etc/containerd/config.toml", &config);
                node.file("/etc/containerd/root.toml", "root = \"/srv/images\"\n");
                node.file("/srv/images/file", "");
                node.space.free_bytes = 14 << 30;
            },
            &["SY111 warning"],
        );
        assert!(found[0].found.starts_with("/srv/images: "), "{found:?}");
    }
    check(
        |node| (node.space.inodes, node.space.free_inodes) = (0, 0),
        &[],
    );
}

#[test]
fn disk_of_an_external_containerd_is_the_one_that_it_uses() {
    const K3S: &str = "/run/k3s/containerd/containerd.sock";
    const SNAP: &str = "/var/snap/microk8s/common/run/containerd.sock";
    let of_rancher = |name: &str| {
        format!(
            "/var/lib/rancher/{name}/bin/containerd -c /var/lib/rancher/{name}/agent/etc/containerd/config.toml -a {K3S} \
             --state /run/k3s/containerd --root /var/lib/rancher/{name}/agent/containerd"
        )
    };
    let of_snap = format!(
        "/snap/microk8s/1/bin/containerd --config /var/snap/microk8s/1/args/containerd.toml \
         --root=/var/snap/microk8s/common/var/lib/containerd --address {SNAP}"
    );
    let of_node = "/usr/bin/containerd";
    for (address, command, told, expected) in [
        (
            K3S,
            of_rancher("k3s"),
            None,
            "/var/lib/rancher/k3s/agent/containerd",
        ),
        (
            K3S,
            of_rancher("rke2"),
            None,
            "/var/lib/rancher/rke2/agent/containerd",
        ),
        (
            SNAP,
            of_snap.clone(),
            None,
            "/var/snap/microk8s/common/var/lib/containerd",
        ),
        // Of another socket.
        (SNAP, of_rancher("k3s"), None, "/var/lib/containerd"),
        (
            "/run/containerd/containerd.sock",
            of_node.to_owned(),
            None,
            "/var/lib/containerd",
        ),
        // What containerd has told the daemon counts before all.
        (
            SNAP,
            of_snap,
            Some("/srv/a/io.containerd.content.v1.content"),
            "/srv/a",
        ),
    ] {
        let found = check(
            |node| {
                node.config(&format!(
                    "[containerd]\nmode = \"external\"\nnamespace = \"switchyard\"\naddress = {address:?}"
                ));
                node.sockets.insert(address.into(), true);
                node.process(300, &command);
                node.file(&format!("{expected}/file"), "");
                let status = node.status.as_mut().expect("it runs");
                let told = told.map(|told| ("containerd.content".to_owned(), told.to_owned()));
                status.facts.extend(told);
                node.space.free_bytes = 14 << 30;
            },
            &["SY111 warning"],
        );
        let begin = format!("{expected}: ");
        assert!(found[0].found.starts_with(&begin), "{begin}{found:?}");
    }
}

#[test]
fn mounts_of_state_and_run_directories() {
    let mounts = "/proc/self/mountinfo";
    let found = check(
        |node| node.file(mounts, "22 1 254:0 / / rw - ext4 /dev/vda rw\n"),
        &["SY113 warning"],
    );
    assert!(found[0].found.contains("paths.run") && found[0].found.contains("logkeeper.state_dir"));
    let with = |options: &str| {
        format!(
            "22 1 254:0 / / {options} - ext4 /dev/vda rw\n23 22 0:21 / /run rw,noexec - tmpfs tmpfs rw\n"
        )
    };
    check(
        |node| node.file(mounts, &with("rw,nosuid,noexec")),
        &["SY114 warning"],
    );
    check(|node| node.file(mounts, &with("ro")), &["SY114 error"]);
}

#[test]
fn disks_on_which_overlayfs_does_not_work() {
    let down = ["SY801 error", "SY803 note", "SY803 note", "SY803 note"];
    let told = [&["SY209 error"][..], &down].concat();
    let native = "[containerd]\nsnapshotter = \"native\"";
    let by_handler = "[containerd]\nsnapshotter = \"native\"\n[containerd.runtimes.runc]\nsnapshotter = \"overlayfs\"";
    let cases: [(&str, &str, &[&str]); 6] = [
        ("nfs4", "", &told),
        ("overlay", "", &told),
        ("vfat", by_handler, &told),
        ("nfs4", native, &down),
        ("xfs", "", &down),
        ("zfs", "", &down),
    ];
    for (fs_type, config, expected) in cases {
        let change = |node: &mut TestNode| {
            node.kill_daemon();
            node.config(config);
            let mounts = format!(
                "22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 0:21 / /run rw - tmpfs tmpfs rw\n\
                 24 22 0:44 / /var/lib/switchyard rw - {fs_type} disk rw\n"
            );
            node.file("/proc/self/mountinfo", &mounts);
        };
        check(change, expected);
    }
    // A daemon that runs has tried it.
    let mounts = "22 1 0:44 / / rw - nfs4 disk rw\n23 22 0:21 / /run rw - tmpfs tmpfs rw\n";
    check(|node| node.file("/proc/self/mountinfo", mounts), &[]);
}
