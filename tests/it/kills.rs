//! The daemon, the logkeeper or a starting process is killed right after each named step, on a real node,
//! during the request that takes the step; the next process must find everything, lose nothing, create
//! nothing twice and leave nothing behind.
//!
//! Each test has a node of its own, on which its kills follow one another. A bystander pod with a container
//! that prints numbers runs all the time, and must not be disturbed.

use std::collections::BTreeSet;

use switchyard_crash_points::{CrashPoint, Operation};
use switchyard_tests::shards::{SLOW, What, own_points_of_this_run};

use cases::{KillCase, all_variants, run_cases, run_cases_on, run_every_nth, run_on_bad_disks};
use fixture::KillFixture;

mod abandoned;
mod bad_disks;
mod cases;
mod daemon_starts;
mod device_leases;
mod external_containerd;
mod fixture;
mod images;
mod logkeepers;
mod pods;
mod task_ends;
mod tasks;

/// All kill cases.
const ALL: [&[KillCase]; 10] = [
    pods::POD_START_CASES,
    pods::POD_END_CASES,
    tasks::TASK_START_CASES,
    task_ends::TASK_END_CASES,
    task_ends::HUNG,
    task_ends::KEPT_EXITS,
    images::KILLS,
    logkeepers::KILLS,
    daemon_starts::KILLS,
    device_leases::KILLS,
];

#[test]
fn every_crash_point_has_a_kill_test() {
    let played = ALL
        .into_iter()
        .flatten()
        .flat_map(KillCase::points)
        .map(|(step, _)| step);
    // criu is part of checkpoints, and does not support the kernels of some machines; many machines have no
    // project quotas: the guest runs these cases, in the shards of these facts.
    let in_the_guest = [
        (
            Operation::CheckpointTask,
            "container_continues_after_daemon_kill_during_checkpoint",
        ),
        (
            Operation::LimitDisk,
            "daemon_kill_during_disk_quota_leaves_no_limit_or_project",
        ),
    ];
    for (operation, fact) in in_the_guest {
        let listed = SLOW
            .iter()
            .any(|slow| matches!(slow.what, What::Fact(_, name) if name == fact));
        assert!(
            listed,
            "no shard has the fact {fact}: no kill at {operation:?}"
        );
    }
    // `swarm::kills` kills another process than the daemon, and `swarm::logs` and `swarm::bridges` a daemon in a
    // swarm; `nomad::kills` and `nomad::pins` one without plugins; `cri::pod_bridge` one whose pods get another network. The first start of a
    // daemon, and one whose bridge gets a range of IPv6, have a node of their own below.
    let others = [
        Operation::FirstStart,
        Operation::AllowNetAdmin,
        Operation::JoinSwarm,
        Operation::LeaveSwarm,
        Operation::RotateLog,
        Operation::HoldClusterBridge,
        Operation::LeaveClusterBridge,
        Operation::RecordOwnIpv6,
        Operation::MarkPodBridge,
        Operation::DeletePodBridge,
        Operation::AttachToBridge,
        Operation::DetachFromBridge,
    ];
    let elsewhere = in_the_guest.map(|(operation, _)| operation);
    let elsewhere = elsewhere
        .into_iter()
        .chain(others)
        .flat_map(Operation::crash_points);
    let played: BTreeSet<CrashPoint> = played.chain(elsewhere.copied()).collect();
    let missing: Vec<_> = CrashPoint::ALL
        .iter()
        .filter(|step| !played.contains(step))
        .collect();
    assert!(missing.is_empty(), "no kill is played at {missing:?}");
}

#[test]
fn run_pod_interrupted_by_kill_is_completed_by_retry() {
    run_cases(pods::POD_START_CASES);
}

#[test]
fn pod_stop_and_removal_interrupted_by_kill_are_completed_by_retry() {
    run_cases(pods::POD_END_CASES);
}

#[test]
fn container_create_start_update_interrupted_by_kill_are_completed_by_retry() {
    run_cases(tasks::TASK_START_CASES);
}

#[test]
fn container_exit_interrupted_by_kill_is_reported_and_removal_completed_by_retry() {
    run_cases(task_ends::TASK_END_CASES);
}

#[test]
fn exit_is_reported_after_kill_while_a_hung_shim_was_killed() {
    run_cases_on(KillFixture::with_short_shim_timeout, task_ends::HUNG);
}

#[test]
fn calls_interrupted_by_kill_complete_when_containerd_retains_exits() {
    run_cases_on(KillFixture::with_sandbox_store, task_ends::KEPT_EXITS);
}

#[test]
fn image_pull_unpack_removal_interrupted_by_kill_are_completed_by_retry() {
    run_cases(images::KILLS);
}

#[test]
fn device_lease_interrupted_by_kill_is_regained_and_released_one_is_not() {
    run_cases_on(KillFixture::with_devices, device_leases::KILLS);
}

/// The steps are the same as in another test that repeats the request; to save time, only every second one is
/// run unless all are asked for.
#[test]
fn interrupted_call_without_retry_is_listed_or_rolled_back() {
    run_every_nth(
        KillFixture::new,
        abandoned::ABANDONED,
        if all_variants() { 1 } else { 2 },
    );
}

#[test]
fn kill_with_external_containerd_loses_and_leaves_nothing() {
    if all_variants() {
        external_containerd::ALL
            .into_iter()
            .chain([abandoned::ABANDONED])
            .for_each(|amids| run_cases_on(|| KillFixture::external(""), amids));
    } else {
        run_cases_on(
            || KillFixture::external(""),
            external_containerd::EXTERNAL_ONLY_CASES,
        );
    }
}

#[test]
fn start_outcome_is_known_across_short_lived_daemons() {
    external_containerd::short_lives();
}

/// The kills are those of other tests; to save time, only every second one is run unless all are asked for.
#[test]
fn daemon_starts_on_full_and_read_only_disks_after_kills_during_pods_images_and_leases() {
    let lists = [
        pods::POD_START_CASES,
        pods::POD_END_CASES,
        images::KILLS,
        device_leases::KILLS,
    ];
    run_on_bad_disks(&lists, if all_variants() { 1 } else { 2 });
}

/// The same.
#[test]
fn daemon_starts_on_full_and_read_only_disks_after_kills_during_containers() {
    let lists = [
        tasks::TASK_START_CASES,
        task_ends::TASK_END_CASES,
        abandoned::ABANDONED,
    ];
    run_on_bad_disks(&lists, if all_variants() { 1 } else { 2 });
}

#[test]
fn logkeeper_killed_at_any_step_loses_duplicates_or_tears_no_line() {
    run_cases(logkeepers::KILLS);
}

#[test]
fn kill_during_daemon_start_loses_nothing() {
    run_cases(daemon_starts::KILLS);
}

#[test]
fn kill_during_first_daemon_start_is_recovered() {
    for step in own_points_of_this_run(Operation::FirstStart.crash_points()) {
        daemon_starts::first_start(*step);
    }
}

#[test]
fn range_of_ipv6_is_the_same_behind_a_kill_at_its_record() {
    for step in Operation::RecordOwnIpv6.crash_points() {
        daemon_starts::own_ipv6(*step);
    }
}
