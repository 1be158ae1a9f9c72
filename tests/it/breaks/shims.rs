//! A container's shim hangs or dies: no other container is affected, and the state of the container is
//! reported.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_crash_points::CrashPoint;
use switchyard_proto::cri::v1::{ContainerState, StatusRequest};
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::prereq;
use tonic::Code;

use super::{
    FAST_CALL_LIMIT, LIMIT, SuspendedProcess, assert_no_leaks_since, refused, retry, shim,
};

mod shared;

pub(super) use shared::node_of_slow_shims;

/// A short shim timeout, so that a test need not wait for the default.
const CONF: &str = "[containerd]\nshim_timeout_seconds = 2\n";
/// The same, and the daemon scans for orphaned shims all the time.
const SCANNING_CONF: &str = "[containerd]\nshim_timeout_seconds = 2\n[recovery]\nlook_seconds = 1\ngrace_milliseconds = 200\n";
/// Time for a call that gives up on a shim, with a margin for a slow machine.
const SOON: Duration = Duration::from_secs(20);

/// Time for which a client waits for the exit of a container whose shim hangs.
const END_LIMIT: Duration = Duration::from_secs(4);

#[test]
fn hung_shim_blocks_no_other_container_and_is_killed_when_unused() {
    let node = TestNode::start_with(CONF, |_| {});
    // All containers of a pod have one shim.
    let pod = node.pod("hung");
    let others = node.pod("others");
    let id = pod.start_shell("hung", "exec sleep 1000");
    let other = others.start_shell("other", "exec sleep 1000");
    let soon = node.cri().with_timeout(SOON);
    let cri = node.cri().with_timeout(FAST_CALL_LIMIT);
    let late = &[Code::DeadlineExceeded];
    let mut frozen = None;
    let command = ["sh", "-c", "sleep 3.1434; exit 7"];
    std::thread::scope(|scope| {
        // A command that runs already ends while the shim hangs, and its client has set no timeout.
        let ends = scope.spawn(|| {
            soon.exec(&id, &command, 0)
                .expect_err("nobody reports its end")
        });
        let begun = || has_begun(&node, &id, &command.join(" "));
        assert!(eventually(LIMIT, begun), "the command does not run");
        // Once it runs again, the shim reports the exit at once.
        std::thread::sleep(Duration::from_millis(500));
        frozen = Some(SuspendedProcess::new(shim(&node, &id)));
        // A command line that no other test uses: the test checks that it is not left running.
        let not_started = &[Code::Unavailable];
        let exec = scope.spawn(|| {
            refused(
                "ExecSync",
                soon.exec(&id, &["sleep", "31416"], 1),
                not_started,
            )
        });
        let limits = scope.spawn(|| {
            refused(
                "UpdateContainerResources",
                soon.update(&id, some_limits()),
                late,
            )
        });
        for _ in 0..5 {
            assert_eq!(
                cri.containers()
                    .expect("they are answered from the table")
                    .len(),
                2
            );
            assert_eq!(
                cri.status(&id).expect("it has a status").state(),
                ContainerState::ContainerRunning
            );
            cri.stats(&id).expect("it is read from control groups");
            assert_eq!(node.cri().sh(&other, "echo reached"), "reached");
        }
        let status = ends.join().expect("a call does not panic");
        assert!(
            status.code() == Code::DeadlineExceeded && status.message().contains("has exited"),
            "{status}"
        );
        exec.join().expect("a call does not panic");
        limits.join().expect("a call does not panic");
    });
    assert_eq!(others.run_shell("echo more", |_| {}), "more");
    assert_eq!(node.pod("more").run_shell("echo more", |_| {}), "more");
    drop(frozen);
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    let running = || processes::running(node.root().path(), "sleep 31416").is_some();
    assert!(
        eventually(LIMIT, || !running()),
        "the command that nobody waits for still runs"
    );

    assert!(node.has_logged("a shim does not answer: its containers run on"));
    let log = std::fs::read_to_string(node.root().daemon_log()).expect("the daemon writes a log");
    assert_eq!(
        log.matches("a shim does not answer: its containers run on")
            .count(),
        1,
        "{}",
        node.daemon().tail()
    );

    assert_unused_hung_shim_is_killed(&node, pod.id(), &id);
    assert_eq!(node.cri().sh(&other, "echo reached"), "reached");
}

/// Returns whether a command runs in a container, and the runtime has reported it to the shim.
fn has_begun(node: &TestNode, container: &str, command: &str) -> bool {
    let all = processes::belonging_to(node.root().path());
    let runs = all.iter().any(|process| process.command == command);
    runs && !all.iter().any(|process| {
        process.command.contains("exec --process") && process.command.contains(container)
    })
}

/// A hung shim that serves no running process is of no use: it is killed, and the exit is reported with its real
/// status.
fn assert_unused_hung_shim_is_killed(node: &TestNode, pod: &str, id: &str) {
    let hung = shim(node, id);
    let _frozen = SuspendedProcess::new(hung);
    retry("StopContainer", || node.cri().stop(id, 0));
    let status = node.cri().status(id).expect("it has a status");
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (137, "Error"),
        "{status:?}"
    );
    assert!(
        processes::find(hung).is_none_or(|process| process.zombie),
        "it runs"
    );
    retry("RemoveContainer", || node.cri().remove(id));
    retry("StopPodSandbox", || node.cri().stop_pod(pod));
}

/// Both containers exit while their shim hangs, and only the exit of the first is waited for long enough.
/// Without the shim nobody could report the exit of the second.
#[test]
fn exit_code_survives_kill_of_hung_shim() {
    let node = TestNode::start_with(CONF, |_| {});
    let pod = node.pod("hung");
    let codes = [("first", 5), ("second", 0)];
    let ids = codes.map(|(name, code)| pod.start_shell(name, &script_exiting_with(name, code)));
    for (name, _) in codes {
        pod.wait_log(name, |lines| !lines.is_empty());
    }
    let hung = shim(&node, &ids[0]);
    let frozen = SuspendedProcess::new(hung);
    let end = |(name, code)| {
        let all = processes::belonging_to(node.root().path());
        let main = all
            .iter()
            .find(|process| process.command.contains(&script_exiting_with(name, code)));
        let main = main.expect("it runs").pid;
        kill(Pid::from_raw(main), Signal::SIGTERM).expect("it runs");
        assert!(
            eventually(LIMIT, || processes::find(main)
                .is_some_and(|process| process.zombie)),
            "{name} does not end"
        );
    };
    end(codes[0]);
    // The shim has this long to report the exit of the first.
    std::thread::sleep(Duration::from_secs(2));
    end(codes[1]);
    assert!(
        eventually(LIMIT, || processes::find(hung)
            .is_none_or(|process| process.zombie)),
        "it is not killed: {}",
        node.daemon().tail()
    );
    drop(frozen);
    for (id, (name, code)) in ids.iter().zip(codes) {
        let status = node.cri().wait_exit(id);
        assert_eq!(status.exit_code, code, "{name}: {status:?}");
    }
}

/// A script that runs until SIGTERM, and exits with this code.
pub(super) fn script_exiting_with(name: &str, code: i32) -> String {
    format!("trap 'exit {code}' TERM; echo {name}; while :; do sleep 0.05; done")
}

#[test]
fn hung_shim_of_a_running_container_is_not_killed() {
    let node = TestNode::start_with(CONF, |_| {});
    let pod = node.pod("hung");
    // All containers of a pod have one shim.
    let first = pod.start_shell("first", "exec sleep 31430");
    let second = pod.start_shell("second", "exec sleep 31431");
    let before = node.cri().status(&second).expect("it has a status");
    let frozen = SuspendedProcess::new(shim(&node, &first));
    refused(
        "StopContainer",
        node.cri().stop(&first, 0),
        &[Code::DeadlineExceeded],
    );
    let reported = || {
        let log = std::fs::read_to_string(node.root().daemon_log()).unwrap_or_default();
        log.contains("a shim does not answer: its containers run on")
    };
    assert!(eventually(LIMIT, reported), "{}", node.daemon().tail());
    let status = node
        .cri()
        .runtime(async |mut client| client.status(StatusRequest { verbose: true }).await);
    let info = status.expect("it is reported").info;
    assert!(
        info.values()
            .any(|text| text.contains("shims.silent") && text.contains(&first)),
        "{info:?}"
    );
    wait_silent_shims(&node, &[&first]);
    assert_eq!(node.cri().status(&second).expect("it has a status"), before);
    drop(frozen);
    retry("StopContainer", || node.cri().stop(&first, 0));
    wait_silent_shims(&node, &[]);
    assert_eq!(
        node.cri()
            .status(&first)
            .expect("it has a status")
            .exit_code,
        137
    );
    assert_eq!(node.cri().status(&second).expect("it has a status"), before);
    assert_eq!(node.cri().sh(&second, "echo reached"), "reached");
}

/// Only the objects that such a shim serves name it, and containerd does not answer for these while the shim
/// hangs.
#[test]
fn hung_shim_is_not_killed_while_it_serves_another_container() {
    let node = TestNode::start_with(SCANNING_CONF, |_| {});
    let pod = node.pod("hung");
    let first = pod.start_shell("first", "exec sleep 31450");
    let second = pod.start_shell("second", "exec sleep 31451");
    let before = node.cri().status(&second).expect("it has a status");
    let shared = shim(&node, &first);
    node.cri().remove(&first).expect("it can be removed");
    let frozen = SuspendedProcess::new(shared);
    assert!(
        eventually(LIMIT, || scan_count(&node, &second) >= 3),
        "nobody looks: {}",
        node.daemon().tail()
    );
    drop(frozen);
    assert_eq!(node.cri().sh(&second, "echo reached"), "reached");
    assert_eq!(node.cri().status(&second).expect("it has a status"), before);
}

/// A scan takes long while another shim hangs. What a shim serves at the end of the scan may differ from what
/// it served at the beginning.
#[test]
fn shim_with_changing_containers_is_not_killed_during_its_check() {
    let node = TestNode::start_with(SCANNING_CONF, |_| {});
    let hung = node.pod("hung");
    let pod = node.pod("shared");
    let hanging = hung.start_shell("hung", "exec sleep 31452");
    let first = pod.start_shell("first", "exec sleep 31453");
    let mut latest = pod.start_shell("next-0", "exec sleep 31454");
    let shared = processes::find(shim(&node, &first)).expect("it runs");
    node.cri().remove(&first).expect("it can be removed");
    let _frozen = SuspendedProcess::new(shim(&node, &hanging));
    let mut number = 0;
    let looked = eventually(LIMIT, || {
        number += 1;
        let next = pod.start_shell(&format!("next-{number}"), "exec sleep 31454");
        node.cri().remove(&latest).expect("it can be removed");
        latest = next;
        scan_count(&node, &hanging) >= 4
    });
    assert!(looked, "nobody looks: {}", node.daemon().tail());
    assert_eq!(node.cri().sh(&latest, "echo reached"), "reached");
    let now = processes::find(shared.pid).filter(|process| !process.zombie);
    assert_eq!(
        now.map(|process| process.started),
        Some(shared.started),
        "{}",
        node.daemon().tail()
    );
}

/// Number of times that containerd has logged a hanging shim of a task, which it does when the daemon scans
/// for orphaned shims.
fn scan_count(node: &TestNode, task: &str) -> usize {
    let log = std::fs::read_to_string(node.root().state().join("containerd/containerd.log"));
    log.expect("containerd writes a log")
        .lines()
        .filter(|line| line.contains(task))
        .filter(|line| line.contains("get state for") || line.contains("converting task"))
        .count()
}

fn some_limits() -> switchyard_proto::cri::v1::LinuxContainerResources {
    switchyard_proto::cri::v1::LinuxContainerResources {
        memory_limit_in_bytes: 64 << 20,
        ..Default::default()
    }
}

#[test]
fn daemon_starts_with_a_hung_shim_and_recovers_with_it() {
    let node = TestNode::start_with(CONF, |_| {});
    let pod = node.pod("hung");
    let others = node.pod("others");
    let id = pod.start_shell("hung", "exec sleep 31419");
    let other = others.start_shell("other", "exec sleep 1000");
    let frozen = SuspendedProcess::new(shim(&node, &id));
    node.daemon().kill9();
    node.daemon().restart();
    let cri = node.cri().with_timeout(FAST_CALL_LIMIT);
    assert_eq!(
        cri.containers()
            .expect("they are answered from the table")
            .len(),
        2
    );
    assert_eq!(
        cri.status(&id).expect("it has a status").state(),
        ContainerState::ContainerRunning
    );
    assert_eq!(node.cri().sh(&other, "echo reached"), "reached");
    drop(frozen);
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");

    // The process is one that this daemon has not started, and is signalled without the shim all the same.
    let frozen = SuspendedProcess::new(shim(&node, &id));
    let patient = node.cri().with_timeout(END_LIMIT);
    refused(
        "StopContainer",
        patient.stop(&id, 0),
        &[Code::DeadlineExceeded],
    );
    assert_eq!(
        processes::running(node.root().path(), "sleep 31419"),
        None,
        "it was not signalled"
    );
    drop(frozen);
    node.cri().stop(&id, 0).expect("it can be stopped");
    assert_eq!(
        node.cri().status(&id).expect("it has a status").exit_code,
        137
    );
}

#[test]
fn start_with_many_hung_shims_queries_only_those_needed_in_parallel() {
    let node = TestNode::start_with(CONF, |_| {});
    let pods: Vec<_> = (0..6)
        .map(|number| node.pod(&format!("hung-{number}")))
        .collect();
    let ids: Vec<_> = (0..6)
        .map(|number| pods[number].start_shell("main", &format!("exec sleep 3142{number}")))
        .collect();
    let others = node.pod("others");
    let other = others.start_shell("other", "exec sleep 1000");
    let frozen: Vec<_> = ids
        .iter()
        .map(|id| SuspendedProcess::new(shim(&node, id)))
        .collect();
    node.daemon().kill9();
    // Half of the hung shims would have an exit to report.
    for process in processes::belonging_to(node.root().path()) {
        if ["sleep 31420", "sleep 31421", "sleep 31422"].contains(&process.command.as_str()) {
            kill(Pid::from_raw(process.pid), Signal::SIGKILL).expect("it runs");
        }
    }
    node.daemon().restart();
    // Shims whose process is seen running are not queried. The others are queried one by one, and three of
    // them do not answer.
    assert!(
        node.has_logged("shims_asked=3 shims_silent=3 "),
        "{}",
        node.daemon().tail()
    );
    let cri = node.cri().with_timeout(FAST_CALL_LIMIT);
    for id in ids.iter().chain([&other]) {
        assert_eq!(
            cri.status(id).expect("it has a status").state(),
            ContainerState::ContainerRunning
        );
    }
    assert_eq!(node.cri().sh(&other, "echo reached"), "reached");
    drop(frozen);
    for id in &ids[..3] {
        assert_eq!(node.cri().wait_exit(id).exit_code, 137);
    }
    for id in &ids[3..] {
        assert_eq!(node.cri().sh(id, "echo reached"), "reached");
    }
}

#[test]
fn shim_death_is_reported_as_container_exit_and_leaves_nothing_behind() {
    let node = TestNode::start_with(CONF, |_| {});
    let dead = node.pod("dead");
    let silent = node.pod("silent");
    let others = node.pod("others");
    let before = node.leak_scan();
    let other = others.start_shell("other", "exec sleep 1000");
    let running = dead.start_shell("running", "exec sleep 31417");
    kill(Pid::from_raw(shim(&node, &running)), Signal::SIGKILL).expect("it runs");
    // Its shim is stopped when this container exits, and dies before it could report the exit.
    let ended = silent.start_shell("ended", "exec sleep 31418");
    let frozen = SuspendedProcess::new(shim(&node, &ended));
    // The shell executes the command a moment after its start.
    let main = || processes::running(node.root().path(), "sleep 31418");
    assert!(eventually(LIMIT, || main().is_some()), "the command runs");
    let main = main();
    kill(Pid::from_raw(main.expect("it runs").pid), Signal::SIGKILL).expect("it runs");
    kill(frozen.0, Signal::SIGKILL).expect("it runs");
    for id in [&running, &ended] {
        let status = node.cri().wait_exit(id);
        assert_ne!(status.exit_code, 0, "{status:?}");
        assert!(
            !status.reason.is_empty() && status.finished_at > 0,
            "{status:?}"
        );
        let status = refused(
            "ExecSync",
            node.cri().exec(id, &["true"], 5),
            &[Code::FailedPrecondition],
        );
        assert!(status.message().contains(id.as_str()), "{status}");
    }
    let runs = |command| processes::running(node.root().path(), command).is_some();
    let alive = || runs("sleep 31417") || runs("sleep 31418");
    assert!(
        eventually(LIMIT, || !alive()),
        "a process outlives its shim"
    );
    assert_eq!(node.cri().sh(&other, "echo reached"), "reached");
    for id in [&running, &ended] {
        node.cri()
            .stop(id, 5)
            .expect("what has ended can be stopped");
        node.cri().remove(id).expect("it can be removed");
    }
    node.cri().remove(&other).expect("it can be removed");
    assert_no_leaks_since(&node, &before);
    for pod in [&dead, &silent] {
        assert_eq!(pod.run_shell("echo more", |_| {}), "more");
    }
}

/// A shim waits for the reader of a command's output, and answers nobody meanwhile. When containerd starts it
/// kills shims that do not answer.
#[test]
fn exec_interrupted_by_daemon_and_containerd_kill_keeps_the_container() {
    let node = TestNode::start();
    let pod = node.pod("cut");
    let id = pod.start_shell("main", "exec sleep 1000");
    node.daemon().kill_at(&[(CrashPoint::ExecAsked, 1)]);
    node.cri()
        .exec(&id, &["true"], 0)
        .expect_err("nobody answers");
    node.daemon().wait_killed();
    node.kill_managed("containerd");
    node.daemon().restart();
    let status = node.cri().status(&id).expect("it has a status");
    assert_eq!(
        (status.state(), status.exit_code),
        (ContainerState::ContainerRunning, 0)
    );
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
}

/// Waits until the shims of these containers alone are counted as silent, and checks that they are named.
#[track_caller]
fn wait_silent_shims(node: &TestNode, containers: &[&str]) {
    let count = containers.len();
    let line = format!("switchyard_troubles{{kind=\"silent_shim\"}} {count}\n");
    let counted = || node.daemon().get("/metrics").1.contains(&line);
    assert!(eventually(LIMIT, counted), "{line}");
    let report = node.daemon().get("/statusz").1;
    for id in containers {
        assert!(report.contains(&format!("{id} (")), "{id}: {report}");
    }
}
