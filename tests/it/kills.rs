//! The daemon, the logkeeper or a starting process is killed right after each named step, on a real node,
//! during the request that takes the step; the next process must find everything, lose nothing, create
//! nothing twice and leave nothing behind.
//!
//! Each test has a node of its own, on which its kills follow one another. A bystander pod with a container
//! that prints numbers runs all the time, and must not be disturbed.

use std::collections::BTreeSet;

use switchyard_steps::{Area, Step};

use cases::{KillCase, all_variants, run_cases, run_cases_on, run_every_nth};
use fixture::KillFixture;

mod abandoned;
mod cases;
mod daemon_starts;
mod device_leases;
mod external_containerd;
mod fixture;
mod images;
mod logkeepers;
mod pods;
mod tasks;

/// All kill cases.
const ALL: [&[KillCase]; 10] = [
    pods::POD_START_CASES,
    pods::POD_END_CASES,
    tasks::TASK_START_CASES,
    tasks::TASK_END_CASES,
    tasks::HUNG,
    tasks::KEPT_EXITS,
    images::KILLS,
    logkeepers::KILLS,
    daemon_starts::KILLS,
    device_leases::KILLS,
];

#[test]
fn every_step_is_the_last_of_some_process() {
    let played = ALL.into_iter().flatten().flat_map(|amid| amid.points).map(|(step, _)| *step);
    // criu is part of checkpoints, and does not support the kernels of some machines; many machines have no
    // project quotas: `tests/guest/checkpoint.rs` and `tests/guest/quota.rs` run these cases, if the guest is
    // asked for them.
    for facts in [" --only amid_a_checkpoint", " --only quota"] {
        assert!(
            include_str!("../run").contains(facts),
            "tests/run has no{facts}, and plays none of these kills"
        );
    }
    let in_the_guest =
        Step::ALL.iter().copied().filter(|step| matches!(step.area(), Area::Checkpoint | Area::Quota));
    let played: BTreeSet<Step> =
        played.chain(daemon_starts::FRESH.iter().copied()).chain(in_the_guest).collect();
    let missing: Vec<_> = Step::ALL.iter().filter(|step| !played.contains(step)).collect();
    assert!(missing.is_empty(), "no kill is played at {missing:?}");
}

#[test]
fn a_pod_that_a_kill_cut_off_is_run_by_the_same_request() {
    run_cases(pods::POD_START_CASES);
}

#[test]
fn a_pod_whose_end_a_kill_cut_off_is_ended_by_the_same_request() {
    run_cases(pods::POD_END_CASES);
}

#[test]
fn a_container_that_a_kill_cut_off_is_made_started_and_changed_by_the_same_request() {
    run_cases(tasks::TASK_START_CASES);
}

#[test]
fn a_container_whose_end_a_kill_cut_off_tells_it_and_is_removed_by_the_same_request() {
    run_cases(tasks::TASK_END_CASES);
}

#[test]
fn a_container_whose_hung_shim_was_killed_as_a_kill_came_tells_its_end() {
    run_cases_on(KillFixture::with_short_shim_timeout(), tasks::HUNG);
}

#[test]
fn a_container_whose_exit_containerd_keeps_is_started_and_ended_by_the_same_request() {
    run_cases_on(KillFixture::with_sandbox_store(), tasks::KEPT_EXITS);
}

#[test]
fn an_image_that_a_kill_cut_off_is_pulled_unpacked_and_removed_by_the_same_request() {
    run_cases(images::KILLS);
}

#[test]
fn a_lease_of_devices_that_a_kill_cut_off_is_had_by_the_same_request_and_one_that_was_ended_is_not() {
    run_cases_on(KillFixture::with_devices(), device_leases::KILLS);
}

/// The steps are the same as in another test that repeats the request; to save time, only every second one is
/// run unless all are asked for.
#[test]
fn what_a_kill_cut_off_and_nobody_sends_again_is_listed_or_gone() {
    run_every_nth(KillFixture::new(), abandoned::ABANDONED, if all_variants() { 1 } else { 2 });
}

#[test]
fn beside_a_containerd_of_others_a_kill_loses_and_leaves_nothing_either() {
    if all_variants() {
        external_containerd::ALL
            .into_iter()
            .chain([abandoned::ABANDONED])
            .for_each(|amids| run_cases_on(KillFixture::external(""), amids));
    } else {
        run_cases_on(KillFixture::external(""), external_containerd::EXTERNAL_ONLY_CASES);
    }
}

#[test]
fn daemons_that_live_too_short_know_together_what_came_of_a_start() {
    external_containerd::short_lives();
}

#[test]
fn a_logkeeper_that_is_killed_anywhere_loses_doubles_and_tears_no_line() {
    run_cases(logkeepers::KILLS);
}

#[test]
fn a_daemon_that_is_killed_while_it_starts_is_followed_by_one_that_finds_everything() {
    run_cases(daemon_starts::KILLS);
}

#[test]
fn a_daemon_that_is_killed_in_its_first_start_is_followed_by_one_that_works() {
    for step in daemon_starts::FRESH {
        daemon_starts::first_start(*step);
    }
}
