//! Full disks, in bytes and in inodes: calls that need space fail with that reason, running containers
//! continue, and everything works again once there is space.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use switchyard_proto::cri::v1::{ContainerState, Mount, PodSandboxState, StatusRequest};
use switchyard_tests::bad_disks::FilledDisk;
use switchyard_tests::cri::image_spec;
use switchyard_tests::host::{eventually, random_name};
use switchyard_tests::image::{LayerBuilder, busybox, random_layer};
use switchyard_tests::node::TestNode;
use tonic::{Code, Status};

use super::{LIMIT, assert_no_leaks_since, assert_recovers, refused, retry};

mod database;
mod run_disk;

/// Time for a call that runs out of space, including the rollback of its steps.
const SOON: Duration = Duration::from_secs(40);

#[track_caller]
fn assert_full(status: &Status) {
    // A pull is refused with the second error when the space is checked before anything is downloaded.
    let says_so = |text: &str| {
        ["no space left on device", "are free on the disk of"]
            .iter()
            .any(|part| text.contains(part))
    };
    assert!(says_so(&status.message().to_lowercase()), "{status}");
}

/// The disks of the state directory and of containerd's root are full.
fn a_full_state(options: &str, fill: fn(&Path) -> FilledDisk) {
    let node = TestNode::start_with("", |root| root.small_disk(&root.state(), options));
    let cri = node.cri().with_timeout(SOON);
    let image = busybox().layer(random_layer(2_000_000, 4242)).build();
    node.registry().push("disks/image:1", &image);
    let reference = node.registry().reference("disks/image:1");
    let pod = node.pod("full");
    // The container starts no processes, which would appear as new in each leak scan.
    let id = pod.start_shell(
        "main",
        "mkfifo /f; exec 3<>/f; while :; do echo on; read -t 1 x <&3; done",
    );
    let before = node.leak_scan();
    let filling = fill(&node.root().state());

    let exhausted = &[Code::ResourceExhausted];
    assert_full(&refused("PullImage", cri.pull(&reference, None), exhausted));
    filling.refill();
    assert_full(&refused(
        "RunPodSandbox",
        cri.run_pod(&node.pod_config("new")),
        exhausted,
    ));
    filling.refill();
    assert_full(&refused(
        "CreateContainer",
        pod.try_create(&node.container("new", &["true"])),
        exhausted,
    ));
    filling.refill();
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    let so_far = pod.log("main").len();
    pod.wait_log("main", |lines| lines.len() > so_far + 1);
    assert_eq!(cri.image(&reference).expect("it is asked for"), None);
    // A daemon that starts now serves the existing objects, and reports why it cannot create any.
    node.daemon().restart();
    assert_eq!(cri.containers().expect("they can be listed").len(), 1);
    filling.refill();
    assert_full(&refused(
        "RunPodSandbox",
        cri.run_pod(&node.pod_config("newer")),
        exhausted,
    ));

    drop(filling);
    assert_recovers(&node);
    // A download that containerd could not even begin is repeated by the next pull of the same layer.
    cri.pull(&reference, None).expect("it can be pulled");
    assert_eq!(
        node.pod("another").run_shell("echo another", |_| {}),
        "another"
    );
    cri.remove_image(&reference).expect("it can be removed");
    assert_no_leaks_since(&node, &before);
    assert_eq!(pod.run_shell("echo more", |_| {}), "more");
    node.cri().stop(&id, 0).expect("it can be stopped");
    assert_eq!(
        node.cri().status(&id).expect("it has a status").exit_code,
        137
    );
}

#[test]
fn state_disk_without_space_leaves_nothing_partial_and_recovers() {
    a_full_state("size=40m", FilledDisk::bytes);
}

#[test]
fn state_disk_without_inodes_leaves_nothing_partial_and_recovers() {
    a_full_state("size=200m,nr_inodes=3000", FilledDisk::inodes);
}

/// Makes the files that a start of the daemon writes look as an earlier version left them, and empties those
/// of its locks: with enough space, each would be rewritten.
fn outdate_files(state: &Path) {
    let in_network =
        fs::read_dir(state.join("network")).expect("the daemon writes its network's configuration");
    let mut files: Vec<_> = in_network
        .map(|entry| entry.expect("it can be read").path())
        .collect();
    files.extend(["infra/pause", "containerd/config.toml"].map(|name| state.join(name)));
    for path in files {
        let mut file = File::options()
            .append(true)
            .open(&path)
            .expect("the daemon has written it");
        file.write_all(b"\n# of an earlier version\n")
            .expect("there is space");
    }
    File::create(state.join("lock")).expect("it can be emptied");
}

/// The daemon, containerd and the logkeeper start on a full disk, and what needs no space works: without it nothing
/// could be removed from the disk.
fn starts_on_a_full_state(options: &str, fill: fn(&Path) -> FilledDisk) {
    let node = TestNode::start_with("", |root| root.small_disk(&root.state(), options));
    let cri = node.cri().with_timeout(SOON);
    let pod = node.pod("full");
    let other = node.pod("other");
    let ids = [&pod, &other].map(|pod| pod.start_shell("main", "exec sleep 1000"));
    node.daemon().kill9();
    outdate_files(&node.root().state());
    let filling = fill(&node.root().state());
    for name in ["containerd", "logkeeper"] {
        node.kill_managed(name);
    }
    node.daemon().spawn();
    assert_eq!(retry("ListContainers", || cri.containers()).len(), 2);
    assert_recovers(&node);
    assert!(
        node.has_logged("cannot write containerd's configuration"),
        "{}",
        node.daemon().tail()
    );
    assert_eq!(node.cri().sh(&ids[0], "echo reached"), "reached");

    // A daemon that runs starts it just so.
    filling.refill();
    let killed = node.kill_managed("containerd");
    assert!(
        eventually(LIMIT, || node
            .root()
            .managed("containerd")
            .is_some_and(|pid| pid != killed)),
        "it is not started again: {}",
        node.daemon().tail()
    );
    assert_recovers(&node);
    assert_eq!(node.cri().sh(&ids[0], "echo reached"), "reached");
    retry("StopPodSandbox", || cri.stop_pod(other.id()));
    drop(filling);
    assert_disk(&node, false);
    assert_eq!(pod.run_shell("echo more", |_| {}), "more");
    cri.remove_pod(other.id()).expect("it can be removed");
}

#[test]
fn state_disk_without_space_lets_daemon_and_containerd_start() {
    starts_on_a_full_state("size=40m", FilledDisk::bytes);
}

#[test]
fn state_disk_without_inodes_lets_daemon_and_containerd_start() {
    starts_on_a_full_state("size=200m,nr_inodes=3000", FilledDisk::inodes);
}

/// Waits until every status interface of the node reports whether its disk is full. The node stays ready, as
/// otherwise no pods would be stopped, which frees space.
#[track_caller]
fn assert_disk(node: &TestNode, full: bool) {
    let mut last = String::new();
    let reported = eventually(LIMIT, || {
        let (status, body) = node.daemon().get("/readyz/disk");
        let says = body.to_lowercase().contains("no space left on device");
        last = body;
        if full {
            status == 503 && says
        } else {
            status == 200
        }
    });
    assert!(reported, "full: {full}: {last}");
    let (status, body) = node.daemon().get("/readyz?verbose");
    assert!(
        status == 200 && body.contains("[!]disk failed, the node stays ready") == full,
        "{status} {body}"
    );
    let (_, metrics) = node.daemon().get("/metrics");
    assert!(metrics.contains(&format!(
        "switchyard_backend_up{{part=\"disk\"}} {}",
        u8::from(!full)
    )));
    for name in ["RuntimeReady", "NetworkReady"] {
        assert!(
            node.cri().condition(name).expect("Status answers").status,
            "{name}"
        );
    }
}

/// Returns whether the node reports that a container has exited and that its exit is not persisted.
pub(super) fn is_exit_unrecorded(node: &TestNode, container: &str) -> bool {
    let status = node
        .cri()
        .runtime(async |mut client| client.status(StatusRequest { verbose: true }).await);
    let info = status.expect("it is reported").info;
    // As JSON: `"exits.unrecorded":"ID, ID"`.
    info.values()
        .filter_map(|text| text.split_once("exits.unrecorded")?.1.split('"').nth(2))
        .any(|ids| ids.contains(container))
}

/// The exit code, when the container started and ended, and the reason.
type ExitInfo = (i32, i64, i64, String);

/// The exit that clients got: code, start, finish and reason.
pub(super) fn exit_info(node: &TestNode, container: &str) -> ExitInfo {
    let status = node.cri().wait_exit(container);
    (
        status.exit_code,
        status.started_at,
        status.finished_at,
        status.reason,
    )
}

/// Kills the daemon. The next one must report the same exits.
fn assert_next_daemon_reports(node: &TestNode, reported: &[(String, ExitInfo)]) {
    node.daemon().kill9();
    node.daemon().restart();
    for (id, exit) in reported {
        assert_eq!(
            exit_info(node, id),
            *exit,
            "the next daemon reports another exit"
        );
    }
}

fn assert_exits_are_recorded(node: &TestNode, reported: &[(String, ExitInfo)]) {
    assert!(
        eventually(LIMIT, || reported
            .iter()
            .all(|(id, _)| !is_exit_unrecorded(node, id))),
        "an exit is not put on record: {}",
        node.daemon().tail()
    );
}

/// On a disk that is filled again whenever space becomes free, exits are reported, running containers can be
/// stopped, and stopped ones can be removed. A reported exit status never changes, whoever asks.
fn ends_on_a_full_state(options: &str, fill: fn(&Path) -> FilledDisk) -> bool {
    let node = TestNode::start_with("", |root| root.small_disk(&root.state(), options));
    let cri = node.cri().with_timeout(SOON);
    node.registry().push(
        "disks/gone:1",
        &busybox().layer(random_layer(2_000_000, 4243)).build(),
    );
    let reference = node.registry().reference("disks/gone:1");
    cri.pull(&reference, None).expect("it can be pulled");
    let pod = node.pod("full");
    let other = node.pod("other");
    let third = node.pod("third");
    let dies = pod.start_shell("dies", "mkfifo /f; read x </f; echo last words; exit 7");
    let stopped = pod.start_shell("stopped", "exec sleep 1000");
    let runs = pod.start_shell(
        "runs",
        "mkfifo /f; exec 3<>/f; while :; do echo on; read -t 1 x <&3; done",
    );
    let of_other = other.start_shell("main", "exec sleep 1000");
    let of_third = third.start_shell("main", "exec sleep 1000");
    let filling = fill(&node.root().state());
    assert_disk(&node, true);

    filling.refill();
    // The end of the container may end the command too.
    cri.exec(&dies, &["sh", "-c", "echo >/f"], 30)
        .expect("it can be executed");
    assert_eq!(exit_info(&node, &dies).0, 7);
    pod.wait_log("dies", |lines| {
        lines.iter().any(|line| line.contains("last words"))
    });
    filling.refill();
    cri.stop(&stopped, 1).expect("it can be stopped");
    assert_eq!(exit_info(&node, &stopped).0, 137);
    filling.refill();
    // A kubelet releases a pod's resources once the pod is stopped.
    cri.stop_pod(other.id()).expect("it can be stopped");
    assert_eq!(other.status().state(), PodSandboxState::SandboxNotready);
    let reported = [&dies, &stopped, &of_other].map(|id| (id.clone(), exit_info(&node, id)));
    let unrecorded = reported.iter().any(|(id, _)| is_exit_unrecorded(&node, id));
    filling.refill();
    assert_next_daemon_reports(&node, &reported);
    assert_eq!(other.status().state(), PodSandboxState::SandboxNotready);
    assert_eq!(node.cri().sh(&runs, "echo reached"), "reached");

    // A removal frees space. One that fails is refused with the reason, and succeeds once there is space.
    let full_or_done = |what: &str, answer: Result<(), Status>| {
        filling.refill();
        if let Err(status) = answer {
            assert_eq!(status.code(), Code::ResourceExhausted, "{what}: {status}");
            assert_full(&status);
        }
    };
    full_or_done("RemoveContainer", cri.remove(&stopped));
    full_or_done("RemovePodSandbox", cri.remove_pod(other.id()));
    full_or_done("RemovePodSandbox", cri.remove_pod(third.id()));
    full_or_done("RemoveImage", cri.remove_image(&reference));
    assert_ne!(
        cri.status(&of_third).map(|status| status.state()).ok(),
        Some(ContainerState::ContainerRunning)
    );
    let so_far = pod.log("runs").len();
    pod.wait_log("runs", |lines| lines.len() > so_far + 1);

    drop(filling);
    assert_disk(&node, false);
    assert_exits_are_recorded(&node, &reported);
    node.daemon().kill9();
    node.daemon().restart();
    assert_eq!(exit_info(&node, &dies), reported[0].1);
    for id in [&dies, &stopped, &of_other, &of_third] {
        cri.remove(id).expect("it can be removed");
    }
    cri.remove_image(&reference).expect("it can be removed");
    assert_eq!(pod.run_shell("echo more", |_| {}), "more");
    unrecorded
}

#[test]
fn state_disk_without_space_still_reports_exits_and_allows_removals() {
    let unrecorded = ends_on_a_full_state("size=40m", FilledDisk::bytes);
    assert!(
        unrecorded,
        "containerd had space for each end, so that nothing was shown"
    );
}

#[test]
fn state_disk_without_inodes_still_reports_exits_and_allows_removals() {
    ends_on_a_full_state("size=200m,nr_inodes=3000", FilledDisk::inodes);
}

/// The kernel mounts a root file system without an error, and read-only, if overlayfs can make no directory for it.
#[test]
fn no_container_starts_with_a_root_that_lacks_an_inode() {
    let node = TestNode::start_with("", |root| {
        root.small_disk(&root.state(), "size=200m,nr_inodes=3000")
    });
    let cri = node.cri().with_timeout(SOON);
    // The runtime needs nothing more in it.
    let files = ["etc/hosts", "etc/hostname", "etc/resolv.conf"];
    let files = files
        .into_iter()
        .fold(LayerBuilder::default(), |layer, path| {
            layer.file(path, "", 0o644)
        });
    node.registry()
        .push("disks/files:1", &busybox().layer(files.build()).build());
    let reference = node.registry().reference("disks/files:1");
    cri.pull(&reference, None).expect("it can be pulled");
    let pod = node.pod("full");
    // It makes the directory above those that containerd makes for each task.
    let _first = pod.start_shell("first", "exec sleep 1000");
    let created = [1, 2, 3, 4].map(|free| {
        let mut config = node.container(&format!("free-{free}"), &["sleep", "1000"]);
        config.image = Some(image_spec(&reference));
        (free, pod.create(&config))
    });
    let filling = FilledDisk::inodes(&node.root().state());
    let mut refusals = Vec::new();
    for (free, id) in &created {
        filling.refill();
        filling.free_inodes(*free);
        if let Err(status) = cri.start(id) {
            assert_eq!(status.code(), Code::ResourceExhausted, "{free}: {status}");
            assert_full(&status);
            refusals.push(status);
        }
    }
    let is_root = |status: &Status| status.message().contains("root file system of task");
    assert!(refusals.iter().any(is_root), "{refusals:#?}");
    drop(filling);
    assert_recovers(&node);
    for (free, id) in &created {
        if cri.status(id).expect("it has a status").state() == ContainerState::ContainerRunning {
            assert_eq!(cri.sh(id, "touch /x && echo written"), "written", "{free}");
        }
    }
    assert_eq!(pod.run_shell("echo more", |_| {}), "more");
}

#[test]
fn full_log_disk_stops_no_container() {
    let node = TestNode::start_with("", |root| root.small_disk(&root.log_dir(), "size=1m"));
    let pod = node.pod("full");
    let id = pod.start_shell(
        "main",
        "n=0; while :; do n=$((n+1)); echo line $n; echo $n > /n; sleep 0.01; done",
    );
    pod.wait_log("main", |lines| !lines.is_empty());
    let before = node.leak_scan();
    let filling = FilledDisk::bytes(&node.root().log_dir());
    let counted = || {
        node.cri()
            .sh(&id, "cat /n")
            .parse::<u64>()
            .unwrap_or_default()
    };
    let so_far = counted();
    assert!(
        eventually(LIMIT, || counted() > so_far + 50),
        "the container is held up"
    );
    let name = random_name();
    let quiet = pod.start_shell(&name, "echo unheard; exec sleep 1000");
    assert_eq!(node.cri().sh(&quiet, "echo reached"), "reached");
    drop(filling);
    let so_far = pod.log("main").len();
    pod.wait_log("main", |lines| lines.len() > so_far + 20);
    assert_eq!(pod.run_shell("echo more", |_| {}), "more");
    let status = node.cri().status(&quiet).expect("it has a status");
    assert_eq!(status.state(), ContainerState::ContainerRunning);
    node.cri().remove(&quiet).expect("it can be removed");
    assert!(
        node.leak_scan()
            .new_since(&before)
            .iter()
            .all(|found| !found.contains(&quiet))
    );
}
