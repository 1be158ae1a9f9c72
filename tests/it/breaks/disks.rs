//! Full disks, in bytes and in inodes: what needs space says that there is none, what runs runs on, and all works when there is.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use switchyard_proto::cri::v1::ContainerState;
use switchyard_tests::host::{eventually, random_name};
use switchyard_tests::image::{busybox, random_layer};
use switchyard_tests::node::Node;
use tonic::{Code, Status};

use super::{LIMIT, assert_nothing_new, assert_recovers, refused, retry};

/// What a call may take that runs out of space, with room for undoing what it had begun.
const SOON: Duration = Duration::from_secs(40);

/// All that was free of a disk; given back when this is dropped.
struct Filling(PathBuf);

impl Filling {
    /// Takes all bytes of the disk that `dir` is on.
    fn bytes(dir: &Path) -> Self {
        let filling = Self(dir.join("filling"));
        let mut file = File::create(&filling.0).expect("there is an inode left");
        let mut size = 1 << 20;
        while size > 0 {
            // Ever smaller pieces, until not even one byte goes in.
            if file.write_all(&vec![1; size]).is_err() {
                size /= 2;
            }
        }
        filling
    }

    /// Takes all inodes of the disk that `dir` is on.
    fn inodes(dir: &Path) -> Self {
        let filling = Self(dir.join("filling"));
        fs::create_dir(&filling.0).expect("there is an inode left");
        let mut number = 0;
        while File::create(filling.0.join(number.to_string())).is_ok() {
            number += 1;
        }
        filling
    }

    /// Takes what has become free since.
    fn refill(&self) {
        let mut number = 0;
        while self.0.is_dir() && File::create(self.0.join(format!("more{number}"))).is_ok() {
            number += 1;
        }
        if self.0.is_file() {
            let mut file = File::options().append(true).open(&self.0).expect("it is there");
            while file.write_all(&[1; 512]).is_ok() {}
        }
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        let _ = if self.0.is_dir() { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) };
    }
}

#[track_caller]
fn assert_full(status: &Status) {
    assert!(status.message().to_lowercase().contains("no space left on device"), "{status}");
}

/// The state and containerd's root are full.
fn a_full_state(options: &str, fill: fn(&Path) -> Filling) {
    let node = Node::start_with("", |root| root.small_disk(&root.state(), options));
    let cri = node.cri().within(SOON);
    let image = busybox().layer(random_layer(2_000_000, 4242)).build();
    node.registry().push("disks/image:1", &image);
    let reference = node.registry().reference("disks/image:1");
    let pod = node.pod("full");
    // It makes no processes, which would be new in each look around.
    let id = pod.shell("main", "mkfifo /f; exec 3<>/f; while :; do echo on; read -t 1 x <&3; done");
    let before = node.sweep();
    let filling = fill(&node.root().state());

    let exhausted = &[Code::ResourceExhausted];
    assert_full(&refused("PullImage", cri.pull(&reference, None), exhausted));
    filling.refill();
    assert_full(&refused("RunPodSandbox", cri.run_pod(&node.pod_config("new")), exhausted));
    filling.refill();
    assert_full(&refused("CreateContainer", pod.try_create(&node.container("new", &["true"])), exhausted));
    filling.refill();
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    let so_far = pod.log("main").len();
    pod.wait_log("main", |lines| lines.len() > so_far + 1);
    assert_eq!(cri.image(&reference).expect("it is asked for"), None);
    // A daemon that begins now serves what is there, and says why it can make nothing.
    node.daemon().restart();
    assert_eq!(cri.containers().expect("they can be listed").len(), 1);
    filling.refill();
    assert_full(&refused("RunPodSandbox", cri.run_pod(&node.pod_config("newer")), exhausted));

    drop(filling);
    assert_recovers(&node);
    // A download that containerd could not even begin is taken up by the next of the same layer.
    cri.pull(&reference, None).expect("it can be pulled");
    assert_eq!(node.pod("another").output("echo another", |_| {}), "another");
    cri.remove_image(&reference).expect("it can be removed");
    assert_nothing_new(&node, &before);
    assert_eq!(pod.output("echo more", |_| {}), "more");
    node.cri().stop(&id, 0).expect("it can be stopped");
    assert_eq!(node.cri().status(&id).expect("it has a status").exit_code, 137);
}

#[test]
fn without_bytes_for_state_nothing_is_half_made_and_all_works_when_there_are_some() {
    a_full_state("size=40m", Filling::bytes);
}

#[test]
fn without_inodes_for_state_nothing_is_half_made_and_all_works_when_there_are_some() {
    a_full_state("size=200m,nr_inodes=3000", Filling::inodes);
}

#[test]
fn without_inodes_for_runs_starts_and_commands_fail_clearly_and_all_works_when_there_are_some() {
    let node = Node::start_with("", |root| root.small_disk(&root.run(), "size=100m,nr_inodes=1500"));
    let cri = node.cri().within(SOON);
    let pod = node.pod("full");
    let id = pod.shell("main", "exec sleep 1000");
    let before = node.sweep();
    let created = pod.create(&node.container("created", &["sleep", "1000"]));
    let filling = Filling::inodes(&node.root().run());
    let exhausted = &[Code::ResourceExhausted];
    assert_full(&refused("StartContainer", cri.start(&created), exhausted));
    let status = cri.status(&created).expect("it has a status");
    assert_eq!((status.state(), status.reason.as_str()), (ContainerState::ContainerExited, "StartError"));
    assert_full(&refused("ExecSync", cri.exec(&id, &["true"], 5), exhausted));
    assert_full(&refused("RunPodSandbox", cri.run_pod(&node.pod_config("new")), exhausted));
    assert_eq!(cri.status(&id).expect("it has a status").state(), ContainerState::ContainerRunning);
    drop(filling);
    node.cri().remove(&created).expect("it can be removed");
    assert_nothing_new(&node, &before);
    assert_recovers(&node);
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    assert_eq!(pod.output("echo more", |_| {}), "more");
    assert_eq!(node.pod("another").output("echo another", |_| {}), "another");
}

#[test]
fn a_daemon_begins_without_space_for_its_run_files_says_so_and_serves() {
    let node = Node::start_with("", |root| root.small_disk(&root.run(), "size=100m,nr_inodes=1500"));
    let pod = node.pod("full");
    let id = pod.shell("main", "exec sleep 1000");
    node.daemon().kill9();
    fs::remove_file(node.root().run().join("admin.addr")).expect("it was there");
    let filling = Filling::inodes(&node.root().run());
    node.daemon().spawn();
    let cri = node.cri().within(SOON);
    let containers = retry("ListContainers", || cri.containers());
    assert_eq!(containers.len(), 1, "{containers:#?}");
    let log = fs::read_to_string(node.root().daemon_log()).expect("the daemon writes a log");
    assert!(log.to_lowercase().contains("no space left on device"), "{}", node.daemon().tail());
    filling.refill();
    assert_full(&refused("ExecSync", cri.exec(&id, &["true"], 5), &[Code::ResourceExhausted]));
    drop(filling);
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    assert_eq!(pod.output("echo more", |_| {}), "more");
}

#[test]
fn a_full_disk_for_logs_stops_no_container() {
    let node = Node::start_with("", |root| root.small_disk(&root.log_dir(), "size=1m"));
    let pod = node.pod("full");
    let id = pod.shell("main", "n=0; while :; do n=$((n+1)); echo line $n; echo $n > /n; sleep 0.01; done");
    pod.wait_log("main", |lines| !lines.is_empty());
    let before = node.sweep();
    let filling = Filling::bytes(&node.root().log_dir());
    let counted = || node.cri().sh(&id, "cat /n").parse::<u64>().unwrap_or_default();
    let so_far = counted();
    assert!(eventually(LIMIT, || counted() > so_far + 50), "the container is held up");
    let name = random_name();
    let quiet = pod.shell(&name, "echo unheard; exec sleep 1000");
    assert_eq!(node.cri().sh(&quiet, "echo reached"), "reached");
    drop(filling);
    let so_far = pod.log("main").len();
    pod.wait_log("main", |lines| lines.len() > so_far + 20);
    assert_eq!(pod.output("echo more", |_| {}), "more");
    let status = node.cri().status(&quiet).expect("it has a status");
    assert_eq!(status.state(), ContainerState::ContainerRunning);
    node.cri().remove(&quiet).expect("it can be removed");
    assert!(node.sweep().since(&before).iter().all(|found| !found.contains(&quiet)));
}
