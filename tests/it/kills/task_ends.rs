//! Kills during the exit of containers, during their removal, and during commands in them.

use std::fs;
use std::process::Command;

use nix::sys::signal::{Signal, kill as signal};
use nix::unistd::Pid;
use switchyard_crash_points::CrashPoint::*;
use switchyard_crash_points::Operation;
use switchyard_proto::cri::v1::{ContainerState, Mount, StatusRequest};
use switchyard_tests::host::cgroups::{self, ForeignProcess};
use switchyard_tests::host::{eventually, processes, random_name};
use switchyard_tests::node::{TestPod, log_content};
use switchyard_tests::prereq;
use switchyard_tests::streams::{PIPES, StreamSession};

use super::cases::KillCase;
use super::fixture::{KillFixture, KillPoint, LIMIT};
use super::tasks::start;

pub(super) const TASK_END_CASES: &[KillCase] = &[
    KillCase::of(end, Operation::EndTask),
    KillCase::of(stop, Operation::EndTask),
    KillCase::of(remove, Operation::RemoveTask),
    KillCase::at(remove_busy, &[(GroupNoted, 1)]),
    KillCase::at(
        remove_busy_after_restart,
        &[(GroupGone, 1), (GroupForgotten, 1)],
    ),
    KillCase::of(attach_once, Operation::AttachOnce),
    KillCase::of(exec_endless, Operation::StartExec),
    KillCase::of(exec, Operation::EndExec),
];

/// With a short shim timeout.
pub(super) const HUNG: &[KillCase] = &[KillCase::of(hang, Operation::KillHungShim)];

/// With a containerd that retains exits, behind a proxy.
pub(super) const KEPT_EXITS: &[KillCase] = &[
    KillCase::at(start, &[(ExitProtected, 1)]),
    KillCase::at(stop, &[(ExitUnprotected, 1)]),
    KillCase::at(remove_unrecorded, &[(ExitNoted, 1)]),
];

fn end(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("end");
    let dir = fixture
        .node
        .root()
        .path()
        .join(format!("host-{}", random_name()));
    fs::create_dir(&dir).expect("the root can be written");
    let script = "while [ ! -e /host/go ]; do sleep 0.02; done; echo last words; exit 7";
    let id = pod.start_shell_with("main", script, |config| {
        config.mounts = vec![Mount {
            host_path: dir.to_str().expect("the path is ASCII").to_owned(),
            container_path: "/host".to_owned(),
            ..Default::default()
        }];
    });
    fixture.killed_during(kill, || {
        fs::write(dir.join("go"), "").expect("the root can be written");
        Err::<(), _>(tonic::Status::unknown("nobody was asked"))
    });
    let status = fixture.node.cri().wait_exit(&id);
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (7, "Error"),
        "{kill:?}"
    );
    let lines = pod.wait_log("main", |lines| !lines.is_empty());
    assert_eq!(
        lines
            .iter()
            .map(|line| log_content(line))
            .collect::<Vec<_>>(),
        ["last words"],
        "{kill:?}"
    );
    drop(pod);
    fixture.assert_nothing_left(kill);
}

pub(super) fn stop(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("stop");
    let id = pod.start_shell(
        "main",
        "trap 'echo bye; exit 3' TERM; echo hello; while :; do sleep 0.02; done",
    );
    pod.wait_log("main", |lines| lines.len() == 1);
    fixture.killed_during(kill, || fixture.node.cri().stop(&id, 20));
    fixture
        .node
        .cri()
        .stop(&id, 20)
        .expect("it can be sent again");
    let status = fixture.node.cri().status(&id).expect("it has a status");
    assert_eq!(
        (status.state(), status.exit_code),
        (ContainerState::ContainerExited, 3),
        "{kill:?}"
    );
    assert_eq!(pod.log_text("main"), "hello\nbye", "{kill:?}");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// Both containers of a pod exit, and their shim reports neither exit.
fn hang(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("hang");
    let ids = ["first", "second"].map(|name| pod.start_shell(name, "exec sleep 1000"));
    let all = processes::belonging_to(fixture.node.root().path());
    let shim = all.iter().find(|process| {
        process.command.contains("containerd-shim") && process.command.contains(&ids[0])
    });
    signal(
        Pid::from_raw(shim.expect("they have a shim").pid),
        Signal::SIGSTOP,
    )
    .expect("it runs");
    for id in &ids {
        for pid in cgroups::members(id) {
            signal(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
        }
    }
    fixture.killed_during(kill, || fixture.node.cri().stop(&ids[0], 0));
    for id in &ids {
        let status = fixture.node.cri().wait_exit(id);
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (137, "Error"),
            "{kill:?}"
        );
    }
    drop(pod);
    fixture.assert_nothing_left(kill);
}

fn remove(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("remove");
    let id = pod.start_shell("main", "exit 3");
    let _status = fixture.node.cri().wait_exit(&id);
    fixture.killed_during(kill, || fixture.node.cri().remove(&id));
    fixture
        .node
        .cri()
        .remove(&id)
        .expect("it can be sent again");
    assert_eq!(
        fixture
            .node
            .cri()
            .containers()
            .expect("they can be listed")
            .len(),
        1,
        "{kill:?}"
    );
    fixture
        .node
        .cri()
        .remove(&id)
        .expect("a removal is idempotent");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// containerd cannot store the exit of the container that is removed.
fn remove_unrecorded(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("unrecorded");
    let id = pod.start_shell("main", "exec sleep 1000");
    fixture.set_full(&["Containers/Update"]);
    fixture.node.cri().stop(&id, 0).expect("it can be stopped");
    fixture.killed_during(kill, || fixture.node.cri().remove(&id));
    let status = fixture.node.cri().status(&id).expect("it has a status");
    assert_eq!(
        (status.state(), status.exit_code),
        (ContainerState::ContainerExited, 137),
        "{kill:?}: {status:?}"
    );
    fixture.set_full(&[]);
    fixture
        .node
        .cri()
        .remove(&id)
        .expect("it can be sent again");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// A container that has exited, with a foreign process in its cgroup.
fn ended_and_busy(fixture: &KillFixture, pod: &TestPod<'_>) -> (String, ForeignProcess) {
    let id = pod.start_shell("main", "exec sleep 1000");
    let group = cgroups::named(&id).pop().expect("it has a control group");
    let stray = ForeignProcess::begin(&group);
    // The runtime may report once that the cgroup is not empty.
    assert!(eventually(LIMIT, || fixture
        .node
        .cri()
        .stop(&id, 0)
        .is_ok()));
    (id, stray)
}

/// The cgroup stays until it is empty, and the daemon knows of it until then.
fn remove_busy(fixture: &KillFixture, kill: KillPoint) {
    if !deletes_busy() {
        return;
    }
    let pod = fixture.node.pod("busy");
    let (id, stray) = ended_and_busy(fixture, &pod);
    // The runtime may report once that the cgroup is not empty.
    fixture.killed_during(kill, || {
        fixture
            .node
            .cri()
            .remove(&id)
            .or_else(|_| fixture.node.cri().remove(&id))
    });
    fixture
        .node
        .cri()
        .remove(&id)
        .expect("it can be sent again");
    drop(pod);
    assert!(
        !cgroups::named(&id).is_empty(),
        "{kill:?}: somebody is in it"
    );
    drop(stray);
    fixture.assert_nothing_left(kill);
}

/// Returns whether runc deletes a container while somebody else's process is in its control group: from 1.3 on it does not, and
/// no group is left to be noted.
fn deletes_busy() -> bool {
    let output = Command::new(prereq::require("runc", "runc"))
        .arg("--version")
        .output()
        .expect("it can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.lines().next().and_then(|line| line.rsplit(' ').next());
    let mut numbers = version
        .into_iter()
        .flat_map(|version| version.split('.'))
        .map(|number| number.parse::<u32>().unwrap_or_default());
    let major = numbers.next().expect("a version has a number");
    (major, numbers.next().unwrap_or_default()) < (1, 3)
}

/// The next daemon knows of it too, and the one after that.
fn remove_busy_after_restart(fixture: &KillFixture, kill: KillPoint) {
    if !deletes_busy() {
        return;
    }
    let pod = fixture.node.pod("late");
    let (id, stray) = ended_and_busy(fixture, &pod);
    assert!(
        eventually(LIMIT, || fixture.node.cri().remove(&id).is_ok()),
        "its group is nobody's business"
    );
    drop(pod);
    fixture.node.daemon().kill9();
    fixture.node.daemon().restart();
    let reported = || {
        let status = fixture
            .node
            .cri()
            .runtime(async |mut client| client.status(StatusRequest { verbose: true }).await);
        status
            .expect("it is reported")
            .info
            .values()
            .any(|text| text.contains("cgroups.left") && text.contains(&id))
    };
    assert!(reported(), "{kill:?}: it is not among the facts");
    fixture.killed_during(kill, || {
        drop(stray);
        Err::<(), _>(tonic::Status::unknown("nobody was asked"))
    });
    fixture.assert_nothing_left(kill);
    assert!(
        eventually(LIMIT, || !reported()),
        "{kill:?}: it is still among the facts"
    );
}

/// The standard input of a container with `stdin_once` ends with the daemon that the client was attached to.
fn attach_once(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("once");
    let id = pod.start_shell_with("main", "echo ready; cat; echo bye; exit 3", |config| {
        (config.stdin, config.stdin_once) = (true, true);
    });
    pod.wait_log("main", |lines| lines.len() == 1);
    fixture.killed_during(kill, || {
        let mut client = StreamSession::attach(fixture.node.cri(), &id, PIPES);
        if kill.step == InputEnded {
            client.end_input();
        }
        client.wait_end();
        // A client that stays attached gets the container's exit status; one of a killed daemon gets no
        // status.
        if client.received.status.is_empty() {
            Err(tonic::Status::unknown("nobody reported"))
        } else {
            Ok(())
        }
    });
    assert_eq!(fixture.node.cri().wait_exit(&id).exit_code, 3, "{kill:?}");
    assert_eq!(pod.log_text("main"), "ready\nbye", "{kill:?}");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// A command whose client was disconnected by the kill does not run on, and leaves no file.
fn exec_endless(fixture: &KillFixture, kill: KillPoint) {
    fixture.killed_during(kill, || {
        fixture
            .node
            .cri()
            .exec(fixture.bystander(), &["sleep", "4321"], 0)
    });
    let ended = eventually(LIMIT, || {
        !fixture
            .bystander_processes()
            .iter()
            .any(|command| command.contains("4321"))
    });
    assert!(ended, "{kill:?}: {:?}", fixture.bystander_processes());
    assert_eq!(
        fixture.node.cri().sh(fixture.bystander(), "echo reached"),
        "reached"
    );
    fixture.assert_nothing_left(kill);
}

/// The cleanup happens after the answer, which may or may not arrive.
fn exec(fixture: &KillFixture, kill: KillPoint) {
    fixture.node.daemon().kill_at(&[(kill.step, kill.nth)]);
    if let Ok(answer) = fixture.node.cri().exec(fixture.bystander(), &["true"], 0) {
        assert_eq!(answer.exit_code, 0, "{kill:?}");
    }
    fixture.node.daemon().wait_killed();
    fixture.node.daemon().restart();
    fixture.assert_undisturbed(kill);
    assert_eq!(
        fixture.node.cri().sh(fixture.bystander(), "echo reached"),
        "reached"
    );
    fixture.assert_nothing_left(kill);
}
