//! Files of a node are lost while its containers run on: containerd's database, or those of the run directory.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use nix::unistd::Pid;
use switchyard_crash_points::CrashPoint;
use switchyard_proto::cri::v1::ContainerState;
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::leak_scan::{NAMESPACE, lose_container};
use switchyard_tests::node::TestNode;
use tonic::Code;

use super::shims::node_of_slow_shims;
use super::{LIMIT, assert_no_leaks_since, assert_recovers, managed, refused, retry};

/// The commands of containers; other tests use others.
const COMMANDS: [&str; 3] = ["sleep 31520", "sleep 31521", "sleep 31522"];

/// Waits until a command of the node runs, or does not.
#[track_caller]
fn assert_runs(node: &TestNode, command: &str, expected: bool) {
    let runs = || processes::running(node.root().path(), command).is_some();
    assert!(
        eventually(LIMIT, || runs() == expected),
        "{command}: {}\n{}",
        runs(),
        node.daemon().tail()
    );
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
    let output = Command::new("sh")
        .args(["-ec", &script])
        .output()
        .expect("every node has a shell");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("it prints numbers");
    text.lines()
        .map(|pid| pid.parse().expect("it prints a number on each line"))
        .collect()
}

/// Deletes the files and sockets of a directory, and leaves its directories, FIFOs and mounts.
fn delete_files(dir: &Path) {
    let device = fs::symlink_metadata(dir).expect("it exists").dev();
    for entry in fs::read_dir(dir).expect("it can be listed").flatten() {
        let path = entry.path();
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
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

/// Kills the daemon and its containerd, and loses what that has in its database.
fn lose_database(node: &TestNode) {
    node.daemon().kill9();
    let containerd = node.kill_managed("containerd").as_raw();
    let has_ended = || processes::find(containerd).is_none_or(|process| process.zombie);
    assert!(eventually(LIMIT, has_ended), "containerd does not end");
    let database = node
        .root()
        .state()
        .join("containerd/root/io.containerd.metadata.v1.bolt/meta.db");
    fs::File::options()
        .write(true)
        .truncate(true)
        .open(database)
        .expect("containerd has a database");
}

/// Checks that a daemon that has just begun to serve lists nothing, and has ended tasks before.
#[track_caller]
fn assert_ended_at_start(node: &TestNode) {
    let listed = retry("ListContainers", || node.cri().containers());
    assert!(listed.is_empty(), "{listed:#?}");
    let has_ended = || {
        let log = daemon_log(node);
        let ended = log.rfind("ending tasks that containerd lists without a container object");
        ended.is_some() && ended < log.rfind("recovered what a predecessor left")
    };
    assert!(eventually(LIMIT, has_ended), "{}", node.daemon().tail());
}

/// containerd continues to list the tasks whose shims it finds, and refuses each call about them. Two of them
/// share a shim. An orchestrator starts other pods for those that are not listed.
#[test]
fn tasks_whose_container_objects_are_lost_are_ended_before_the_network_of_their_pod() {
    let node = TestNode::start();
    let before = node.leak_scan();
    let pods = ["shared", "single"].map(|name| node.pod(name));
    for (pod, command) in [&pods[0], &pods[0], &pods[1]].into_iter().zip(COMMANDS) {
        let _id = pod.start_shell(&command.replace(' ', "-"), &format!("exec {command}"));
        assert_runs(&node, command, true);
    }
    lose_database(&node);

    node.daemon().spawn();
    assert_ended_at_start(&node);
    for command in COMMANDS {
        assert_runs(&node, command, false);
    }
    assert_recovers(&node);
    assert_no_leaks_since(&node, &before);

    node.cri()
        .pull(&node.image(), None)
        .expect("it can be pulled again");
    assert_eq!(node.pod("again").run_shell("echo again", |_| {}), "again");
}

/// The disk fails where containerd keeps files of its tasks. They are removed when it does not any more.
#[test]
fn tasks_without_container_objects_are_ended_although_their_directories_cannot_be_listed() {
    let node = TestNode::start();
    let before = node.leak_scan();
    let pod = node.pod("unlisted");
    let _id = pod.start_shell("main", &format!("exec {}", COMMANDS[0]));
    assert_runs(&node, COMMANDS[0], true);
    lose_database(&node);
    let tasks = node
        .root()
        .state()
        .join("containerd/root/io.containerd.runtime.v2.task");
    fs::rename(tasks.join(NAMESPACE), tasks.join("kept")).expect("containerd has made it");
    fs::write(tasks.join(NAMESPACE), "").expect("it can be written");

    node.daemon().spawn();
    assert_ended_at_start(&node);
    assert_runs(&node, COMMANDS[0], false);
    fs::remove_file(tasks.join(NAMESPACE)).expect("it is there");
    fs::rename(tasks.join("kept"), tasks.join(NAMESPACE)).expect("it is there");
    assert_recovers(&node);
    assert_no_leaks_since(&node, &before);
}

/// A start that was cut off may need any shim, so that none is ended until it is known what became of that start.
#[test]
fn task_without_container_object_that_is_not_ended_at_once_is_told_of_and_ended_later() {
    let node = TestNode::start();
    let cut_off = node.pod("cut-off");
    let begun = cut_off.create(&node.container("begun", &["sleep", "1000"]));
    let pod = node.pod("orphan");
    let orphan = pod.start_shell("main", &format!("exec {}", COMMANDS[0]));
    assert_runs(&node, COMMANDS[0], true);
    node.daemon().kill_at(&[(CrashPoint::TaskFifos, 1)]);
    node.cri().start(&begun).expect_err("nobody answers");
    node.daemon().wait_killed();
    let socket = node.root().containerd_socket().expect("containerd runs");
    lose_container(&socket, NAMESPACE, &orphan);

    node.daemon().restart();
    let is_told = || {
        let log = daemon_log(&node);
        let told = log.lines().find(|line| {
            line.contains("run on: it is not certain yet that their shim serves no other task")
        });
        told.is_some_and(|line| line.contains(&orphan))
    };
    assert!(eventually(LIMIT, is_told), "{}", node.daemon().tail());
    assert_runs(&node, COMMANDS[0], false);
}

/// The task of the start counts as exited, so what the call makes is ended.
#[test]
fn start_that_goes_on_after_the_loss_of_its_files_leaves_no_process() {
    check_start_that_goes_on(false);
}

/// The daemon that finds the loss stores that the exit is not known, and dies before it has looked after the start.
#[test]
fn start_that_goes_on_after_the_loss_of_its_files_is_found_by_the_daemon_after_next() {
    check_start_that_goes_on(true);
}

#[track_caller]
fn check_start_that_goes_on(is_recovery_killed: bool) {
    let (node, dir) = node_of_slow_shims();
    let pod = node.pod("goes-on");
    let id = pod.create(&node.container("begun", &["sleep", "1000"]));
    fs::write(dir.join("hold"), "").expect("it can be written");
    std::thread::scope(|scope| {
        let start = scope.spawn(|| node.cri().start(&id));
        let held = eventually(LIMIT, || dir.join("held").exists());
        node.daemon().kill9();
        start
            .join()
            .expect("a call does not panic")
            .expect_err("nobody answers");
        assert!(held, "no shim is started");
    });
    delete_files(&node.root().run().join("tasks").join(&id));
    fs::remove_file(node.root().run().join("epoch")).expect("the daemon has made it");

    if is_recovery_killed {
        node.daemon().kill_at(&[(CrashPoint::RecoveryTasks, 1)]);
        node.daemon().spawn();
        node.daemon().wait_killed();
    }
    node.daemon().restart();
    let status = node.cri().status(&id).expect("it has a status");
    assert_eq!(
        status.state(),
        ContainerState::ContainerExited,
        "{status:?}"
    );
    let bundles = node
        .root()
        .run()
        .join("containerd/state/io.containerd.runtime.v2.task");
    let bundle = bundles.join(NAMESPACE).join(&id);
    assert!(bundle.exists(), "containerd does not continue the call");
    fs::remove_file(dir.join("hold")).expect("it is there");
    assert!(
        eventually(LIMIT, || !bundle.exists()),
        "what the call has made stays\n{}",
        node.daemon().tail()
    );
    node.cri().remove(&id).expect("it can be removed");
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
    let container = processes::running(node.root().path(), COMMANDS[0])
        .expect("it runs")
        .pid;
    assert_eq!(found_by_package(&node, "running_pids"), [container]);
    delete_files(&node.root().run());
    // A purge is refused, and ends nothing, while the container runs. Once it has ended, a purge ends the others.
    assert_eq!(found_by_package(&node, "running_pids"), [container]);
    assert_eq!(
        BTreeSet::from_iter(found_by_package(&node, "managed")),
        BTreeSet::from(old)
    );

    node.daemon().restart();
    for pid in old {
        let has_ended = processes::find(pid).is_none_or(|process| process.zombie);
        assert!(
            has_ended,
            "process {} runs\n{}",
            Pid::from_raw(pid),
            node.daemon().tail()
        );
    }
    let named = || {
        let log = daemon_log(&node);
        log.matches("runs and no pid file names it").count()
    };
    let are_named = eventually(LIMIT, || named() == old.len());
    assert!(are_named, "{}\n{}", named(), node.daemon().tail());
    let status = node.cri().status(&ran).expect("it has a status");
    assert_eq!(
        status.state(),
        ContainerState::ContainerExited,
        "{status:?}"
    );
    refused(
        "StartContainer",
        node.cri().start(&ran),
        &[Code::FailedPrecondition, Code::Unknown],
    );
    assert_runs(&node, COMMANDS[0], false);
    assert_eq!(pod.log_text("ran"), "ran");
    assert_eq!(node.pod("more").run_shell("echo more", |_| {}), "more");
    node.cri().remove(&ran).expect("it can be removed");
    assert_eq!(pod.run_shell("echo again", |_| {}), "again");
}
