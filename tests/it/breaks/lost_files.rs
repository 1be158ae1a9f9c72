//! Files of a node are lost while its containers run on: containerd's database, or those of the run directory.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use nix::unistd::Pid;
use switchyard_proto::cri::v1::ContainerState;
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::node::TestNode;
use tonic::Code;

use super::{LIMIT, assert_no_leaks_since, assert_recovers, managed, refused, retry};

/// The commands of containers; other tests use others.
const COMMANDS: [&str; 3] = ["sleep 31520", "sleep 31521", "sleep 31522"];

/// Waits until a command of the node runs, or does not.
#[track_caller]
fn assert_runs(node: &TestNode, command: &str, expected: bool) {
    let runs = || processes::running(node.root().path(), command).is_some();
    assert!(eventually(LIMIT, || runs() == expected), "{command}: {}\n{}", runs(), node.daemon().tail());
}

fn daemon_log(node: &TestNode) -> String {
    fs::read_to_string(node.root().daemon_log()).expect("the daemon writes a log")
}

/// The processes of the node that a function of the package's scripts finds.
fn found_by_package(node: &TestNode, function: &str) -> Vec<i32> {
    let functions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/debian/common.sh");
    let script = format!(
        ". {}; run={} state={}; {function}",
        functions.display(),
        node.root().run().display(),
        node.root().state().display()
    );
    let output = Command::new("sh").args(["-ec", &script]).output().expect("every node has a shell");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("it prints numbers");
    text.lines().map(|pid| pid.parse().expect("it prints a number on each line")).collect()
}

/// Deletes the files and sockets of a directory, and leaves its directories, FIFOs and mounts.
fn delete_files(dir: &Path) {
    let device = fs::symlink_metadata(dir).expect("it exists").dev();
    for entry in fs::read_dir(dir).expect("it can be listed").flatten() {
        let path = entry.path();
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        if found.dev() != device {
            continue;
        }
        if found.is_dir() {
            delete_files(&path);
        } else if found.is_file() || found.file_type().is_socket() {
            fs::remove_file(&path).expect("it can be deleted");
        }
    }
}

/// containerd goes on to list the tasks whose shims it finds, and refuses each call about them. Two of them share a
/// shim. An orchestrator starts other pods for those that are not listed.
#[test]
fn tasks_whose_container_objects_are_lost_are_ended_before_the_network_of_their_pod() {
    let node = TestNode::start();
    let before = node.leak_scan();
    let pods = ["shared", "single"].map(|name| node.pod(name));
    for (pod, command) in [&pods[0], &pods[0], &pods[1]].into_iter().zip(COMMANDS) {
        let _id = pod.start_shell(&command.replace(' ', "-"), &format!("exec {command}"));
        assert_runs(&node, command, true);
    }
    node.daemon().kill9();
    let containerd = node.kill_managed("containerd").as_raw();
    let has_ended = || processes::find(containerd).is_none_or(|process| process.zombie);
    assert!(eventually(LIMIT, has_ended), "containerd does not end");
    let database = node.root().state().join("containerd/root/io.containerd.metadata.v1.bolt/meta.db");
    fs::File::options().write(true).truncate(true).open(database).expect("containerd has a database");

    node.daemon().spawn();
    let listed = retry("ListContainers", || node.cri().containers());
    assert!(listed.is_empty(), "{listed:#?}");
    for command in COMMANDS {
        assert_runs(&node, command, false);
    }
    let log = daemon_log(&node);
    let ended = log.rfind("ending tasks that containerd lists without a container object");
    let recovered = log.rfind("recovered what a predecessor left");
    assert!(ended.is_some() && ended < recovered, "{ended:?} {recovered:?}\n{}", node.daemon().tail());
    assert_recovers(&node);
    assert_no_leaks_since(&node, &before);

    node.cri().pull(&node.image(), None).expect("it can be pulled again");
    assert_eq!(node.pod("again").run_shell("echo again", |_| {}), "again");
}

/// The old containerd and the old logkeeper run and cannot be reached. What the containers have done is not known.
#[test]
fn daemon_replaces_the_processes_of_its_predecessor_whose_pid_files_are_deleted() {
    let node = TestNode::start();
    let pod = node.pod("ran");
    let ran = pod.start_shell("ran", &format!("echo ran; exec {}", COMMANDS[0]));
    assert_runs(&node, COMMANDS[0], true);
    pod.wait_log("ran", |lines| !lines.is_empty());
    let old = ["containerd", "logkeeper"].map(|name| managed(&node, name));
    node.daemon().kill9();
    let container = processes::running(node.root().path(), COMMANDS[0]).expect("it runs").pid;
    assert_eq!(found_by_package(&node, "running_pids"), [container]);
    delete_files(&node.root().run());
    // A purge refuses to end the container, and ends the others.
    assert_eq!(found_by_package(&node, "running_pids"), [container]);
    assert_eq!(BTreeSet::from_iter(found_by_package(&node, "managed")), BTreeSet::from(old));

    node.daemon().restart();
    for pid in old {
        let has_ended = processes::find(pid).is_none_or(|process| process.zombie);
        assert!(has_ended, "process {} runs\n{}", Pid::from_raw(pid), node.daemon().tail());
    }
    let log = daemon_log(&node);
    assert_eq!(log.matches("runs and no pid file names it").count(), old.len(), "{log}");
    let status = node.cri().status(&ran).expect("it has a status");
    assert_eq!(status.state(), ContainerState::ContainerExited, "{status:?}");
    refused("StartContainer", node.cri().start(&ran), &[Code::FailedPrecondition, Code::Unknown]);
    assert_runs(&node, COMMANDS[0], false);
    assert_eq!(pod.log_text("ran"), "ran");
    assert_eq!(node.pod("more").run_shell("echo more", |_| {}), "more");
    node.cri().remove(&ran).expect("it can be removed");
    assert_eq!(pod.run_shell("echo again", |_| {}), "again");
}
