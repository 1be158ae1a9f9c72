//! Creations and starts that a kill cut off and that no client repeats: if an object came into being it is
//! listed and can be removed; otherwise nothing of it stays.

use switchyard_proto::cri::v1::ContainerState;
use switchyard_steps::Step::*;

use super::cases::KillCase;
use super::fixture::{KillFixture, KillPoint};
use super::{pods, tasks};

pub(super) const ABANDONED: &[KillCase] = &[
    KillCase { run: run_pod, points: pods::RUN },
    KillCase { run: recover, points: pods::RECOVERED },
    KillCase { run: create, points: tasks::CREATED },
    KillCase { run: fill, points: tasks::FILLED },
    KillCase { run: start, points: tasks::STARTED },
    KillCase { run: await_start_outcome, points: tasks::START_OUTCOME },
];

fn run_pod(lab: &KillFixture, kill: KillPoint) {
    let config = pods::config(lab);
    lab.dies_amid(kill, || lab.node.cri().run_pod(&config));
    let mut listed = lab.node.cri().pods().expect("they can be listed");
    listed.retain(|pod| pod.metadata == config.metadata);
    assert_eq!(listed.len(), usize::from(kill.step == SandboxMarked), "{kill:?}: {listed:#?}");
    for pod in listed {
        lab.node.cri().stop_pod(&pod.id).expect("it can be stopped");
        lab.node.cri().remove_pod(&pod.id).expect("it can be removed");
    }
    lab.assert_nothing_left(kill);
}

/// The daemon that cleans up is killed as well.
fn recover(lab: &KillFixture, kill: KillPoint) {
    let config = pods::config(lab);
    lab.two_daemons_die_amid(SandboxAttached, kill, || lab.node.cri().run_pod(&config));
    lab.assert_nothing_left(kill);
}

/// The listed containers of a pod.
fn listed(lab: &KillFixture, pod: &str) -> Vec<String> {
    let mut containers = lab.node.cri().containers().expect("they can be listed");
    containers.retain(|container| container.pod_sandbox_id == pod);
    containers.into_iter().map(|container| container.id).collect()
}

fn create(lab: &KillFixture, kill: KillPoint) {
    let pod = lab.node.pod("create");
    let config = tasks::config(lab);
    let before = lab.node.leak_scan();
    lab.dies_amid(kill, || pod.try_create(&config));
    let listed = listed(lab, pod.id());
    assert_eq!(listed.len(), usize::from(kill.step == TaskPrepared), "{kill:?}: {listed:?}");
    lab.assert_only_listed_since(kill, &before, &listed);
    for id in listed {
        lab.node.cri().remove(&id).expect("it can be removed");
    }
    lab.assert_only_listed_since(kill, &before, &[]);
    drop(pod);
    lab.assert_nothing_left(kill);
}

/// The volume exists under its name and can be removed, or does not exist at all.
fn fill(lab: &KillFixture, kill: KillPoint) {
    let pod = lab.node.pod("fill");
    let before = lab.node.leak_scan();
    lab.dies_amid(kill, || tasks::create_named(lab, &pod));
    assert_eq!(listed(lab, pod.id()), [""; 0], "{kill:?}");
    if kill.step == VolumeNamed {
        lab.node.cri().remove_volume("kept").expect("nothing has it");
    }
    lab.assert_only_listed_since(kill, &before, &[]);
    drop(pod);
    lab.assert_nothing_left(kill);
}

fn start(lab: &KillFixture, kill: KillPoint) {
    abandon_start(lab, kill, |id| lab.dies_amid(kill, || lab.node.cri().start(id)));
}

/// The daemon that waits for the outcome of the predecessor call is killed as well.
fn await_start_outcome(lab: &KillFixture, kill: KillPoint) {
    abandon_start(lab, kill, |id| lab.two_daemons_die_amid(TaskCreated, kill, || lab.node.cri().start(id)));
}

/// The container runs, or is as it was before its start.
#[track_caller]
fn abandon_start(lab: &KillFixture, kill: KillPoint, cut_off: impl FnOnce(&str)) {
    let pod = lab.node.pod("start");
    let empty = lab.node.leak_scan();
    let id = pod.create(&tasks::config(lab));
    let before = lab.node.leak_scan();
    cut_off(&id);
    assert_eq!(listed(lab, pod.id()), [id.as_str()], "{kill:?}");
    let status = lab.node.cri().status(&id).expect("it has a status");
    match status.state() {
        ContainerState::ContainerCreated => lab.assert_only_listed_since(kill, &before, &[]),
        ContainerState::ContainerRunning => {
            assert_eq!(lab.node.cri().sh(&id, "echo reached"), "reached");
            lab.node.cri().stop(&id, 0).expect("it can be stopped");
        }
        ContainerState::ContainerExited | ContainerState::ContainerUnknown => {
            panic!("{kill:?} has ended it: {status:?}")
        }
    }
    lab.node.cri().remove(&id).expect("it can be removed");
    lab.assert_only_listed_since(kill, &empty, &[]);
    drop(pod);
    lab.assert_nothing_left(kill);
}
