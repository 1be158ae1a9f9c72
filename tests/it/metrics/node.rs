//! The metrics say how the node is on which containers run: its disks, its limits, and kills for want of memory.

use std::path::Path;

use switchyard_tests::cri::limits;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;

use super::{LIMIT, scrape, value};

#[test]
fn disks_of_the_daemon_of_containerd_and_of_logs_are_shown_with_their_mount_points() {
    let node = TestNode::start_with("", |root| {
        root.small_disk(&root.state().join("containerd"), "size=160m,mode=0711");
        root.small_disk(&root.log_dir(), "size=24m,nr_inodes=2000");
    });
    let pod = node.pod("web");
    let _id = pod.start(&node.container("main", &["sleep", "1000"]));
    let containerd = node.root().state().join("containerd");
    let logs = node.root().log_dir();
    let size = |of: &str, point: &Path| {
        let point = point.display().to_string();
        let labels = [("of", of), ("mountpoint", point.as_str())];
        value(&scrape(&node), "switchyard_filesystem_size_bytes", &labels)
    };
    let is_shown = || {
        size("containerd", &containerd) == Some(f64::from(160 << 20))
            && size("logs", &logs) == Some(f64::from(24 << 20))
    };
    assert!(eventually(LIMIT, is_shown), "{}", scrape(&node));
    let text = scrape(&node);
    for of in ["state", "run"] {
        let avail = value(&text, "switchyard_filesystem_avail_bytes", &[("of", of)]);
        assert!(avail.is_some_and(|bytes| bytes > 0.0), "{of}: {text}");
    }
    let point = logs.display().to_string();
    let labels = [("of", "logs"), ("mountpoint", point.as_str())];
    let inodes = value(&text, "switchyard_filesystem_inodes", &labels);
    assert_eq!(inodes, Some(2000.0), "{text}");
    let name = "switchyard_node_limit_used_ratio";
    for limit in ["processes", "open_files", "inotify_instances"] {
        let used = value(&text, name, &[("limit", limit)]);
        assert!(used.is_some_and(|ratio| ratio >= 0.0), "{limit}: {text}");
    }
}

#[test]
fn killed_children_are_counted_while_their_container_runs() {
    let node = TestNode::start();
    let pod = node.pod("hungry");
    let script = "while :; do dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null || touch /killed; sleep 0.2; done";
    let id = pod.start_shell_with("main", script, |config| {
        limits(config).memory_limit_in_bytes = 24 << 20;
    });
    let killed = || {
        let labels = [("owner", "kubernetes")];
        value(&scrape(&node), "switchyard_oom_kills_total", &labels)
    };
    let is_killed = || {
        let looked = node.cri().exec(&id, &["test", "-e", "/killed"], 30);
        looked.is_ok_and(|answer| answer.exit_code == 0)
    };
    assert!(eventually(LIMIT, is_killed), "no child was killed");
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        // With cgroup v1, the kernel's counter is read when the container ends.
        node.cri().stop(&id, 0).expect("it can be stopped");
        let is_counted = || killed() >= Some(1.0);
        return assert!(eventually(LIMIT, is_counted), "{:?}", killed());
    }
    assert!(
        eventually(LIMIT, || killed() >= Some(2.0)),
        "{:?}",
        killed()
    );
    // Its main process was not among them.
    assert_eq!(node.cri().sh(&id, "echo here"), "here");
    let others = value(
        &scrape(&node),
        "switchyard_oom_kills_total",
        &[("owner", "nomad")],
    );
    assert_eq!(others, Some(0.0));
}
