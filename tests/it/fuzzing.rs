//! The fuzz targets on stable Rust, for a short time: every stored input, and some thousand inputs derived
//! from them, the same in each run. `tests/fuzz` runs the same targets for any length of time.

mod inputs;

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::PathBuf;

use crate::architecture::repository;
use inputs::Mutator;

/// Declares a test for each target: `name: function, inputs`.
macro_rules! targets {
    ($($name:ident: $target:path, $inputs:literal;)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                holds_for_any_input(stringify!($name), $target, $inputs);
            }
        )*
    };
}

targets! {
    containerd_records: switchyard_containerd::fuzzing::records, 4_000;
    registry_auth_challenge: switchyard_registry::fuzzing::auth_challenge, 4_000;
    registry_hosts_toml: switchyard_registry::fuzzing::hosts_toml, 4_000;
    registry_image_config: switchyard_registry::fuzzing::image_config, 4_000;
    registry_manifest: switchyard_registry::fuzzing::manifest, 4_000;
    image_reference: switchyard_core::fuzzing::image_reference, 4_000;
    logkeeper_log: switchyard_logkeeper::fuzzing::log_file, 2_000;
    logkeeper_output: switchyard_logkeeper::fuzzing::output, 4_000;
    logkeeper_position: switchyard_logkeeper::fuzzing::position_record, 4_000;
    logkeeper_reply: switchyard_logkeeper::fuzzing::reply, 4_000;
    logkeeper_request: switchyard_logkeeper::fuzzing::request, 4_000;
    logkeeper_state: switchyard_logkeeper::fuzzing::state_entry, 4_000;
    accounts: switchyard_runtime_spec::fuzzing::accounts, 4_000;
    authority_connection: switchyard_authority::fuzzing::connection, 2_000;
    cdi: switchyard_runtime_spec::fuzzing::cdi, 4_000;
    cgroup_files: switchyard_cgroup::fuzzing::files, 4_000;
    archive: switchyard_containerd::fuzzing::archive, 4_000;
    cni_conf: switchyard_cni::fuzzing::conf, 4_000;
    cni_journal: switchyard_cni::fuzzing::journal, 4_000;
    cni_result: switchyard_cni::fuzzing::result, 4_000;
    cri_container: switchyard_cri::fuzzing::container, 4_000;
    cri_pod: switchyard_cri::fuzzing::pod, 4_000;
    cri_v1alpha2: switchyard_cri::fuzzing::old_version, 4_000;
    devices_config: switchyard_devices::fuzzing::config, 4_000;
    lease_journal: switchyard_ledger::fuzzing::journal, 4_000;
    device_host_messages: switchyard_device_host::fuzzing::messages, 4_000;
    history_records: switchyard_operator::fuzzing::history_records, 4_000;
    kubelet_messages: switchyard_device_plugin::fuzzing::messages, 4_000;
    message_shapes: switchyard_proto::fuzzing::message_shapes, 4_000;
    mountinfo: switchyard_linux::mounts::check, 4_000;
    netfilter: switchyard_network::nft::fuzzing::netfilter, 4_000;
    nomad_configs: switchyard_nomad::fuzzing::configs, 4_000;
    rtnetlink: switchyard_network::fuzzing::rtnetlink, 4_000;
    seccomp: switchyard_runtime_spec::fuzzing::seccomp, 4_000;
    spdy_frames: switchyard_streaming::fuzzing::frames, 4_000;
    streaming_session: switchyard_streaming::fuzzing::session, 1_000;
    swarm_certificates: switchyard_swarm::fuzzing::certificates, 2_000;
    swarm_files: switchyard_swarm::fuzzing::files, 4_000;
    swarm_image_health: switchyard_swarm::fuzzing::image_health, 4_000;
    swarm_messages: switchyard_swarm::fuzzing::messages, 4_000;
    swarm_task: switchyard_swarm::fuzzing::task, 4_000;
    swarm_template: switchyard_swarm::fuzzing::template, 4_000;
    swarm_token: switchyard_swarm::fuzzing::token, 4_000;
    terminal_sizes: switchyard_streaming::fuzzing::resize, 4_000;
    trace_context: switchyard_core::fuzzing::trace_context, 4_000;
    ttrpc: switchyard_containerd::fuzzing::ttrpc, 4_000;
    websocket: switchyard_streaming::fuzzing::websocket, 2_000;
}

/// The inputs that are kept for a target, in the order of their names.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let dir = repository().join("tests/fuzzing/corpus").join(target);
    let read = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<PathBuf> = read
        .map(|entry| entry.expect("what a test makes can be used").path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| fs::read(path).expect("what a test makes can be used"))
        .collect()
}

/// Runs a target on what is kept for it and on `count` inputs made from that. One that fails is written below
/// `target/fuzzing`.
fn holds_for_any_input(name: &str, target: fn(&[u8]), count: usize) {
    let kept = kept(name);
    let mut mutator = Mutator::new(&kept);
    let made = std::iter::repeat_with(|| mutator.next()).take(count);
    for input in kept.iter().cloned().chain(made) {
        if catch_unwind(|| target(&input)).is_err() {
            let dir = repository().join("target/fuzzing/artifacts").join(name);
            fs::create_dir_all(&dir).expect("what a test makes can be used");
            let path = dir.join("found-by-test");
            fs::write(&path, &input).expect("what a test makes can be used");
            panic!(
                "{name} does not hold for {}: {}",
                path.display(),
                input.escape_ascii()
            );
        }
    }
}

#[test]
fn every_fuzz_target_runs_and_has_a_small_corpus() {
    let dir = repository().join("tests/fuzzing");
    let named = |below: &str| -> BTreeSet<String> {
        let read = fs::read_dir(dir.join(below)).unwrap();
        read.map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect()
    };
    let here: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    let manifest: toml::Table = fs::read_to_string(dir.join("Cargo.toml"))
        .unwrap()
        .parse()
        .unwrap();
    let bins = manifest["bin"].as_array().unwrap().iter();
    let bins: BTreeSet<String> = bins
        .map(|bin| bin["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(here, bins);
    assert_eq!(here, named("fuzz_targets"));
    assert_eq!(here, named("corpus"));
    for name in here {
        let kept = kept(&name);
        assert!(
            (3..=60).contains(&kept.len()),
            "{name}: {} inputs",
            kept.len()
        );
        assert!(
            kept.iter().all(|input| input.len() <= 16 << 10),
            "{name}: an input is larger than 16 KiB"
        );
    }
}
