//! Conversions from the wire: golden results, the field that each error names, and that nothing panics.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use prost::Message;
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::spec::*;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_proto::cri::v1 as cri;

use super::*;
use crate::config::{Config, UnsetSeccomp};
use crate::record::SandboxRecord;

mod containers;
mod limits;
mod network;
mod sandboxes;
mod volumes;

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000)
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A pod as a kubelet sends it.
fn pod() -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: "web".into(),
            uid: "u-1".into(),
            namespace: "shop".into(),
            attempt: 2,
        }),
        hostname: "web".into(),
        log_directory: "/var/log/pods/shop_web_u-1".into(),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: "/kubepods/burstable/podu-1".into(),
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(cri::NamespaceOption {
                    pid: cri::NamespaceMode::Container.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn sandbox_of(config: cri::PodSandboxConfig) -> Result<SandboxSpec> {
    let record = SandboxRecord {
        config: Some(config),
        runtime_handler: "crun".into(),
    };
    sandbox(record, &Config::default(), now())
}

/// A container as a kubelet sends it.
fn app() -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: "app".into(),
            attempt: 1,
        }),
        image: Some(cri::ImageSpec {
            image: "sha256:abc".into(),
            user_specified_image: "nginx:1".into(),
            ..Default::default()
        }),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(cri::LinuxContainerResources::default()),
            security_context: Some(cri::LinuxContainerSecurityContext::default()),
        }),
        ..Default::default()
    }
}

const SANDBOX: [u8; 32] = [7; 32];

fn container_in(
    pod: &cri::PodSandboxConfig,
    config: cri::ContainerConfig,
    settings: &Config,
) -> Result<TaskSpec> {
    let parent = Parent {
        id: SandboxId::from_bytes(SANDBOX),
        config: pod,
        recursive_readonly: false,
        volumes: &BTreeMap::new(),
    };
    let target = |id: &str| match id {
        "there" => Ok(TaskId::from_bytes([9; 32])),
        other => Err(Error::not_found(format!("task {other:?} does not exist"))),
    };
    container(config, &parent, settings, &target, now())
}

fn container_of(config: cri::ContainerConfig) -> Result<TaskSpec> {
    container_in(&pod(), config, &Config::default())
}

/// Checks the kind and text of the error for a modified pod.
#[track_caller]
fn refuses_pod(change: impl FnOnce(&mut cri::PodSandboxConfig), kind: ErrorKind, message: &str) {
    let mut config = pod();
    change(&mut config);
    let error = sandbox_of(config).expect_err(message);
    assert_eq!((error.kind(), error.report().as_str()), (kind, message));
}

/// Checks the kind and text of the error for a modified container.
#[track_caller]
fn refuses(change: impl FnOnce(&mut cri::ContainerConfig), kind: ErrorKind, message: &str) {
    let mut config = app();
    change(&mut config);
    let error = container_of(config).expect_err(message);
    assert_eq!((error.kind(), error.report().as_str()), (kind, message));
}

/// Checks the text of the error for modified limits.
#[track_caller]
fn refuses_limit(change: impl FnOnce(&mut cri::LinuxContainerResources), message: &str) {
    refuses(
        |config| {
            let linux = config.linux.as_mut().expect("it is set");
            change(linux.resources.as_mut().expect("it is set"));
        },
        ErrorKind::InvalidArgument,
        &format!("config.linux.resources.{message}"),
    );
}

/// Checks the kind and text of the error for a modified security context.
#[track_caller]
fn refuses_context(
    change: impl FnOnce(&mut cri::LinuxContainerSecurityContext),
    kind: ErrorKind,
    message: &str,
) {
    let message = format!("config.linux.security_context.{message}");
    refuses(|config| change(context(config)), kind, &message);
}

fn context(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerSecurityContext {
    config
        .linux
        .as_mut()
        .expect("it is set")
        .security_context
        .as_mut()
        .expect("it is set")
}

fn pod_context(config: &mut cri::PodSandboxConfig) -> &mut cri::LinuxSandboxSecurityContext {
    config
        .linux
        .as_mut()
        .expect("it is set")
        .security_context
        .as_mut()
        .expect("it is set")
}

// === nothing panics ===

/// A container with a value in every field, to be corrupted.
fn full() -> Vec<u8> {
    let mut config = app();
    config.envs = vec![cri::KeyValue {
        key: "A".into(),
        value: b"b".to_vec(),
    }];
    config.mounts = vec![cri::Mount {
        container_path: "/a".into(),
        host_path: "/b".into(),
        ..Default::default()
    }];
    config.log_path = "a".into();
    config.working_dir = "/".into();
    config.devices = vec![cri::Device {
        container_path: "/d".into(),
        host_path: "/d".into(),
        permissions: "r".into(),
    }];
    config.stop_signal = 3;
    let linux = config.linux.as_mut().expect("it is set");
    let resources = linux.resources.as_mut().expect("it is set");
    resources.cpuset_cpus = "1-2".into();
    resources.cpu_quota = 5000;
    resources.hugepage_limits = vec![cri::HugepageLimit {
        page_size: "2MB".into(),
        limit: 1,
    }];
    resources.unified = map(&[("a.b", "c")]);
    let context = linux.security_context.as_mut().expect("it is set");
    context.run_as_user = Some(cri::Int64Value { value: 1 });
    context.masked_paths = strings(&["/a"]);
    context.namespace_options = Some(cri::NamespaceOption {
        pid: 1,
        ..Default::default()
    });
    config.encode_to_vec()
}

proptest! {
    #[test]
    fn container_translation_of_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(config) = cri::ContainerConfig::decode(bytes.as_slice()) {
            let _ = container_of(config);
        }
    }

    #[test]
    fn container_translation_of_mutated_bytes_does_not_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = full();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(config) = cri::ContainerConfig::decode(bytes.as_slice()) {
            let _ = container_of(config);
        }
    }

    #[test]
    fn any_limits_are_rejected_or_as_requested(
        cpu_period: i64, cpu_quota: i64, cpu_shares: i64, memory: i64, swap: i64, oom_score_adj: i64,
        cpuset_cpus in "[0-9,-]{0,8}",
    ) {
        let limits = cri::LinuxContainerResources {
            cpu_period, cpu_quota, cpu_shares, oom_score_adj, cpuset_cpus,
            memory_limit_in_bytes: memory,
            memory_swap_limit_in_bytes: swap,
            ..Default::default()
        };
        if let Ok(limits) = update(limits) {
            prop_assert_eq!(limits.cpu_period_us.map_or(0, CpuPeriod::get), cpu_period.unsigned_abs());
            prop_assert_eq!(limits.cpu_quota_us.map_or(0, CpuQuota::signed), cpu_quota.max(-1));
            prop_assert_eq!(limits.cpu_shares.is_some(), cpu_shares > 0);
            prop_assert_eq!(limits.memory_limit_bytes.map_or(0, MemoryLimit::signed), memory);
            prop_assert_eq!(limits.memory_swap_limit_bytes.map_or(0, MemoryLimit::signed), swap);
            prop_assert_eq!(i64::from(limits.oom_score_adj.map_or(0, OomScoreAdj::get)), oom_score_adj);
        }
    }

    #[test]
    fn pod_translation_of_any_text_does_not_panic(
        hostname in "\\PC{0,70}", name in "\\PC{0,20}", directory in "\\PC{0,20}", sysctl in "\\PC{0,20}",
        network in -1..5_i32, host_port: i32,
    ) {
        let mut config = pod();
        config.hostname = hostname;
        config.log_directory = directory;
        config.metadata.as_mut().expect("it is set").name = name;
        config.port_mappings = vec![cri::PortMapping { host_port, ..Default::default() }];
        config.linux.as_mut().expect("it is set").sysctls = map(&[(&sysctl, "1")]);
        pod_context(&mut config).namespace_options =
            Some(cri::NamespaceOption { network, ..Default::default() });
        let _ = sandbox_of(config);
    }
}
