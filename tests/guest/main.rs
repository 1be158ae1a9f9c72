//! The program that `tests/vm` runs in its guest: tests of the daemon under its own units, load for a power
//! cut, and checks after one.
#![expect(clippy::print_stdout, reason = "what it prints is what the host reads")]

mod after_boot;
mod apparmor;
mod checkpoint;
mod clock;
mod contained;
mod counters;
mod daemon;
mod emulation;
mod firewalld;
mod former;
mod installation;
mod interrupted;
mod leases;
mod limits;
mod load;
mod nfs;
mod node;
mod nomad;
mod packages;
mod pressure;
mod quota;
mod removal;
mod selinux;
mod tasks;
mod units;
mod user_namespaces;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use switchyard_tests::versions::FORMER_FACT;

use node::{GuestFact, GuestNode};

/// All facts but those of [`selinux`], which has a boot of its own, with the module that has them, in the order in which they are shown.
/// [`contained`] comes before [`nfs`]: where a server of NFS has mounted its files in `/proc`, nobody in a user namespace may mount a `/proc`.
const ALL: [(&str, &[GuestFact]); 20] = [
    ("units", units::FACTS),
    ("daemon", daemon::FACTS),
    ("limits", limits::FACTS),
    ("pressure", pressure::FACTS),
    ("counters", counters::FACTS),
    ("apparmor", apparmor::FACTS),
    ("user_namespaces", user_namespaces::FACTS),
    ("contained", contained::FACTS),
    ("checkpoint", checkpoint::FACTS),
    ("quota", quota::FACTS),
    ("nomad", nomad::FACTS),
    ("nfs", nfs::FACTS),
    ("emulation", emulation::FACTS),
    ("firewalld", firewalld::FACTS),
    ("clock", clock::FACTS),
    ("packages", packages::FACTS),
    ("installation", installation::FACTS),
    ("interrupted", interrupted::FACTS),
    ("former", former::FACTS),
    ("removal", removal::LAST),
];

/// The tests of the integration suite that run once more in the guest, with crun: one of each kind.
const SMOKE: [&str; 17] = [
    "cri::pods::pod_lifecycle_completes_and_leaves_nothing_behind",
    "cri::exits::memory_limit_violation_is_reported_as_oom_killed",
    "cri::exits::exit_has_code_and_reason",
    "cri::limits::limits_are_applied_and_can_be_updated",
    "cri::v1alpha2::v1alpha2_only_limits_are_applied_or_rejected",
    "cri::devices::cdi_devices_are_injected_from_field_and_annotations",
    "cri::volumes::recursive_read_only_mount_is_applied",
    "cri::network::host_port_reaches_the_pod_until_it_is_stopped",
    "cri::user_namespaces::user_namespace_root_is_unprivileged_on_the_host",
    "cri::recovery::pods_and_containers_survive_daemon_kill",
    "caller_resources::cgroups::task_runs_in_its_leaf_cgroup_and_leaves_it_unchanged",
    "caller_resources::cgroups::cpu_limits_are_set_on_the_leaf_cgroup",
    "caller_resources::cgroups::oom_kill_in_leaf_cgroup_is_reported",
    "nomad::crashes::task_survives_daemon_kills_and_waiters_get_its_exit",
    "nomad::networks::task_without_network_mode_uses_the_bridge_with_published_ports",
    "nomad::resources::task_runs_in_the_agents_cgroups_with_job_limits",
    "nomad::resources::task_over_its_memory_limit_is_reported_oom_killed",
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["facts", only @ ..] => facts(only),
        ["selinux"] => hold(selinux::FACTS.to_vec()),
        ["contained"] => {
            contained::run_inside();
            ExitCode::SUCCESS
        }
        ["list"] => list(),
        ["smoke", only @ ..] => {
            let names: Vec<_> = SMOKE
                .into_iter()
                .filter(|name| only.is_empty() || only.iter().any(|word| name.contains(word)))
                .collect();
            assert!(
                !names.is_empty(),
                "no test's name has any of {only:?} in it"
            );
            println!("--exact {}", names.join(" "));
            ExitCode::SUCCESS
        }
        ["load", seed] => load::run(seed.parse().expect("the seed is a number")),
        ["after"] => after_boot::run(),
        ["leave"] => load::run_until_restart(),
        _ => panic!(
            "one of: facts [WORD...], selinux, contained, list, smoke [WORD...], load SEED, after, leave"
        ),
    }
}

/// Prints all facts, each after its module, and the tests of the integration suite that the guest runs, after `smoke`.
fn list() -> ExitCode {
    for (module, facts) in ALL {
        for (name, _) in facts {
            println!("{module} {name}");
        }
    }
    for name in SMOKE {
        println!("smoke {name}");
    }
    ExitCode::SUCCESS
}

/// Runs the facts whose name contains one of the words; all, if there are none.
fn facts(only: &[&str]) -> ExitCode {
    let mut all: Vec<GuestFact> = ALL
        .iter()
        .flat_map(|(_, facts)| facts.iter().copied())
        .filter(|(name, _)| *name != FORMER_FACT || former::has_package())
        .collect();
    for word in only {
        assert!(
            all.iter().any(|(name, _)| name.contains(word)),
            "no fact's name has {word:?} in it"
        );
    }
    all.retain(|(name, _)| only.is_empty() || only.iter().any(|word| name.contains(word)));
    hold(all)
}

/// Runs these facts, also after one has failed.
fn hold(facts: Vec<GuestFact>) -> ExitCode {
    let node = GuestNode::start();
    let mut failed = 0;
    for (name, fact) in facts {
        let begin = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| fact(&node)));
        let verdict = if outcome.is_ok() {
            "holds"
        } else {
            "DOES NOT HOLD"
        };
        println!("{verdict}: {name} ({:.1} s)", begin.elapsed().as_secs_f32());
        failed += u8::from(outcome.is_err());
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
