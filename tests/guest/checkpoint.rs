//! Checkpoints: the container keeps running, the archive has the memory of its processes, and a failure or
//! a kill leaves nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use switchyard_crash_points::{CrashPoint, Operation};
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::eventually;
use tonic::{Code, Status};

use crate::node::{GuestFact, GuestNode, GuestPod, LIMIT, cgroup_file, run};

pub(crate) const FACTS: &[GuestFact] = &[
    (
        "checkpoint_has_process_state_and_processes_continue",
        checkpoint_has_process_state,
    ),
    (
        "failed_checkpoint_is_explained_and_leaves_nothing_behind",
        failed_checkpoint_is_explained,
    ),
    (
        "container_continues_after_daemon_kill_during_checkpoint",
        kill_during_checkpoint,
    ),
    (
        "container_continues_after_disconnect_during_checkpoint",
        disconnect_during_checkpoint,
    ),
    (
        "checkpoint_keeps_tcp_connections",
        checkpoint_with_connections,
    ),
];

/// Counts, to show that it keeps running, and has a word in its memory that is not on any disk.
const SCRIPT: &str = "word=held-$((6 * 7))-in-memory; echo changed > /changed; rm /etc/group; mkdir /dir; ln -s /changed /dir/link; \
    n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done";
/// The word.
const WORD: &str = "held-42-in-memory";
/// The directory of the archives, as kubelets have it.
const DIR: &str = "/var/lib/kubelet/checkpoints";

fn checkpoint(
    node: &GuestNode,
    container: &str,
    location: &Path,
    timeout: i64,
) -> Result<(), Status> {
    let request = cri::CheckpointContainerRequest {
        container_id: container.to_owned(),
        location: location.display().to_string(),
        timeout,
    };
    node.cri
        .with_timeout(LIMIT)
        .runtime(async |mut client| client.checkpoint_container(request).await)
        .map(drop)
}

/// A path for a new archive.
fn archive_path(name: &str) -> PathBuf {
    fs::create_dir_all(DIR).expect("it can be made");
    Path::new(DIR).join(format!("checkpoint-{name}.tar"))
}

/// The names in an archive.
fn names(archive: &Path) -> Vec<String> {
    run(&["tar", "--list", "--file", &archive.display().to_string()])
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The content of a file in an archive.
fn text(archive: &Path, name: &str) -> String {
    run(&[
        "tar",
        "--extract",
        "--to-stdout",
        "--file",
        &archive.display().to_string(),
        name,
    ])
}

/// Waits until the container has counted further.
#[track_caller]
fn assert_counts_on(pod: &GuestPod<'_>, name: &str) {
    let so_far = pod.log_lines(name).len();
    let lines = pod.wait_log_lines(name, |lines| lines.len() > so_far + 10);
    let complete = &lines[..lines.len() - 1];
    assert!(
        complete
            .iter()
            .enumerate()
            .all(|(index, line)| *line == (index + 1).to_string()),
        "{lines:?}"
    );
}

/// The directory that exists while a checkpoint is made.
fn checkpoint_marker(container: &str) -> PathBuf {
    Path::new("/var/lib/switchyard/tasks")
        .join(container)
        .join("checkpoint")
}

fn checkpoint_has_process_state(node: &GuestNode) {
    let pod = node.pod("checkpoint");
    let id = pod.start_shell("main", SCRIPT);
    assert_counts_on(&pod, "main");
    let before = node.cri.status(&id).expect("it has a status");
    let archive = archive_path("whole");
    checkpoint(node, &id, &archive, 0).expect("it can be made");
    assert_counts_on(&pod, "main");
    assert_eq!(node.cri.status(&id).expect("it has a status"), before);
    assert_eq!(cgroup_file(&id, "cgroup.freeze"), "0");
    assert_eq!(node.cri.sh(&id, "cat /changed"), "changed");
    assert!(!checkpoint_marker(&id).exists());

    let names = names(&archive);
    for wanted in [
        "config.dump",
        "status.dump",
        "spec.dump",
        "container.log",
        "dump.log",
        "rootfs-diff.tar",
        "checkpoint/inventory.img",
        "checkpoint/pstree.img",
    ] {
        assert!(
            names.iter().any(|name| name == wanted),
            "{wanted} is not among {names:?}"
        );
    }
    let config = text(&archive, "config.dump");
    assert!(
        config.contains(&id) && config.contains(&before.image_ref),
        "{config}"
    );
    assert!(text(&archive, "spec.dump").contains("ociVersion"));
    assert!(text(&archive, "container.log").contains(" stdout F 1\n"));
    let path = archive.display();
    // The memory of the shell.
    let pages = format!("tar -xOf {path} --wildcards 'checkpoint/pages-*.img' | grep -c {WORD}");
    assert_ne!(run(&["sh", "-c", &pages]), "0");
    let changed = format!("tar -xOf {path} rootfs-diff.tar | tar -t");
    let changed = run(&["sh", "-c", &changed]);
    for wanted in ["changed", "dir/link", "etc/.wh.group"] {
        assert!(
            changed.lines().any(|name| name == wanted),
            "{wanted} is not among {changed:?}"
        );
    }
    // The archive holds secrets.
    assert_eq!(
        run(&["stat", "--format=%a %U", &path.to_string()]),
        "600 root"
    );
    // criu accepts its own images as complete.
    let images = format!(
        "mkdir -p /tmp/i && tar -xf {path} -C /tmp/i && crit show /tmp/i/checkpoint/pstree.img && rm -r /tmp/i"
    );
    assert!(run(&["sh", "-c", &images]).contains("\"pid\": 1"));
    fs::remove_file(archive).expect("it is there");
}

fn failed_checkpoint_is_explained(node: &GuestNode) {
    let pod = node.pod("checkpoint-fails");
    let id = pod.start_shell("main", SCRIPT);
    assert_counts_on(&pod, "main");
    let refused = |location: &Path, timeout| {
        checkpoint(node, &id, location, timeout).expect_err("it cannot be made")
    };
    let archive = archive_path("fails");
    fs::write(&archive, "another's").expect("it can be written");
    let status = refused(&archive, 0);
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert_eq!(
        fs::read_to_string(&archive).expect("it is there"),
        "another's"
    );
    fs::remove_file(&archive).expect("it is there");
    let status = refused(&archive.join("nowhere/c.tar"), 0);
    assert!(status.message().contains("does not exist"), "{status}");

    // A second is too short for this machine.
    let status = refused(&archive, 1);
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_counts_on(&pod, "main");
    // Without criu the node does not support checkpoints.
    let criu = "/usr/sbin/criu";
    fs::rename(criu, "/usr/sbin/criu.away").expect("it is there");
    let status = refused(&archive, 0);
    // If criu fails, the error quotes its log.
    fs::write(criu, "#!/bin/sh\nexit 1\n").expect("it can be written");
    run(&["chmod", "0755", criu]);
    let broken = refused(&archive, 0);
    fs::rename("/usr/sbin/criu.away", criu).expect("it is there");
    assert!(
        status.code() == Code::Unimplemented && status.message().contains("criu"),
        "{status}"
    );
    assert!(broken.message().contains("criu"), "{broken}");
    assert_counts_on(&pod, "main");
    assert_eq!(
        fs::read_dir(DIR).expect("it is there").count(),
        0,
        "an archive is left"
    );
    assert!(
        eventually(LIMIT, || !checkpoint_marker(&id).exists()),
        "what is left of a failure stays"
    );

    let other = node.pod_of("checkpoint-crun", "crun");
    let id = other.start_shell("main", SCRIPT);
    assert_counts_on(&other, "main");
    let status = checkpoint(node, &id, &archive, 0).expect_err("Debian's crun cannot");
    assert!(
        status.code() == Code::Unimplemented && status.message().contains("crun"),
        "{status}"
    );
    assert_counts_on(&other, "main");
    assert!(
        eventually(LIMIT, || !checkpoint_marker(&id).exists()),
        "what is left of a failure stays"
    );
    assert!(!archive.exists());
}

/// Checks that the container keeps running and the next checkpoint succeeds, wherever the daemon is killed.
fn kill_during_checkpoint(node: &GuestNode) {
    let killable = node.killable();
    let pod = node.pod("checkpoint-killed");
    let id = pod.start_shell("main", SCRIPT);
    let archive = archive_path("killed");
    for &step in Operation::CheckpointTask.crash_points() {
        assert_counts_on(&pod, "main");
        killable.killed_during(step, || checkpoint(node, &id, &archive, 0));
        assert_counts_on(&pod, "main");
        assert!(
            eventually(LIMIT, || !checkpoint_marker(&id).exists()),
            "{step:?}: what is left of it stays"
        );
        assert_eq!(
            archive.exists(),
            step == CrashPoint::CheckpointNamed,
            "{step:?}"
        );
        assert_eq!(node.cri.sh(&id, "echo reached"), "reached", "{step:?}");
    }
    fs::remove_file(&archive).expect("it is there");
    checkpoint(node, &id, &archive, 0).expect("it can be made");
    fs::remove_file(&archive).expect("it is there");
}

/// The checkpoint is completed, even if its client is gone, or never begins.
fn disconnect_during_checkpoint(node: &GuestNode) {
    let pod = node.pod("checkpoint-left");
    let id = pod.start_shell("main", SCRIPT);
    for after in [20, 300, 1500].map(Duration::from_millis) {
        assert_counts_on(&pod, "main");
        let archive = archive_path("left");
        let request = cri::CheckpointContainerRequest {
            container_id: id.clone(),
            location: archive.display().to_string(),
            timeout: 0,
        };
        // The call is dropped before its answer, as by a client that is killed.
        let left = node.cri.runtime(async |mut client| {
            tokio::time::timeout(after, client.checkpoint_container(request))
                .await
                .unwrap_or_else(|_| Err(Status::cancelled("left")))
        });
        drop(left);
        // A checkpoint that is requested now begins when the one before is complete.
        let again = archive_path("again");
        checkpoint(node, &id, &again, 0).expect("it can be made");
        assert_counts_on(&pod, "main");
        assert!(
            eventually(LIMIT, || !checkpoint_marker(&id).exists()),
            "{after:?}: what is left of it stays"
        );
        for archive in [archive, again].iter().filter(|archive| archive.exists()) {
            assert!(
                names(archive)
                    .iter()
                    .any(|name| name == "checkpoint/inventory.img"),
                "{after:?}"
            );
            fs::remove_file(archive).expect("it is there");
        }
        assert_eq!(
            fs::read_dir(DIR).expect("it is there").count(),
            0,
            "{after:?}: more than archives is left"
        );
    }
}

fn checkpoint_with_connections(node: &GuestNode) {
    let pod = node.pod("checkpoint-net");
    // The client tries again until the server listens. Its input is open all the time, and outlasts a try that fails.
    let server = "sleep 1000 | nc -l -p 4711 > /dev/null";
    let client = "sleep 1000 | while ! nc 127.0.0.1 4711 2> /dev/null; do sleep 0.1; done";
    let count = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done";
    let id = pod.start_shell(
        "main",
        &format!("{server} & exec 3<>/dev/null; {client} & {count}"),
    );
    // 4711 as the port at the other end, and 1 for established.
    let connected = || node.cri.sh(&id, "grep ':1267 01 ' /proc/net/tcp | wc -l") != "0";
    assert!(eventually(LIMIT, connected), "they are not connected");
    let archive = archive_path("net");
    checkpoint(node, &id, &archive, i64::MAX).expect("it can be made");
    assert_counts_on(&pod, "main");
    assert!(connected(), "the connection is broken");
    fs::remove_file(archive).expect("it is there");
}
