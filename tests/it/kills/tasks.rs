//! Kills during the creation, the start and the update of containers.

use std::path::Path;
use std::{fs, thread};

use nix::sys::signal::{Signal, kill as signal};
use switchyard_crash_points::CrashPoint::*;
use switchyard_crash_points::Operation;
use switchyard_proto::cri::v1::{ContainerConfig, ContainerMetadata, ContainerState, Mount};
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_tests::cri::{image_spec, limits};
use switchyard_tests::host::cgroups;
use switchyard_tests::host::{block_device, eventually};
use switchyard_tests::node::TestPod;

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

/// An image as a volume, so that creation and start take every step.
fn image_volume(fixture: &KillFixture) -> Mount {
    let image = Some(image_spec(&fixture.volumes()));
    Mount {
        container_path: "/image".to_owned(),
        readonly: true,
        image,
        ..Default::default()
    }
}

/// A container whose creation and start take every step.
pub(super) fn config(fixture: &KillFixture) -> ContainerConfig {
    let mut config = fixture
        .node
        .container("main", &["sh", "-c", "echo started; exec sleep 1000"]);
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
    assert_eq!(
        fixture
            .node
            .cri()
            .containers()
            .expect("they can be listed")
            .len(),
        2,
        "{kill:?}"
    );
    fixture.node.cri().start(&id).expect("it can be started");
    assert_eq!(
        fixture.node.cri().sh(
            &id,
            "touch /data/x && test -e /image/bin/sh && echo reached"
        ),
        "reached"
    );
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// A container with the named volume `kept`, which is initialised with a file of the image.
pub(super) fn create_named(
    fixture: &KillFixture,
    pod: &TestPod<'_>,
) -> Result<String, tonic::Status> {
    let config = old::ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: "main".to_owned(),
            attempt: 0,
        }),
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
    assert_eq!(
        fixture
            .node
            .cri()
            .sh(&id, "echo x > /bin/new; ls /bin | grep -cx -e new -e sh"),
        "2"
    );
    drop(pod);
    fixture
        .node
        .cri()
        .remove_volume("kept")
        .expect("nothing has it");
    fixture.assert_nothing_left(kill);
}

fn remove_volume(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("unnamed");
    create_named(fixture, &pod).expect("it is well formed");
    drop(pod);
    fixture.killed_during(kill, || fixture.node.cri().remove_volume("kept"));
    fixture
        .node
        .cri()
        .remove_volume("kept")
        .expect("it can be sent again");
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
    let id = pod.create(
        &fixture
            .node
            .container("main", &["sh", "-c", "echo started; exec sleep 1000"]),
    );
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
    let mut config = fixture
        .node
        .container("main", &["/there/is/no/such/program"]);
    config.mounts = vec![image_volume(fixture)];
    let id = pod.create(&config);
    fixture.killed_during(kill, || fixture.node.cri().start(&id));
    let status = fixture.node.cri().status(&id).expect("it has a status");
    assert_eq!(
        status.state(),
        ContainerState::ContainerExited,
        "{kill:?}: {status:?}"
    );
    assert_ne!(status.exit_code, 0, "{kill:?}");
    assert!(
        status.message.contains("no such file"),
        "{kill:?}: {status:?}"
    );
    let stage = fixture.node.root().run().join("stage").join(&id);
    assert!(
        eventually(LIMIT, || !stage.exists()),
        "{kill:?}: the image is still mounted"
    );
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
            assert!(
                eventually(LIMIT, || staged.exists()),
                "nothing is made for the start"
            );
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
        fixture.two_daemons_killed_during(TaskLimited, kill, || {
            fixture.node.cri().update_v1alpha2(id, wanted)
        });
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
        (
            limits(config).memory_limit_in_bytes,
            limits(config).oom_score_adj,
        ) = (before, 500);
    });
    let wanted = old::LinuxContainerResources {
        memory_limit_in_bytes: after,
        oom_score_adj: 600,
        blkio_device_read_i_ops: vec![old::ThrottleDevice {
            path: block_device(),
            rate: 777,
        }],
        ..Default::default()
    };
    let reported = || {
        let status = fixture.node.cri().status(&id).expect("it has a status");
        let limits = status
            .resources
            .and_then(|limits| limits.linux)
            .expect("limits are reported");
        (limits.memory_limit_in_bytes, limits.oom_score_adj)
    };
    cut(&id, wanted.clone());
    let in_force = || limits_in_force(&id);
    assert!(
        [(before, 500), (after, 600)].contains(&reported()),
        "{kill:?}: {:?}",
        reported()
    );
    let agree = eventually(LIMIT, || {
        in_force() == reported() && is_throttled(&id) == (reported().0 == after)
    });
    assert!(
        agree,
        "{kill:?}: {:?} is reported, and {:?} in force",
        reported(),
        in_force()
    );
    fixture
        .node
        .cri()
        .update_v1alpha2(&id, wanted)
        .expect("it can be sent again");
    assert_eq!(
        (reported(), in_force()),
        ((after, 600), (after, 600)),
        "{kill:?}"
    );
    assert!(is_throttled(&id), "{kill:?}");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// The limit of the memory of a container, and the score of its process, as the kernel has them.
fn limits_in_force(id: &str) -> (i64, i64) {
    let file = cgroups::named(id)
        .iter()
        .flat_map(|group| {
            [
                group.join("memory.limit_in_bytes"),
                group.join("memory.max"),
            ]
        })
        .find(|file| file.exists())
        .expect("its memory is limited");
    let procs = file.with_file_name("cgroup.procs");
    let number = |file: &Path| -> i64 {
        fs::read_to_string(file)
            .expect("it is there")
            .trim()
            .parse()
            .expect("it is one number")
    };
    let score = number(Path::new(&format!(
        "/proc/{}/oom_score_adj",
        number(&procs)
    )));
    (number(&file), score)
}

fn is_throttled(id: &str) -> bool {
    let files = cgroups::named(id).into_iter().flat_map(|group| {
        ["blkio.throttle.read_iops_device", "io.max"].map(|name| group.join(name))
    });
    files
        .filter_map(|file| fs::read_to_string(file).ok())
        .any(|text| text.contains("777"))
}
