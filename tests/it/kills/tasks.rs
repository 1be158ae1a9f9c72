//! Kills during the requests about containers, and during their exit.

use std::path::Path;
use std::{fs, thread};

use nix::sys::signal::{Signal, kill as signal};
use nix::unistd::Pid;
use switchyard_crash_points::CrashPoint::*;
use switchyard_crash_points::Operation;
use switchyard_proto::cri::v1::{ContainerConfig, ContainerMetadata, ContainerState, Mount, StatusRequest};
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_tests::cri::{image_spec, limits};
use switchyard_tests::host::cgroups::{self, ForeignProcess};
use switchyard_tests::host::{block_device, eventually, processes, random_name};
use switchyard_tests::node::{TestPod, log_content};
use switchyard_tests::streams::{PIPES, StreamSession};

use super::cases::KillCase;
use super::fixture::{KillFixture, KillPoint, LIMIT};

pub(super) const TASK_START_CASES: &[KillCase] = &[
    KillCase::of(create, Operation::CreateTask),
    KillCase::of(create_with_volume, Operation::FillVolume),
    KillCase::of(remove_volume, Operation::RemoveVolume),
    KillCase::of(start, Operation::StartTask),
    KillCase::of(await_start_outcome, Operation::AwaitStart),
    KillCase::at(start_that_fails, &[(StartRefused, 1)]),
    KillCase::at(start_without_containerd, &[(ExitNoted, 1)]),
    KillCase::of(update, Operation::UpdateTask),
    KillCase::of(update_twice, Operation::RollBackUpdate),
];

pub(super) const TASK_END_CASES: &[KillCase] = &[
    KillCase::of(end, Operation::EndTask),
    KillCase::of(stop, Operation::EndTask),
    KillCase::of(remove, Operation::RemoveTask),
    KillCase::at(remove_busy, &[(GroupNoted, 1)]),
    KillCase::at(remove_busy_after_restart, &[(GroupGone, 1), (GroupForgotten, 1)]),
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

/// An image as a volume, so that creation and start take every step.
fn image_volume(fixture: &KillFixture) -> Mount {
    let image = Some(image_spec(&fixture.volumes()));
    Mount { container_path: "/image".to_owned(), readonly: true, image, ..Default::default() }
}

/// A container whose creation and start take every step.
pub(super) fn config(fixture: &KillFixture) -> ContainerConfig {
    let mut config = fixture.node.container("main", &["sh", "-c", "echo started; exec sleep 1000"]);
    config.image = Some(image_spec(&fixture.volumes()));
    config.mounts = vec![image_volume(fixture)];
    config
}

fn create(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("create");
    let config = config(fixture);
    fixture.killed_during(kill, || pod.try_create(&config));
    let id = pod.create(&config);
    assert_eq!(pod.create(&config), id, "{kill:?}");
    assert_eq!(fixture.node.cri().containers().expect("they can be listed").len(), 2, "{kill:?}");
    fixture.node.cri().start(&id).expect("it can be started");
    assert_eq!(
        fixture.node.cri().sh(&id, "touch /data/x && test -e /image/bin/sh && echo reached"),
        "reached"
    );
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// A container with the named volume `kept`, which is initialised with a file of the image.
pub(super) fn create_named(fixture: &KillFixture, pod: &TestPod<'_>) -> Result<String, tonic::Status> {
    let config = old::ContainerConfig {
        metadata: Some(ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
        image: Some(image_spec(&fixture.volumes())),
        command: ["sleep", "1000"].map(str::to_owned).to_vec(),
        mounts: vec![old::Mount {
            container_path: "/bin".to_owned(),
            name: "kept".to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    };
    fixture.node.cri().create_v1alpha2(pod.id(), &config)
}

fn create_with_volume(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("named");
    fixture.killed_during(kill, || create_named(fixture, &pod));
    let id = create_named(fixture, &pod).expect("it can be sent again");
    fixture.node.cri().start(&id).expect("it can be started");
    assert_eq!(fixture.node.cri().sh(&id, "echo x > /bin/new; ls /bin | grep -cx -e new -e sh"), "2");
    drop(pod);
    fixture.node.cri().remove_volume("kept").expect("nothing has it");
    fixture.assert_nothing_left(kill);
}

fn remove_volume(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("unnamed");
    create_named(fixture, &pod).expect("it is well formed");
    drop(pod);
    fixture.killed_during(kill, || fixture.node.cri().remove_volume("kept"));
    fixture.node.cri().remove_volume("kept").expect("it can be sent again");
    fixture.assert_nothing_left(kill);
}

pub(super) fn start(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("start");
    let id = pod.create(&config(fixture));
    fixture.killed_during(kill, || fixture.node.cri().start(&id));
    assert_starts(fixture, kill, pod, &id);
}

/// The daemon that waits for the outcome of a predecessor's start is killed as well.
pub(super) fn await_start_outcome(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("settle");
    let id = pod.create(&fixture.node.container("main", &["sh", "-c", "echo started; exec sleep 1000"]));
    fixture.two_daemons_killed_during(TaskCreated, kill, || fixture.node.cri().start(&id));
    assert_starts(fixture, kill, pod, &id);
}

/// The container runs, or can be started; it writes its output once, and can be removed.
#[track_caller]
fn assert_starts(fixture: &KillFixture, kill: KillPoint, pod: TestPod<'_>, id: &str) {
    let status = fixture.node.cri().status(id).expect("it has a status");
    match status.state() {
        // Unknown while the outcome of the interrupted start is; the repeated one waits for it.
        ContainerState::ContainerCreated | ContainerState::ContainerUnknown => {
            fixture.node.cri().start(id).expect("it can be sent again");
        }
        ContainerState::ContainerRunning => {}
        ContainerState::ContainerExited => panic!("{kill:?} has ended it: {status:?}"),
    }
    assert_eq!(fixture.node.cri().sh(id, "echo reached"), "reached");
    pod.wait_log("main", |lines| !lines.is_empty());
    fixture.node.cri().stop(id, 0).expect("it can be stopped");
    assert_eq!(pod.log_text("main"), "started", "{kill:?}");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

fn start_that_fails(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("vain");
    let mut config = fixture.node.container("main", &["/there/is/no/such/program"]);
    config.mounts = vec![image_volume(fixture)];
    let id = pod.create(&config);
    fixture.killed_during(kill, || fixture.node.cri().start(&id));
    let status = fixture.node.cri().status(&id).expect("it has a status");
    assert_eq!(status.state(), ContainerState::ContainerExited, "{kill:?}: {status:?}");
    assert_ne!(status.exit_code, 0, "{kill:?}");
    assert!(status.message.contains("no such file"), "{kill:?}: {status:?}");
    let stage = fixture.node.root().run().join("stage").join(&id);
    assert!(eventually(LIMIT, || !stage.exists()), "{kill:?}: the image is still mounted");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// containerd is killed during a start, so that the failure cannot be reported, and then the daemon is
/// killed.
pub(super) fn start_without_containerd(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("without");
    let id = pod.create(&fixture.node.container("main", &["sleep", "1000"]));
    let containerd = fixture.node.containerd_pid();
    let staged = fixture.node.root().run().join("tasks").join(&id);
    fixture.killed_during(kill, || {
        signal(containerd, Signal::SIGSTOP).expect("it runs");
        thread::scope(|scope| {
            let start = scope.spawn(|| fixture.node.cri().start(&id));
            assert!(eventually(LIMIT, || staged.exists()), "nothing is made for the start");
            signal(containerd, Signal::SIGKILL).expect("it is there");
            let answer = start.join().expect("it does not panic");
            // An external containerd is not restarted by the daemon.
            if let Some(mut upstream) = fixture.node.external_containerd() {
                upstream.restart();
            }
            answer
        })
    });
    let status = fixture.node.cri().status(&id).expect("it has a status");
    assert_eq!(
        (status.state(), status.reason.as_str()),
        (ContainerState::ContainerExited, "StartError"),
        "{kill:?}: {status:?}"
    );
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// The limits that are reported afterwards are in force, be they the old or the new ones; the repeated
/// request sets the new ones.
fn update(fixture: &KillFixture, kill: KillPoint) {
    update_during_kill(fixture, kill, |id, wanted| {
        fixture.killed_during(kill, || fixture.node.cri().update_v1alpha2(id, wanted))
    });
}

/// The next daemon is killed as well, while it applies the recorded limits.
fn update_twice(fixture: &KillFixture, kill: KillPoint) {
    update_during_kill(fixture, kill, |id, wanted| {
        fixture
            .two_daemons_killed_during(TaskLimited, kill, || fixture.node.cri().update_v1alpha2(id, wanted));
    });
}

fn update_during_kill(
    fixture: &KillFixture,
    kill: KillPoint,
    cut: impl FnOnce(&str, old::LinuxContainerResources),
) {
    let pod = fixture.node.pod("update");
    let before = 64 << 20;
    let after = 96 << 20;
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        (limits(config).memory_limit_in_bytes, limits(config).oom_score_adj) = (before, 500);
    });
    let wanted = old::LinuxContainerResources {
        memory_limit_in_bytes: after,
        oom_score_adj: 600,
        blkio_device_read_i_ops: vec![old::ThrottleDevice { path: block_device(), rate: 777 }],
        ..Default::default()
    };
    let reported = || {
        let status = fixture.node.cri().status(&id).expect("it has a status");
        let limits = status.resources.and_then(|limits| limits.linux).expect("limits are reported");
        (limits.memory_limit_in_bytes, limits.oom_score_adj)
    };
    cut(&id, wanted.clone());
    let file = cgroups::named(&id)
        .iter()
        .flat_map(|group| [group.join("memory.limit_in_bytes"), group.join("memory.max")])
        .find(|file| file.exists())
        .expect("its memory is limited");
    let procs = file.with_file_name("cgroup.procs");
    let number = |file: &Path| -> i64 {
        fs::read_to_string(file).expect("it is there").trim().parse().expect("it is one number")
    };
    let score = || number(Path::new(&format!("/proc/{}/oom_score_adj", number(&procs))));
    let throttled = || {
        let files = cgroups::named(&id)
            .into_iter()
            .flat_map(|group| ["blkio.throttle.read_iops_device", "io.max"].map(|name| group.join(name)));
        files.filter_map(|file| fs::read_to_string(file).ok()).any(|text| text.contains("777"))
    };
    let in_force = || (number(&file), score());
    assert!([(before, 500), (after, 600)].contains(&reported()), "{kill:?}: {:?}", reported());
    let agree = eventually(LIMIT, || in_force() == reported() && throttled() == (reported().0 == after));
    assert!(agree, "{kill:?}: {:?} is reported, and {:?} in force", reported(), in_force());
    fixture.node.cri().update_v1alpha2(&id, wanted).expect("it can be sent again");
    assert_eq!((reported(), in_force()), ((after, 600), (after, 600)), "{kill:?}");
    assert!(throttled(), "{kill:?}");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

fn end(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("end");
    let dir = fixture.node.root().path().join(format!("host-{}", random_name()));
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
    assert_eq!((status.exit_code, status.reason.as_str()), (7, "Error"), "{kill:?}");
    let lines = pod.wait_log("main", |lines| !lines.is_empty());
    assert_eq!(lines.iter().map(|line| log_content(line)).collect::<Vec<_>>(), ["last words"], "{kill:?}");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

pub(super) fn stop(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("stop");
    let id =
        pod.start_shell("main", "trap 'echo bye; exit 3' TERM; echo hello; while :; do sleep 0.02; done");
    pod.wait_log("main", |lines| lines.len() == 1);
    fixture.killed_during(kill, || fixture.node.cri().stop(&id, 20));
    fixture.node.cri().stop(&id, 20).expect("it can be sent again");
    let status = fixture.node.cri().status(&id).expect("it has a status");
    assert_eq!((status.state(), status.exit_code), (ContainerState::ContainerExited, 3), "{kill:?}");
    assert_eq!(pod.log_text("main"), "hello\nbye", "{kill:?}");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// Both containers of a pod exit, and their shim reports neither exit.
fn hang(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("hang");
    let ids = ["first", "second"].map(|name| pod.start_shell(name, "exec sleep 1000"));
    let all = processes::belonging_to(fixture.node.root().path());
    let shim = all
        .iter()
        .find(|process| process.command.contains("containerd-shim") && process.command.contains(&ids[0]));
    signal(Pid::from_raw(shim.expect("they have a shim").pid), Signal::SIGSTOP).expect("it runs");
    for id in &ids {
        for pid in cgroups::members(id) {
            signal(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
        }
    }
    fixture.killed_during(kill, || fixture.node.cri().stop(&ids[0], 0));
    for id in &ids {
        let status = fixture.node.cri().wait_exit(id);
        assert_eq!((status.exit_code, status.reason.as_str()), (137, "Error"), "{kill:?}");
    }
    drop(pod);
    fixture.assert_nothing_left(kill);
}

fn remove(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("remove");
    let id = pod.start_shell("main", "exit 3");
    let _status = fixture.node.cri().wait_exit(&id);
    fixture.killed_during(kill, || fixture.node.cri().remove(&id));
    fixture.node.cri().remove(&id).expect("it can be sent again");
    assert_eq!(fixture.node.cri().containers().expect("they can be listed").len(), 1, "{kill:?}");
    fixture.node.cri().remove(&id).expect("a removal is idempotent");
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
    fixture.node.cri().remove(&id).expect("it can be sent again");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// A container that has exited, with a foreign process in its cgroup.
fn ended_and_busy(fixture: &KillFixture, pod: &TestPod<'_>) -> (String, ForeignProcess) {
    let id = pod.start_shell("main", "exec sleep 1000");
    let group = cgroups::named(&id).pop().expect("it has a control group");
    let stray = ForeignProcess::begin(&group);
    // The runtime may report once that the cgroup is not empty.
    assert!(eventually(LIMIT, || fixture.node.cri().stop(&id, 0).is_ok()));
    (id, stray)
}

/// The cgroup stays until it is empty, and the daemon knows of it until then.
fn remove_busy(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("busy");
    let (id, stray) = ended_and_busy(fixture, &pod);
    // The runtime may report once that the cgroup is not empty.
    fixture
        .killed_during(kill, || fixture.node.cri().remove(&id).or_else(|_| fixture.node.cri().remove(&id)));
    fixture.node.cri().remove(&id).expect("it can be sent again");
    drop(pod);
    assert!(!cgroups::named(&id).is_empty(), "{kill:?}: somebody is in it");
    drop(stray);
    fixture.assert_nothing_left(kill);
}

/// The next daemon knows of it too, and the one after that.
fn remove_busy_after_restart(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("late");
    let (id, stray) = ended_and_busy(fixture, &pod);
    assert!(eventually(LIMIT, || fixture.node.cri().remove(&id).is_ok()), "its group is nobody's business");
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
    assert!(eventually(LIMIT, || !reported()), "{kill:?}: it is still among the facts");
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
    fixture.killed_during(kill, || fixture.node.cri().exec(fixture.bystander(), &["sleep", "4321"], 0));
    let ended =
        eventually(LIMIT, || !fixture.bystander_processes().iter().any(|command| command.contains("4321")));
    assert!(ended, "{kill:?}: {:?}", fixture.bystander_processes());
    assert_eq!(fixture.node.cri().sh(fixture.bystander(), "echo reached"), "reached");
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
    assert_eq!(fixture.node.cri().sh(fixture.bystander(), "echo reached"), "reached");
    fixture.assert_nothing_left(kill);
}
