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
    let target =
        || prop_oneof![5 => (0_usize..4).prop_map(Target::Known), 1 => text().prop_map(Target::Text)];
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
    (names, texts, modes, labels(), labels(), number(), resources()).prop_map(
        |((name, uid, namespace, attempt), texts, modes, labels, annotations, user, limits)| {
            let (hostname, log_directory, cgroup_parent, runtime_handler, server) = texts;
            let (network, pid, ipc, privileged) = modes;
            let dns = cri::DnsConfig { servers: vec![server.clone()], ..Default::default() };
            let config = cri::PodSandboxConfig {
                metadata: Some(cri::PodSandboxMetadata { name, uid, namespace, attempt }),
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
            cri::RunPodSandboxRequest { config: Some(config), runtime_handler }
        },
    )
}

fn container() -> impl Strategy<Value = cri::ContainerConfig> {
    let image = prop_oneof![5 => Just(BUSYBOX.to_owned()), 1 => text()];
    let texts = (seldom(), seldom(), seldom(), seldom());
    let mounts = prop::collection::vec((text(), text(), choice()), 0..2);
    (name(), image, texts, mounts, labels(), labels(), resources(), (choice(), number())).prop_map(
        |(name, image, texts, mounts, labels, annotations, limits, (stop_signal, user))| {
            let (working_dir, log_path, variable, username) = texts;
            let mount = |(host_path, container_path, propagation)| cri::Mount {
                host_path,
                container_path,
                propagation,
                ..Default::default()
            };
            let envs = vec![cri::KeyValue { key: variable.clone(), value: variable.clone().into_bytes() }];
            cri::ContainerConfig {
                metadata: Some(cri::ContainerMetadata { name, attempt: 0 }),
                image: Some(spec(&image)),
                command: vec!["top".to_owned()],
                working_dir,
                envs: if variable.is_empty() { Vec::new() } else { envs },
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
    (numbers, seldom(), seldom()).prop_map(|((period, quota, shares, memory, swap, score), cpus, unified)| {
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
    })
}

fn old_resources() -> impl Strategy<Value = old::LinuxContainerResources> {
    ((number(), number(), number()), seldom(), any::<u32>(), seldom()).prop_map(
        |((reservation, swappiness, hard), text, weight, quota)| old::LinuxContainerResources {
            memory_reservation: reservation,
            memory_swappiness: (swappiness != 0).then_some(cri::Int64Value { value: swappiness }),
            ulimits: vec![old::Ulimit { name: text.clone(), hard, soft: hard }; usize::from(hard != 0)],
            blkio_weight: if weight % 2 == 0 { 0 } else { weight },
            disk_quota: if quota.is_empty() { Default::default() } else { [(quota.clone(), quota)].into() },
            cpuset_cpus: text,
            ..Default::default()
        },
    )
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
        mounts: vec![old::Mount { name: volume, container_path: "/v".to_owned(), ..Default::default() }],
        linux: Some(old::LinuxContainerConfig { resources: Some(limits), security_context: None }),
        net_priority,
        ..Default::default()
    }
}

// === impl Call ===

impl Call {
    /// Makes the call, and updates the model if it succeeds.
    pub(super) async fn make(self, node: &mut ServiceFixture, model: &mut Model) {
        match self {
            Self::Run(request) => {
                let config = request.config.clone().expect("it was made with one");
                let answer = asked("RunPodSandbox", node.runtime.clone().run_pod_sandbox(*request)).await;
                if let Some(answer) = answer {
                    model.made_pod(answer.into_inner().pod_sandbox_id, config);
                }
            }
            Self::Create(pod, config) => {
                let pod = Model::pick(&model.pods, &pod);
                if let Some(id) =
                    asked("CreateContainer", Box::pin(node.create(&pod, (*config).clone()))).await
                {
                    model.made_container(id, pod, *config);
                }
            }
            Self::CreateOld(pod, config) => create_old(node, model, &pod, *config).await,
            Self::Start(id) => {
                let id = Model::pick(&model.containers, &id);
                asked("StartContainer", node.start(&id)).await;
            }
            Self::Stop(id, timeout) => {
                let container_id = Model::pick(&model.containers, &id);
                let request = cri::StopContainerRequest { container_id, timeout };
                asked("StopContainer", node.runtime.stop_container(request)).await;
            }
            Self::StopPod(id) => {
                let request = cri::StopPodSandboxRequest { pod_sandbox_id: Model::pick(&model.pods, &id) };
                asked("StopPodSandbox", node.runtime.stop_pod_sandbox(request)).await;
            }
            Self::Remove(id) => {
                let container_id = Model::pick(&model.containers, &id);
                let request = cri::RemoveContainerRequest { container_id: container_id.clone() };
                if asked("RemoveContainer", node.runtime.remove_container(request)).await.is_some() {
                    model.containers.remove(&container_id);
                }
            }
            Self::RemovePod(id) => {
                let pod_sandbox_id = Model::pick(&model.pods, &id);
                let request = cri::RemovePodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
                if asked("RemovePodSandbox", node.runtime.remove_pod_sandbox(request)).await.is_some() {
                    model.removed_pod(&pod_sandbox_id);
                }
            }
            Self::Update(..) | Self::UpdateOld(..) | Self::UpdatePod(..) => self.update(node, model).await,
            Self::Exec(id, words, timeout) => exec(node, model, &id, words, timeout).await,
            Self::Open(id, word, ports) => open(node, model, &id, word, ports).await,
            Self::Look(id) => look(node, model, &id).await,
            Self::Filter(containers, pods) => {
                let request = cri::ListContainersRequest { filter: Some(*containers) };
                asked("ListContainers", node.runtime.list_containers(request)).await;
                let request = cri::ListPodSandboxRequest { filter: Some(*pods) };
                asked("ListPodSandbox", node.runtime.list_pod_sandbox(request)).await;
            }
            Self::Image(image, user) => images(node, &image, user).await,
            Self::Configure(pod_cidr, location) => {
                let network_config = Some(cri::NetworkConfig { pod_cidr });
                let runtime_config = Some(cri::RuntimeConfig { network_config });
                let request = cri::UpdateRuntimeConfigRequest { runtime_config };
                asked("UpdateRuntimeConfig", node.runtime.update_runtime_config(request)).await;
                let container_id = Model::pick(&model.containers, &Target::Known(0));
                let request = cri::CheckpointContainerRequest { container_id, location, timeout: -1 };
                asked("CheckpointContainer", node.runtime.checkpoint_container(request)).await;
            }
            Self::RemoveVolume(volume_name) => {
                let mut volumes = VolumeServiceClient::new(node.channel.clone());
                asked("RemoveVolume", volumes.remove_volume(old::RemoveVolumeRequest { volume_name })).await;
            }
        }
    }

    /// Limits change nothing that lists show.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the caller hands over what changes limits, and nothing else"
    )]
    async fn update(self, node: &mut ServiceFixture, model: &Model) {
        match self {
            Self::Update(id, limits) => {
                let container_id = Model::pick(&model.containers, &id);
                let request = cri::UpdateContainerResourcesRequest {
                    container_id,
                    linux: Some(*limits),
                    ..Default::default()
                };
                asked("UpdateContainerResources", node.runtime.update_container_resources(request)).await;
            }
            Self::UpdateOld(id, limits) => {
                let container_id = Model::pick(&model.containers, &id);
                let request = old::UpdateContainerResourcesRequest {
                    container_id,
                    linux: Some(*limits),
                    ..Default::default()
                };
                let mut client = RuntimeServiceClient::new(node.channel.clone());
                asked("UpdateContainerResources of v1alpha2", client.update_container_resources(request))
                    .await;
            }
            Self::UpdatePod(id, limits) => {
                let request = cri::UpdatePodSandboxResourcesRequest {
                    pod_sandbox_id: Model::pick(&model.pods, &id),
                    overhead: Some((*limits).clone()),
                    resources: Some(*limits),
                };
                asked("UpdatePodSandboxResources", node.runtime.update_pod_sandbox_resources(request)).await;
            }
            other => unreachable!("{other:?} is no update"),
        }
    }
}

async fn create_old(node: &ServiceFixture, model: &mut Model, pod: &Target, config: old::ContainerConfig) {
    let pod = Model::pick(&model.pods, pod);
    let shown = cri::ContainerConfig {
        metadata: config.metadata.clone(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        ..Default::default()
    };
    let request = old::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(config),
        sandbox_config: None,
    };
    let mut client = RuntimeServiceClient::new(node.channel.clone());
    let answer = asked("CreateContainer of v1alpha2", Box::pin(client.create_container(request))).await;
    if let Some(answer) = answer {
        let id = answer.into_inner().container_id;
        // A repeated request returns the existing id, which may have been created through the other version.
        model.containers.entry(id).or_insert((pod, shown));
    }
}

async fn exec(node: &mut ServiceFixture, model: &Model, id: &Target, words: Vec<String>, timeout: i64) {
    let container_id = Model::pick(&model.containers, id);
    // A command that does not exist fails at once, whatever the timeout.
    let cmd = words.into_iter().enumerate().map(
        |(at, word)| {
            if at == 0 { format!("/no/such/{word}") } else { word }
        },
    );
    let request = cri::ExecSyncRequest { container_id, cmd: cmd.collect(), timeout };
    asked("ExecSync", node.runtime.exec_sync(request)).await;
}

async fn open(node: &mut ServiceFixture, model: &Model, id: &Target, word: String, port: Vec<i32>) {
    let container_id = Model::pick(&model.containers, id);
    let request = cri::ExecRequest {
        container_id: container_id.clone(),
        cmd: vec![word],
        stdout: true,
        ..Default::default()
    };
    asked("Exec", node.runtime.exec(request)).await;
    let request =
        cri::AttachRequest { container_id: container_id.clone(), stdin: true, ..Default::default() };
    asked("Attach", node.runtime.attach(request)).await;
    let request = cri::PortForwardRequest { pod_sandbox_id: Model::pick(&model.pods, id), port };
    asked("PortForward", node.runtime.port_forward(request)).await;
    asked(
        "ReopenContainerLog",
        node.runtime.reopen_container_log(cri::ReopenContainerLogRequest { container_id }),
    )
    .await;
}

async fn look(node: &mut ServiceFixture, model: &Model, id: &Target) {
    let pod = Model::pick(&model.pods, id);
    let container = Model::pick(&model.containers, id);
    asked("PodSandboxStatus", node.pod_status(&pod)).await;
    asked("ContainerStatus", node.status(&container)).await;
    let request = cri::ContainerStatsRequest { container_id: container };
    asked("ContainerStats", node.runtime.container_stats(request)).await;
    let request = cri::PodSandboxStatsRequest { pod_sandbox_id: pod };
    asked("PodSandboxStats", node.runtime.pod_sandbox_stats(request)).await;
}

async fn images(node: &mut ServiceFixture, image: &str, username: String) {
    let request = cri::ImageStatusRequest { image: Some(spec(image)), verbose: true };
    asked("ImageStatus", node.images.image_status(request)).await;
    let auth = cri::AuthConfig { username: username.clone(), server_address: username, ..Default::default() };
    let request = cri::PullImageRequest { image: Some(spec(image)), auth: Some(auth), sandbox_config: None };
    asked("PullImage", node.images.pull_image(request)).await;
    let request = cri::ListImagesRequest { filter: Some(cri::ImageFilter { image: Some(spec(image)) }) };
    asked("ListImages", node.images.list_images(request)).await;
    let request = cri::RemoveImageRequest { image: Some(spec(image)) };
    asked("RemoveImage", node.images.remove_image(request)).await;
}
