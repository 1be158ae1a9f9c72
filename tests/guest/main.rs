//! The program that `tests/vm` runs in its guest: tests of the daemon under its own units, load for a power
//! cut, and checks after one.
#![expect(clippy::print_stdout, reason = "what it prints is what the host reads")]

mod after_boot;
mod apparmor;
mod checkpoint;
mod clock;
mod counters;
mod daemon;
mod leases;
mod limits;
mod load;
mod node;
mod nomad;
mod pressure;
mod quota;
mod tasks;
mod units;
mod user_namespaces;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use node::GuestNode;

/// The tests of the integration suite that run once more in the guest, with crun: one of each kind.
const SMOKE: [&str; 17] = [
    "cri::pods::a_pod_goes_its_whole_way_and_leaves_nothing",
    "cri::exits::a_container_that_takes_too_much_memory_is_told_to_be_out_of_it",
    "cri::exits::an_end_has_its_code_and_reason",
    "cri::limits::limits_are_in_force_and_can_be_changed",
    "cri::v1alpha2::limits_that_only_v1alpha2_has_are_in_force_or_refused",
    "cri::devices::devices_by_name_are_given_by_the_field_and_by_annotations",
    "cri::volumes::a_mount_is_read_only_all_the_way_down_when_asked_for",
    "cri::network::a_host_port_leads_into_the_pod_until_it_is_stopped",
    "cri::user_namespaces::root_inside_is_nobody_outside_and_has_all_that_it_needs",
    "cri::recovery::everything_outlives_a_daemon_that_is_killed",
    "caller_resources::cgroups::a_task_is_in_the_group_that_was_made_for_it_and_leaves_it_as_it_was",
    "caller_resources::cgroups::processors_are_limited_in_the_group_that_was_made_for_that",
    "caller_resources::cgroups::a_task_that_runs_out_of_the_memory_of_its_group_is_told_so",
    "nomad::crashes::a_task_goes_on_through_kills_of_the_daemon_and_its_end_is_told_to_who_waited",
    "nomad::networks::a_task_without_a_network_mode_is_on_a_bridge_of_its_own_with_its_ports_published",
    "nomad::resources::a_task_is_in_the_groups_that_the_agent_has_made_with_the_limits_of_the_job",
    "nomad::resources::a_task_that_takes_too_much_memory_is_told_to_have_run_out_of_it",
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["facts", only @ ..] => facts(only),
        ["smoke", only @ ..] => {
            let wanted = |name: &&str| only.is_empty() || only.iter().any(|word| name.contains(word));
            let names: Vec<_> = SMOKE.into_iter().filter(wanted).collect();
            assert!(!names.is_empty(), "no test's name has any of {only:?} in it");
            println!("--exact {}", names.join(" "));
            ExitCode::SUCCESS
        }
        ["load", seed] => load::run(seed.parse().expect("the seed is a number")),
        ["after"] => after_boot::run(),
        ["leave"] => load::run_until_restart(),
        _ => panic!("one of: facts [WORD...], smoke [WORD...], load SEED, after, leave"),
    }
}

/// Runs all tests, also after one has failed.
fn facts(only: &[&str]) -> ExitCode {
    let node = GuestNode::start();
    let mut failed = 0;
    let all = [
        units::FACTS,
        daemon::FACTS,
        limits::FACTS,
        pressure::FACTS,
        counters::FACTS,
        apparmor::FACTS,
        user_namespaces::FACTS,
        checkpoint::FACTS,
        quota::FACTS,
        nomad::FACTS,
        clock::FACTS,
    ];
    let all = all.concat();
    for word in only {
        assert!(all.iter().any(|(name, _)| name.contains(word)), "no fact's name has {word:?} in it");
    }
    for (name, fact) in all {
        if !only.is_empty() && !only.iter().any(|word| name.contains(word)) {
            continue;
        }
        let begin = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| fact(&node)));
        let verdict = if outcome.is_ok() { "holds" } else { "DOES NOT HOLD" };
        println!("{verdict}: {name} ({:.1} s)", begin.elapsed().as_secs_f32());
        failed += u8::from(outcome.is_err());
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
