//! Creations and starts that a kill cut off and that no client repeats: if an object came into being it is
//! listed and can be removed; otherwise nothing of it stays.

use switchyard_crash_points::CrashPoint::*;
use switchyard_crash_points::Operation;
use switchyard_proto::cri::v1::ContainerState;
use switchyard_tests::host::eventually;

use super::cases::KillCase;
use super::fixture::{KillFixture, KillPoint, LIMIT};
use super::{pods, tasks};

pub(super) const ABANDONED: &[KillCase] = &[
    KillCase::of(run_pod, Operation::CreateSandbox).and(pods::RUN_FURTHER),
    KillCase::of(recover, Operation::Recover),
    KillCase::of(create, Operation::CreateTask),
    KillCase::of(fill, Operation::FillVolume),
    KillCase::of(start, Operation::StartTask),
    KillCase::of(await_start_outcome, Operation::AwaitStart),
];

fn run_pod(fixture: &KillFixture, kill: KillPoint) {
    let config = pods::config(fixture);
    fixture.killed_during(kill, || fixture.node.cri().run_pod(&config));
    let mut listed = fixture.node.cri().pods().expect("they can be listed");
    listed.retain(|pod| pod.metadata == config.metadata);
    assert_eq!(
        listed.len(),
        usize::from(kill.step == SandboxMarked),
        "{kill:?}: {listed:#?}"
    );
    for pod in listed {
        fixture
            .node
            .cri()
            .stop_pod(&pod.id)
            .expect("it can be stopped");
        fixture
            .node
            .cri()
            .remove_pod(&pod.id)
            .expect("it can be removed");
    }
    fixture.assert_nothing_left(kill);
}

/// The daemon that cleans up is killed as well.
fn recover(fixture: &KillFixture, kill: KillPoint) {
    let config = pods::config(fixture);
    fixture.two_daemons_killed_during(SandboxAttached, kill, || {
        fixture.node.cri().run_pod(&config)
    });
    fixture.assert_nothing_left(kill);
}

/// The listed containers of a pod.
fn listed(fixture: &KillFixture, pod: &str) -> Vec<String> {
    let mut containers = fixture.node.cri().containers().expect("they can be listed");
    containers.retain(|container| container.pod_sandbox_id == pod);
    containers
        .into_iter()
        .map(|container| container.id)
        .collect()
}

fn create(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("create");
    let config = tasks::config(fixture);
    let before = fixture.node.leak_scan();
    fixture.killed_during(kill, || pod.try_create(&config));
    let listed = listed(fixture, pod.id());
    assert_eq!(
        listed.len(),
        usize::from(kill.step == TaskPrepared),
        "{kill:?}: {listed:?}"
    );
    fixture.assert_only_listed_since(kill, &before, &listed);
    for id in listed {
        fixture.node.cri().remove(&id).expect("it can be removed");
    }
    fixture.assert_only_listed_since(kill, &before, &[]);
    drop(pod);
    fixture.assert_nothing_left(kill);
}

/// The volume exists under its name and can be removed, or does not exist at all.
fn fill(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("fill");
    let before = fixture.node.leak_scan();
    fixture.killed_during(kill, || tasks::create_named(fixture, &pod));
    assert_eq!(listed(fixture, pod.id()), [""; 0], "{kill:?}");
    if kill.step == VolumeNamed {
        fixture
            .node
            .cri()
            .remove_volume("kept")
            .expect("nothing has it");
    }
    fixture.assert_only_listed_since(kill, &before, &[]);
    drop(pod);
    fixture.assert_nothing_left(kill);
}

fn start(fixture: &KillFixture, kill: KillPoint) {
    abandon_start(fixture, kill, |id| {
        fixture.killed_during(kill, || fixture.node.cri().start(id))
    });
}

/// The daemon that waits for the outcome of the predecessor call is killed as well.
fn await_start_outcome(fixture: &KillFixture, kill: KillPoint) {
    abandon_start(fixture, kill, |id| {
        fixture.two_daemons_killed_during(TaskCreated, kill, || fixture.node.cri().start(id))
    });
}

/// The container runs, or is as it was before its start.
#[track_caller]
fn abandon_start(fixture: &KillFixture, kill: KillPoint, cut_off: impl FnOnce(&str)) {
    let pod = fixture.node.pod("start");
    let empty = fixture.node.leak_scan();
    let id = pod.create(&tasks::config(fixture));
    let before = fixture.node.leak_scan();
    cut_off(&id);
    assert_eq!(listed(fixture, pod.id()), [id.as_str()], "{kill:?}");
    let mut status = fixture.node.cri().status(&id).expect("it has a status");
    let is_settled = eventually(LIMIT, || {
        status = fixture.node.cri().status(&id).expect("it has a status");
        status.state() != ContainerState::ContainerUnknown
    });
    assert!(is_settled, "{kill:?}: {status:?}");
    match status.state() {
        ContainerState::ContainerCreated => fixture.assert_only_listed_since(kill, &before, &[]),
        ContainerState::ContainerRunning => {
            assert_eq!(fixture.node.cri().sh(&id, "echo reached"), "reached");
            fixture.node.cri().stop(&id, 0).expect("it can be stopped");
        }
        ContainerState::ContainerExited | ContainerState::ContainerUnknown => {
            panic!("{kill:?} has ended it: {status:?}")
        }
    }
    fixture.node.cri().remove(&id).expect("it can be removed");
    fixture.assert_only_listed_since(kill, &empty, &[]);
    drop(pod);
    fixture.assert_nothing_left(kill);
}
