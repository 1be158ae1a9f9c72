//! The calls, and the effect of each on the model.

use proptest::prelude::*;
use switchyard_fake::BUSYBOX;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_proto::cri::v1alpha2::runtime_service_client::RuntimeServiceClient;
use switchyard_proto::cri::v1alpha2::volume_service_client::VolumeServiceClient;

use super::values::{choice, labels, name, number, seldom, text};
use super::{Model, asked};
use crate::support::{ServiceFixture, spec};

mod perform;

/// The object of a call.
#[derive(Debug, Clone)]
pub(super) enum Target {
    /// An existing one, by number.
    Known(usize),
    /// Any text.
    Text(String),
}

/// A call.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Run(Box<cri::RunPodSandboxRequest>),
    Create(Target, Box<cri::ContainerConfig>),
    CreateOld(Target, Box<old::ContainerConfig>),
    Start(Target),
    Stop(Target, i64),
    StopPod(Target),
    Remove(Target),
    RemovePod(Target),
    Update(Target, Box<cri::LinuxContainerResources>),
    UpdateOld(Target, Box<old::LinuxContainerResources>),
    UpdatePod(Target, Box<cri::LinuxContainerResources>),
    Exec(Target, Vec<String>, i64),
    Open(Target, String, Vec<i32>),
    Look(Target),
    Filter(Box<cri::ContainerFilter>, Box<cri::PodSandboxFilter>),
    Image(String, String),
    Configure(String, String),
    RemoveVolume(String),
}

/// Any call.
pub(super) fn call() -> impl Strategy<Value = Call> {
    let target = || prop_oneof![5 => (0_usize..4).prop_map(Target::Known), 1 => text().prop_map(Target::Text)];
    prop_oneof![
        4 => pod().prop_map(|request| Call::Run(Box::new(request))),
        6 => (target(), container()).prop_map(|(pod, config)| Call::Create(pod, Box::new(config))),
        2 => (target(), container(), old_resources(), text(), number()).prop_map(|(pod, config, limits, volume, priority)| {
            Call::CreateOld(pod, Box::new(as_old(config, limits, volume, priority)))
        }),
        3 => target().prop_map(Call::Start),
        2 => (target(), number()).prop_map(|(id, timeout)| Call::Stop(id, timeout)),
        1 => target().prop_map(Call::StopPod),
        1 => target().prop_map(Call::Remove),
        1 => target().prop_map(Call::RemovePod),
        2 => (target(), resources()).prop_map(|(id, limits)| Call::Update(id, Box::new(limits))),
        1 => (target(), old_resources()).prop_map(|(id, limits)| Call::UpdateOld(id, Box::new(limits))),
        1 => (target(), resources()).prop_map(|(id, limits)| Call::UpdatePod(id, Box::new(limits))),
        1 => (target(), prop::collection::vec(text(), 0..3), number())
            .prop_map(|(id, words, timeout)| Call::Exec(id, words, timeout)),
        1 => (target(), text(), prop::collection::vec(any::<i32>(), 0..3))
            .prop_map(|(id, word, ports)| Call::Open(id, word, ports)),
        2 => target().prop_map(Call::Look),
        1 => (text(), text(), labels(), choice()).prop_map(|(id, pod, labels, state)| Call::Filter(
            Box::new(cri::ContainerFilter {
                id: id.clone(),
                pod_sandbox_id: pod,
                label_selector: labels.clone(),
                state: Some(cri::ContainerStateValue { state }),
            }),
            Box::new(cri::PodSandboxFilter {
                id,
                label_selector: labels,
                state: Some(cri::PodSandboxStateValue { state }),
            }),
        )),
        2 => (text(), text()).prop_map(|(image, user)| Call::Image(image, user)),
        1 => (text(), text()).prop_map(|(cidr, location)| Call::Configure(cidr, location)),
        1 => text().prop_map(Call::RemoveVolume),
    ]
}

fn pod() -> impl Strategy<Value = cri::RunPodSandboxRequest> {
    let names = (name(), name(), name(), 0_u32..2);
    let texts = (seldom(), seldom(), seldom(), seldom(), seldom());
    let modes = (choice(), choice(), choice(), any::<bool>());
    (
        names,
        texts,
        modes,
        labels(),
        labels(),
        number(),
        resources(),
    )
        .prop_map(
            |((name, uid, namespace, attempt), texts, modes, labels, annotations, user, limits)| {
                let (hostname, log_directory, cgroup_parent, runtime_handler, server) = texts;
                let (network, pid, ipc, privileged) = modes;
                let dns = cri::DnsConfig {
                    servers: vec![server.clone()],
                    ..Default::default()
                };
                let config = cri::PodSandboxConfig {
                    metadata: Some(cri::PodSandboxMetadata {
                        name,
                        uid,
                        namespace,
                        attempt,
                    }),
                    hostname,
                    log_directory,
                    dns_config: (!server.is_empty()).then_some(dns),
                    labels,
                    annotations,
                    linux: Some(cri::LinuxPodSandboxConfig {
                        cgroup_parent,
                        resources: Some(limits),
                        security_context: Some(cri::LinuxSandboxSecurityContext {
                            namespace_options: Some(cri::NamespaceOption {
                                network,
                                pid,
                                ipc,
                                ..Default::default()
                            }),
                            run_as_user: (user != 0).then_some(cri::Int64Value { value: user }),
                            privileged,
                            ..Default::default()
                        }),
                        ..Default::default()
                    }),
                    ..Default::default()
                };
                cri::RunPodSandboxRequest {
                    config: Some(config),
                    runtime_handler,
                }
            },
        )
}

fn container() -> impl Strategy<Value = cri::ContainerConfig> {
    let image = prop_oneof![5 => Just(BUSYBOX.to_owned()), 1 => text()];
    let texts = (seldom(), seldom(), seldom(), seldom());
    let mounts = prop::collection::vec((text(), text(), choice()), 0..2);
    (
        name(),
        image,
        texts,
        mounts,
        labels(),
        labels(),
        resources(),
        (choice(), number()),
    )
        .prop_map(
            |(name, image, texts, mounts, labels, annotations, limits, (stop_signal, user))| {
                let (working_dir, log_path, variable, username) = texts;
                let mount = |(host_path, container_path, propagation)| cri::Mount {
                    host_path,
                    container_path,
                    propagation,
                    ..Default::default()
                };
                let envs = vec![cri::KeyValue {
                    key: variable.clone(),
                    value: variable.clone().into_bytes(),
                }];
                cri::ContainerConfig {
                    metadata: Some(cri::ContainerMetadata { name, attempt: 0 }),
                    image: Some(spec(&image)),
                    command: vec!["top".to_owned()],
                    working_dir,
                    envs: if variable.is_empty() {
                        Vec::new()
                    } else {
                        envs
                    },
                    mounts: mounts.into_iter().map(mount).collect(),
                    labels,
                    annotations,
                    log_path,
                    stop_signal,
                    linux: Some(cri::LinuxContainerConfig {
                        resources: Some(limits),
                        security_context: Some(cri::LinuxContainerSecurityContext {
                            run_as_username: username,
                            run_as_user: (user != 0).then_some(cri::Int64Value { value: user }),
                            ..Default::default()
                        }),
                    }),
                    ..Default::default()
                }
            },
        )
}

fn resources() -> impl Strategy<Value = cri::LinuxContainerResources> {
    let numbers = (number(), number(), number(), number(), number(), number());
    (numbers, seldom(), seldom()).prop_map(
        |((period, quota, shares, memory, swap, score), cpus, unified)| {
            cri::LinuxContainerResources {
                cpu_period: period,
                cpu_quota: quota,
                cpu_shares: shares,
                memory_limit_in_bytes: memory,
                memory_swap_limit_in_bytes: swap,
                oom_score_adj: score,
                cpuset_cpus: cpus,
                unified: if unified.is_empty() {
                    Default::default()
                } else {
                    [(unified.clone(), unified)].into()
                },
                ..Default::default()
            }
        },
    )
}

fn old_resources() -> impl Strategy<Value = old::LinuxContainerResources> {
    (
        (number(), number(), number()),
        seldom(),
        any::<u32>(),
        seldom(),
    )
        .prop_map(|((reservation, swappiness, hard), text, weight, quota)| {
            old::LinuxContainerResources {
                memory_reservation: reservation,
                memory_swappiness: (swappiness != 0)
                    .then_some(cri::Int64Value { value: swappiness }),
                ulimits: vec![
                    old::Ulimit {
                        name: text.clone(),
                        hard,
                        soft: hard
                    };
                    usize::from(hard != 0)
                ],
                blkio_weight: if weight % 2 == 0 { 0 } else { weight },
                disk_quota: if quota.is_empty() {
                    Default::default()
                } else {
                    [(quota.clone(), quota)].into()
                },
                cpuset_cpus: text,
                ..Default::default()
            }
        })
}

fn as_old(
    config: cri::ContainerConfig,
    limits: old::LinuxContainerResources,
    volume: String,
    net_priority: i64,
) -> old::ContainerConfig {
    old::ContainerConfig {
        metadata: config.metadata,
        image: config.image,
        command: config.command,
        labels: config.labels,
        annotations: config.annotations,
        mounts: vec![old::Mount {
            name: volume,
            container_path: "/v".to_owned(),
            ..Default::default()
        }],
        linux: Some(old::LinuxContainerConfig {
            resources: Some(limits),
            security_context: None,
        }),
        net_priority,
        ..Default::default()
    }
}

// === impl Call ===
