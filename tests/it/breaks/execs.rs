//! Many commands at once, whose callers give up before, during or after their start: the pod stays usable. And what the time limit of a
//! command counts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use switchyard_proto::cri::v1::NamespaceMode;
use switchyard_tests::cri::{context, namespaces};
use switchyard_tests::host::{cgroups, eventually, processes};
use switchyard_tests::node::TestNode;
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;
use switchyard_tests::streams::{OUTPUTS, StreamSession};

use super::{LIMIT, SuspendedProcess, assert_no_leaks_since, retry, shim};

/// Duration of a command's start by the runtime here.
const SLOW_START: &str = "1.5";

/// The configuration with a runtime that takes its time before it begins a command, and is runc otherwise.
fn slow_to_exec(root: &PrivateRoot) -> String {
    let runc = prereq::require("runc", "runc");
    let program = root.path().join("runc-slow-to-exec");
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' exec '*) sleep {SLOW_START} ;; esac\nexec {} \"$@\"\n",
        runc.display()
    );
    fs::write(&program, script).expect("the root can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    format!("[containerd.runtimes.runc]\nbinary = {program:?}\n")
}

/// More than a pipe holds, and than the daemon keeps of one command.
const LARGE_OUTPUT: [&str; 4] = ["head", "-c", "3000000", "/dev/zero"];

/// So many commands at once, of which each caller gives up after its own time: from before the start on.
fn abandon(node: &TestNode, container: &str, command: &[&str], count: u32) {
    thread::scope(|scope| {
        for number in 0..count {
            let patience = Duration::from_millis(u64::from(5 + number * 1_500 / count));
            let cri = node.cri().with_timeout(patience);
            // Whether it is answered is a matter of the machine.
            scope.spawn(move || drop(cri.exec(container, command, 0)));
        }
    });
}

#[test]
fn commands_whose_callers_give_up_wedge_no_pod() {
    let node = TestNode::start();
    let before = node.leak_scan();
    for (command, count) in [
        (&["echo", "hi"][..], 40),
        (&["echo", "hi"], 80),
        (&["echo", "hi"], 200),
        (&LARGE_OUTPUT, 40),
    ] {
        let pod = node.pod("storm");
        let id = pod.start_shell("main", "exec sleep 1000");
        abandon(&node, &id, command, count);
        let answers = || {
            node.cri()
                .exec(&id, &["true"], 10)
                .is_ok_and(|answer| answer.exit_code == 0)
        };
        assert!(
            eventually(LIMIT, answers),
            "after {count} of {command:?}: {}",
            node.daemon().tail()
        );
        node.cri().stop_pod(pod.id()).expect("its shim answers");
        drop(pod);
    }
    assert_no_leaks_since(&node, &before);
}

/// As after a stall of a node: the kubelet has given up each probe of these ten seconds, and the daemon reads them all at once.
#[test]
fn probes_of_a_hundred_containers_hold_after_a_stall() {
    let node = TestNode::start();
    let before = node.leak_scan();
    let pods: Vec<_> = (0..5)
        .map(|number| node.pod(&format!("stalled-{number}")))
        .collect();
    let mut containers = Vec::new();
    for pod in &pods {
        containers.extend(
            (0..20).map(|number| pod.start_shell(&format!("c{number}"), "exec sleep 1000")),
        );
    }
    let stalled = SuspendedProcess::new(node.daemon().pid());
    for _ in 0..10 {
        thread::scope(|scope| {
            for id in &containers {
                let cri = node.cri().with_timeout(Duration::from_secs(1));
                scope.spawn(move || drop(cri.exec(id, &["true"], 1)));
            }
        });
    }
    drop(stalled);
    for id in &containers {
        let answers = || {
            node.cri()
                .exec(id, &["true"], 10)
                .is_ok_and(|answer| answer.exit_code == 0)
        };
        assert!(eventually(LIMIT, answers), "{}", node.daemon().tail());
    }
    for pod in &pods {
        node.cri().stop_pod(pod.id()).expect("its shim answers");
    }
    drop(pods);
    assert_no_leaks_since(&node, &before);
}

#[test]
fn commands_at_once_are_all_answered() {
    let node = TestNode::shared();
    let pod = node.pod("probes");
    let id = pod.start_shell("main", "exec sleep 1000");
    thread::scope(|scope| {
        let asked: Vec<_> = (0..80)
            .map(|_| scope.spawn(|| node.cri().exec(&id, &["echo", "hi"], 10)))
            .collect();
        for call in asked {
            let answer = call
                .join()
                .expect("a call does not panic")
                .expect("it has a place in time");
            assert_eq!(
                (answer.exit_code, answer.stdout.as_slice()),
                (0, &b"hi\n"[..])
            );
        }
    });
}

/// As a runtime on a busy node, which takes longer for the start than the command may last.
#[test]
fn time_of_a_command_counts_from_its_start() {
    let node = TestNode::start_configured(slow_to_exec);
    let pod = node.pod("slow");
    let id = pod.start_shell("main", "exec sleep 1000");
    let answer = node
        .cri()
        .exec(&id, &["echo", "hi"], 1)
        .expect("the command itself takes no time");
    assert_eq!(
        (answer.exit_code, answer.stdout.as_slice()),
        (0, &b"hi\n"[..])
    );
    let late = node
        .cri()
        .exec(&id, &["sleep", "1000"], 1)
        .expect_err("it lasts longer than it may");
    assert_eq!(late.code(), tonic::Code::DeadlineExceeded, "{late}");
}

/// In a pod whose containers share its process namespace a shim kills all processes of a container: this one does not.
#[test]
fn processes_of_a_shared_namespace_are_killed_although_their_shim_hangs() {
    let node =
        TestNode::start_configured(|_| "[containerd]\nshim_timeout_seconds = 2\n".to_owned());
    let pod = node.pod_with("hung", |config| {
        namespaces(config).set_pid(NamespaceMode::Pod)
    });
    let script = "sleep 31417 & exec sleep 31418";
    let id = pod.start_shell_with("main", script, |config| {
        context(config)
            .namespace_options
            .get_or_insert_default()
            .set_pid(NamespaceMode::Pod);
    });
    let running = |command: &str| processes::running(node.root().path(), command).is_some();
    assert!(eventually(LIMIT, || running("sleep 31417") && running("sleep 31418")));
    let suspended = SuspendedProcess::new(shim(&node, pod.id()));
    // The exit is reported by nobody yet.
    let _ = node.cri().stop(&id, 0);
    let killed = eventually(LIMIT, || !running("sleep 31417") && !running("sleep 31418"));
    assert!(killed, "{}", node.daemon().tail());
    drop(suspended);
    retry("StopContainer", || node.cri().stop(&id, 0));
    retry("StopPodSandbox", || node.cri().stop_pod(pod.id()));
}

/// As the probes of a kubelet, which continue for as long as the container runs: each that is not answered in
/// time leaves a command to end. No more are begun than have a place for their start.
#[test]
fn commands_in_a_container_whose_shim_hangs_leave_a_bounded_number() {
    const STARTS: usize = 4;
    let node =
        TestNode::start_configured(|_| "[containerd]\nshim_timeout_seconds = 1\n".to_owned());
    let pod = node.pod("hung");
    let id = pod.start_shell("main", "exec sleep 1000");
    let dir = node.root().run().join("tasks").join(&id);
    let begun = || {
        let entries = fs::read_dir(&dir)
            .expect("the container has a directory")
            .flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("exec-"))
            .count()
    };
    let suspended = SuspendedProcess::new(shim(&node, &id));
    let cri = node.cri().with_timeout(Duration::from_secs(6));
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| cri.exec(&id, &["true"], 1).expect_err("its shim hangs"));
        }
    });
    let left = begun();
    assert!(
        (1..=STARTS).contains(&left),
        "{left} commands were begun: {}",
        node.daemon().tail()
    );
    drop(suspended);
    assert!(
        eventually(LIMIT, || begun() == 0),
        "{} commands are left: {}",
        begun(),
        node.daemon().tail()
    );
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
}

/// Number of commands that a test runs at the same time.
const COMMANDS: usize = 20;

/// As of a command that starts a service: what the daemon and the shim hold for the output of its children, they let go of.
#[test]
fn commands_whose_children_keep_their_output_leave_no_descriptor() {
    let node = TestNode::start_configured(|_| "[cri]\nexec_drain_seconds = 1\n".to_owned());
    let pod = node.pod("services");
    let id = pod.start_shell("main", "exec sleep 1000");
    let dir = node.root().run().join("tasks").join(&id);
    let holders = [node.daemon().pid(), shim(&node, &id)];
    let descriptors = || holders.map(open_files);
    let children = || {
        let commands = cgroups::members(&id)
            .into_iter()
            .filter_map(processes::find);
        commands
            .filter(|process| process.command == "sleep 31540")
            .count()
    };
    let left = || {
        let entries = fs::read_dir(&dir)
            .expect("the container has a directory")
            .flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("exec-"))
            .count()
    };
    let at_once = |command: &[&str]| run_at_once(&node, &id, command);
    // What is opened for the first commands and stays is open after these.
    assert_eq!(at_once(&["true"]), vec![Ok(()); COMMANDS]);
    assert!(
        eventually(LIMIT, || left() == 0),
        "{} commands are left: {}",
        left(),
        node.daemon().tail()
    );
    let mut before = descriptors();
    let settled = eventually(LIMIT, || {
        thread::sleep(Duration::from_millis(500));
        let now = descriptors();
        let same = now == before;
        before = now;
        same
    });
    assert!(settled, "{before:#?}");
    let kept_open = Err(tonic::Code::FailedPrecondition);
    assert_eq!(
        at_once(&["sh", "-c", "sleep 31540 & echo begun"]),
        vec![kept_open; COMMANDS]
    );
    assert_eq!(
        children(),
        COMMANDS,
        "they are of the container, which runs on"
    );
    // A few are of connections that come and go.
    let few = COMMANDS / 4;
    let as_before = || {
        descriptors()
            .iter()
            .zip(&before)
            .all(|(now, before)| now.len() <= before.len() + few)
    };
    assert!(
        eventually(LIMIT, as_before),
        "before: {before:#?}, now: {:#?}: {}",
        descriptors(),
        node.daemon().tail()
    );
    assert!(
        eventually(LIMIT, || left() == 0),
        "{} commands are left: {}",
        left(),
        node.daemon().tail()
    );
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    node.cri().stop(&id, 0).expect("it can be stopped");
    assert_eq!(children(), 0, "they end with their container");
}

/// The files that a process has open, sorted.
fn open_files(pid: i32) -> Vec<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("it runs")
        .flatten();
    let mut targets: Vec<_> = open
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .collect();
    targets.sort();
    targets
}

/// Runs a command several times at the same time, as a kubelet's probes.
fn run_at_once(node: &TestNode, id: &str, command: &[&str]) -> Vec<Result<(), tonic::Code>> {
    thread::scope(|scope| {
        let call = || {
            node.cri()
                .exec(id, command, 60)
                .map(drop)
                .map_err(|status| status.code())
        };
        let calls: Vec<_> = (0..COMMANDS).map(|_| scope.spawn(call)).collect();
        calls
            .into_iter()
            .map(|call| call.join().expect("a call does not panic"))
            .collect()
    })
}

/// The shim hangs once a command has exited, and so does not close the output that a child of the command keeps open.
#[test]
fn exit_code_comes_although_the_shim_hangs_and_does_not_close_the_output() {
    const CHILD: &str = "sleep 31541";
    // Longer than a test waits for the end of a session.
    let node = TestNode::start_configured(|_| {
        "[cri]\nexec_drain_seconds = 6\n[containerd]\nshim_timeout_seconds = 300\n".to_owned()
    });
    let pod = node.pod("hangs");
    let id = pod.start_shell("main", "exec sleep 1000");
    let shim = shim(&node, &id);
    let command = ["sh", "-c", &format!("{CHILD} & echo begun; exit 5")];
    let mut session = StreamSession::exec(node.cri(), &id, &command, OUTPUTS);
    session.wait_stdout("begun");
    let has_exited = || {
        let members = cgroups::members(&id)
            .into_iter()
            .filter_map(processes::find);
        let child = members.into_iter().find(|process| process.command == CHILD);
        let parent = child.and_then(|child| processes::find(child.parent));
        parent.is_some_and(|parent| !parent.command.starts_with("sh "))
    };
    assert!(eventually(LIMIT, has_exited), "the command continues");
    // The shim reports the exit at once. Its output is cut off some seconds later.
    thread::sleep(Duration::from_secs(2));
    let suspended = SuspendedProcess::new(shim);
    assert_eq!(session.wait_exit_code(), 5);
    drop(suspended);
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
}
