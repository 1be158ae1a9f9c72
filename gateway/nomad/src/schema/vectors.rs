//! Configurations encoded with these schemas by an agent's own libraries (hcl 2.25 and go-cty 1.19), decoded
//! here.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use switchyard_core::image::Credentials;
use switchyard_core::spec::{CpuPeriod, OomScoreAdj, PidsLimit, Propagation, Relabel};

use crate::from_proto::any_bytes;
use crate::plugin_config::PluginConfig;
use crate::task_config::{DeviceOptions, MountKind, MountOptions, TaskOptions, Volume};

/// `{"image":"busybox:1.36"}`.
const TASK_BARE: &str = include_str!("vectors/task-bare.hex");
/// Most options, some in other forms than their type: `"true"`, numbers as texts and texts as numbers.
const TASK_RICH: &str = include_str!("vectors/task-rich.hex");
/// `{}`.
const PLUGIN_BARE: &str = include_str!("vectors/plugin-bare.hex");
const PLUGIN_RICH: &str = include_str!("vectors/plugin-rich.hex");

fn bytes(vector: &str) -> Vec<u8> {
    let digits: Vec<u8> = vector.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn volume(
    index: usize,
    source: &str,
    destination: &str,
    readonly: bool,
    propagation: Propagation,
) -> Volume {
    Volume {
        field: format!("volumes[{index}]"),
        source: source.to_owned(),
        destination: destination.to_owned(),
        readonly,
        propagation,
        relabel: Relabel::Keep,
        copied: true,
    }
}

fn mount(field: &str, target: &str, readonly: bool, kind: MountKind) -> MountOptions {
    MountOptions {
        field: field.to_owned(),
        target: target.to_owned(),
        readonly,
        kind,
    }
}

fn device(index: usize, host: &str, inside: &str, permissions: &str) -> DeviceOptions {
    DeviceOptions {
        field: format!("devices[{index}]"),
        host_path: host.to_owned(),
        container_path: inside.to_owned(),
        cgroup_permissions: permissions.to_owned(),
    }
}

#[test]
fn image_only_task_vector_decodes_to_defaults() {
    let options = TaskOptions::decode(&bytes(TASK_BARE)).unwrap();
    assert_eq!(
        options,
        TaskOptions {
            image: "busybox:1.36".to_owned(),
            ..TaskOptions::default()
        }
    );
}

#[test]
fn empty_plugin_vector_decodes_to_defaults() {
    assert_eq!(
        PluginConfig::decode(&bytes(PLUGIN_BARE)).unwrap(),
        (PluginConfig::default(), Vec::new())
    );
}

#[test]
fn full_task_vector_decodes_to_job_options() {
    let options = TaskOptions::decode(&bytes(TASK_RICH)).unwrap();
    let shared = MountKind::Bind {
        source: "local/x".to_owned(),
        propagation: "rshared".to_owned(),
    };
    let expected = TaskOptions {
        image: "https://registry.example/shop/web:1.2".to_owned(),
        force_pull: true,
        image_pull_timeout: Some(Duration::from_secs(90)),
        auth: Some(Credentials::Basic {
            username: "me".to_owned(),
            password: "open sesame".to_owned(),
        }),
        entrypoint: strings(&["/bin/sh", "-c"]),
        command: "exec web".to_owned(),
        args: strings(&["--port", "8080", "true", "7"]),
        work_dir: "/srv".to_owned(),
        init: true,
        tty: true,
        hostname: "web".to_owned(),
        labels: map(&[("team", "a"), ("tier", "2")]),
        group_add: strings(&["audio", "12"]),
        cap_add: strings(&["NET_ADMIN"]),
        cap_drop: strings(&["ALL"]),
        security_opt: strings(&["no-new-privileges"]),
        readonly_rootfs: true,
        pid_mode: "host".to_owned(),
        ports: strings(&["http"]),
        extra_hosts: strings(&["db:10.0.0.5"]),
        dns_servers: strings(&["9.9.9.9"]),
        volumes: vec![
            volume(0, "local/conf", "/etc/conf", true, Propagation::Private),
            volume(1, "/srv", "/srv", false, Propagation::HostToTask),
        ],
        mounts: vec![
            mount(
                "mount[0]",
                "/cache",
                false,
                MountKind::Tmpfs {
                    size_bytes: 65536,
                    mode: 0o700,
                },
            ),
            mount("mount[1]", "/x", true, shared),
            mount(
                "mounts[0]",
                "/data",
                false,
                MountKind::Volume {
                    name: "data".to_owned(),
                    copied: true,
                },
            ),
        ],
        shm_size_bytes: 128 << 20,
        storage_bytes: Some(10 << 30),
        devices: vec![
            device(0, "/dev/fuse", "", ""),
            device(1, "/dev/null", "/dev/x", "r"),
        ],
        cpu_hard_limit: true,
        cpu_cfs_period: CpuPeriod::new(50_000).ok(),
        memory_hard_limit_mb: 512,
        pids_limit: PidsLimit::new(5_000_000_000).ok(),
        oom_score_adj: OomScoreAdj::new(100).ok(),
        ulimit: map(&[("nofile", "1024:2048"), ("nproc", "5")]),
        sysctl: map(&[("net.core.somaxconn", "1024")]),
        warnings: strings(&[
            "logging \"journald\" has no effect: output goes to the agent's log files",
        ]),
        ..TaskOptions::default()
    };
    assert_eq!(options, expected);
}

#[test]
fn full_plugin_vector_decodes_to_agent_configuration() {
    let (config, warnings) = PluginConfig::decode(&bytes(PLUGIN_RICH)).unwrap();
    assert_eq!(config.allow_caps, strings(&["CHOWN", "NET_RAW"]));
    assert_eq!(
        (config.allow_privileged, config.allow_runtimes),
        (true, strings(&["runc", "kata"]))
    );
    assert_eq!(
        (config.allowed_modes.pid, config.extra_labels),
        (strings(&["host"]), strings(&["job_*"]))
    );
    assert_eq!(
        (config.volumes.enabled, config.volumes.selinuxlabel.as_str()),
        (true, "z")
    );
    assert_eq!(
        (config.auth.config.as_str(), config.auth.helper.as_str()),
        ("/root/.docker/config.json", "ecr-login")
    );
    assert_eq!(
        (
            config.gc.image_delay.as_secs(),
            config.gc.image,
            config.gc.container
        ),
        (3600, true, true)
    );
    let dangling = config.gc.dangling;
    assert_eq!(
        (
            dangling.enabled,
            dangling.creation_grace.as_secs(),
            dangling.period.as_secs()
        ),
        (false, 120, 300)
    );
    assert_eq!(
        (config.pids_limit, config.image_pull_timeout.as_secs()),
        (PidsLimit::new(100).ok(), 600)
    );
    let keys: Vec<_> = warnings
        .iter()
        .filter_map(|warning| warning.split(' ').next())
        .collect();
    assert_eq!(keys, ["endpoint", "infra_image"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn mutated_configuration_is_decoded_or_rejected(
        rich in any::<bool>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        end in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = bytes(if rich { TASK_RICH } else { TASK_BARE });
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        any_bytes::check(&bytes);
    }

    #[test]
    fn any_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        any_bytes::check(&bytes);
    }
}
