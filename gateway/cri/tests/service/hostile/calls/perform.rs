//! Makes the calls, and keeps the model of what must be there after each.

use super::*;

impl Call {
    /// Makes the call, and updates the model if it succeeds.
    pub(crate) async fn make(self, node: &mut ServiceFixture, model: &mut Model) {
        match self {
            Self::Run(request) => {
                let config = request.config.clone().expect("it was made with one");
                let answer = asked(
                    "RunPodSandbox",
                    node.runtime.clone().run_pod_sandbox(*request),
                )
                .await;
                if let Some(answer) = answer {
                    model.made_pod(answer.into_inner().pod_sandbox_id, config);
                }
            }
            Self::Create(pod, config) => {
                let pod = Model::pick(&model.pods, &pod);
                if let Some(id) = asked(
                    "CreateContainer",
                    Box::pin(node.create(&pod, (*config).clone())),
                )
                .await
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
                let request = cri::StopContainerRequest {
                    container_id,
                    timeout,
                };
                asked("StopContainer", node.runtime.stop_container(request)).await;
            }
            Self::StopPod(id) => {
                let request = cri::StopPodSandboxRequest {
                    pod_sandbox_id: Model::pick(&model.pods, &id),
                };
                asked("StopPodSandbox", node.runtime.stop_pod_sandbox(request)).await;
            }
            Self::Remove(id) => remove(node, model, &id).await,
            Self::RemovePod(id) => remove_pod(node, model, &id).await,
            Self::Update(..) | Self::UpdateOld(..) | Self::UpdatePod(..) => {
                self.update(node, model).await
            }
            Self::Exec(id, words, timeout) => exec(node, model, &id, words, timeout).await,
            Self::Open(id, word, ports) => open(node, model, &id, word, ports).await,
            Self::Look(id) => look(node, model, &id).await,
            Self::Filter(containers, pods) => {
                let request = cri::ListContainersRequest {
                    filter: Some(*containers),
                };
                asked("ListContainers", node.runtime.list_containers(request)).await;
                let request = cri::ListPodSandboxRequest {
                    filter: Some(*pods),
                };
                asked("ListPodSandbox", node.runtime.list_pod_sandbox(request)).await;
            }
            Self::Image(image, user) => images(node, &image, user).await,
            Self::Configure(pod_cidr, location) => {
                configure(node, model, pod_cidr, location).await;
            }
            Self::RemoveVolume(volume_name) => {
                let mut volumes = VolumeServiceClient::new(node.channel.clone());
                asked(
                    "RemoveVolume",
                    volumes.remove_volume(old::RemoveVolumeRequest { volume_name }),
                )
                .await;
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
                asked(
                    "UpdateContainerResources",
                    node.runtime.update_container_resources(request),
                )
                .await;
            }
            Self::UpdateOld(id, limits) => {
                let container_id = Model::pick(&model.containers, &id);
                let request = old::UpdateContainerResourcesRequest {
                    container_id,
                    linux: Some(*limits),
                    ..Default::default()
                };
                let mut client = RuntimeServiceClient::new(node.channel.clone());
                asked(
                    "UpdateContainerResources of v1alpha2",
                    client.update_container_resources(request),
                )
                .await;
            }
            Self::UpdatePod(id, limits) => {
                let request = cri::UpdatePodSandboxResourcesRequest {
                    pod_sandbox_id: Model::pick(&model.pods, &id),
                    overhead: Some((*limits).clone()),
                    resources: Some(*limits),
                };
                asked(
                    "UpdatePodSandboxResources",
                    node.runtime.update_pod_sandbox_resources(request),
                )
                .await;
            }
            other => unreachable!("{other:?} is no update"),
        }
    }
}

async fn remove(node: &mut ServiceFixture, model: &mut Model, id: &Target) {
    let container_id = Model::pick(&model.containers, id);
    let request = cri::RemoveContainerRequest {
        container_id: container_id.clone(),
    };
    if asked("RemoveContainer", node.runtime.remove_container(request))
        .await
        .is_some()
    {
        model.containers.remove(&container_id);
    }
}

async fn remove_pod(node: &mut ServiceFixture, model: &mut Model, id: &Target) {
    let pod_sandbox_id = Model::pick(&model.pods, id);
    let request = cri::RemovePodSandboxRequest {
        pod_sandbox_id: pod_sandbox_id.clone(),
    };
    if asked("RemovePodSandbox", node.runtime.remove_pod_sandbox(request))
        .await
        .is_some()
    {
        model.removed_pod(&pod_sandbox_id);
    }
}

async fn create_old(
    node: &ServiceFixture,
    model: &mut Model,
    pod: &Target,
    config: old::ContainerConfig,
) {
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
    let answer = asked(
        "CreateContainer of v1alpha2",
        Box::pin(client.create_container(request)),
    )
    .await;
    if let Some(answer) = answer {
        let id = answer.into_inner().container_id;
        // A repeated request returns the existing id, which may have been created through the other version.
        model.containers.entry(id).or_insert((pod, shown));
    }
}

async fn exec(
    node: &mut ServiceFixture,
    model: &Model,
    id: &Target,
    words: Vec<String>,
    timeout: i64,
) {
    let container_id = Model::pick(&model.containers, id);
    // A command that does not exist fails at once, whatever the timeout.
    let cmd = words.into_iter().enumerate().map(|(at, word)| {
        if at == 0 {
            format!("/no/such/{word}")
        } else {
            word
        }
    });
    let request = cri::ExecSyncRequest {
        container_id,
        cmd: cmd.collect(),
        timeout,
    };
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
    let request = cri::AttachRequest {
        container_id: container_id.clone(),
        stdin: true,
        ..Default::default()
    };
    asked("Attach", node.runtime.attach(request)).await;
    let request = cri::PortForwardRequest {
        pod_sandbox_id: Model::pick(&model.pods, id),
        port,
    };
    asked("PortForward", node.runtime.port_forward(request)).await;
    asked(
        "ReopenContainerLog",
        node.runtime
            .reopen_container_log(cri::ReopenContainerLogRequest { container_id }),
    )
    .await;
}

async fn look(node: &mut ServiceFixture, model: &Model, id: &Target) {
    let pod = Model::pick(&model.pods, id);
    let container = Model::pick(&model.containers, id);
    asked("PodSandboxStatus", node.pod_status(&pod)).await;
    asked("ContainerStatus", node.status(&container)).await;
    let request = cri::ContainerStatsRequest {
        container_id: container,
    };
    asked("ContainerStats", node.runtime.container_stats(request)).await;
    let request = cri::PodSandboxStatsRequest {
        pod_sandbox_id: pod,
    };
    asked("PodSandboxStats", node.runtime.pod_sandbox_stats(request)).await;
}

async fn images(node: &mut ServiceFixture, image: &str, username: String) {
    let request = cri::ImageStatusRequest {
        image: Some(spec(image)),
        verbose: true,
    };
    asked("ImageStatus", node.images.image_status(request)).await;
    let auth = cri::AuthConfig {
        username: username.clone(),
        server_address: username,
        ..Default::default()
    };
    let request = cri::PullImageRequest {
        image: Some(spec(image)),
        auth: Some(auth),
        sandbox_config: None,
    };
    asked("PullImage", node.images.pull_image(request)).await;
    let request = cri::ListImagesRequest {
        filter: Some(cri::ImageFilter {
            image: Some(spec(image)),
        }),
    };
    asked("ListImages", node.images.list_images(request)).await;
    let request = cri::RemoveImageRequest {
        image: Some(spec(image)),
    };
    asked("RemoveImage", node.images.remove_image(request)).await;
}

async fn configure(node: &mut ServiceFixture, model: &Model, pod_cidr: String, location: String) {
    let network_config = Some(cri::NetworkConfig { pod_cidr });
    let runtime_config = Some(cri::RuntimeConfig { network_config });
    let request = cri::UpdateRuntimeConfigRequest { runtime_config };
    asked(
        "UpdateRuntimeConfig",
        node.runtime.update_runtime_config(request),
    )
    .await;
    let container_id = Model::pick(&model.containers, &Target::Known(0));
    let request = cri::CheckpointContainerRequest {
        container_id,
        location,
        timeout: -1,
    };
    asked(
        "CheckpointContainer",
        node.runtime.checkpoint_container(request),
    )
    .await;
}
