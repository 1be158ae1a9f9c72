//! `runtime.v1alpha2` on the same socket, with clients of that version.

use std::collections::BTreeMap;

use switchyard_fake::BUSYBOX;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_proto::cri::v1alpha2::image_service_client::ImageServiceClient;
use switchyard_proto::cri::v1alpha2::runtime_service_client::RuntimeServiceClient;
use switchyard_proto::cri::v1alpha2::volume_service_client::VolumeServiceClient;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::support::{ServiceFixture, app, code, pod, spec};

mod additions;

/// The clients of a node.
struct Old {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    volumes: VolumeServiceClient<Channel>,
}

impl Old {
    fn of(node: &ServiceFixture) -> Self {
        let channel = || node.channel.clone();
        Self {
            runtime: RuntimeServiceClient::new(channel()),
            images: ImageServiceClient::new(channel()),
            volumes: VolumeServiceClient::new(channel()),
        }
    }

    async fn create(&mut self, pod: &str, config: old::ContainerConfig) -> Result<String, Status> {
        let request = old::CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config),
            sandbox_config: None,
        };
        Ok(Box::pin(self.runtime.create_container(request))
            .await?
            .into_inner()
            .container_id)
    }

    async fn status(&mut self, container: &str) -> old::ContainerStatus {
        let request = cri::ContainerStatusRequest {
            container_id: container.to_owned(),
            verbose: false,
        };
        expect_ok(self.runtime.container_status(request).await)
            .status
            .expect("it is always set")
    }
}

/// The answer to a call that must succeed.
#[track_caller]
fn expect_ok<T>(answer: Result<Response<T>, Status>) -> T {
    answer.expect("it answers").into_inner()
}

/// A container as a client of this version requests it.
fn container(name: &str) -> old::ContainerConfig {
    old::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: name.to_owned(),
            attempt: 0,
        }),
        image: Some(spec(BUSYBOX)),
        command: vec!["top".to_owned()],
        labels: BTreeMap::from([("made".to_owned(), "by v1alpha2".to_owned())]),
        log_path: format!("{name}/0.log"),
        ..Default::default()
    }
}

/// The same pod, as a client of this version requests it.
fn old_pod(name: &str) -> old::PodSandboxConfig {
    let bytes = prost::Message::encode_to_vec(&pod(name));
    prost::Message::decode(bytes.as_slice()).expect("the versions have the same bytes")
}

fn limited(
    name: &str,
    change: impl FnOnce(&mut old::LinuxContainerResources),
) -> old::ContainerConfig {
    let mut resources = old::LinuxContainerResources {
        memory_limit_in_bytes: 64 << 20,
        cpu_shares: 512,
        ..Default::default()
    };
    change(&mut resources);
    let linux = Some(old::LinuxContainerConfig {
        resources: Some(resources),
        ..Default::default()
    });
    old::ContainerConfig {
        linux,
        ..container(name)
    }
}

#[tokio::test]
async fn version_reports_the_api_version_that_answers() {
    let node = ServiceFixture::new().await;
    let mut old = Old::of(&node);
    let version = expect_ok(old.runtime.version(cri::VersionRequest::default()).await);
    assert_eq!(
        (
            version.version.as_str(),
            version.runtime_api_version.as_str()
        ),
        ("0.1.0", "v1alpha2")
    );
    let status = expect_ok(
        old.runtime
            .status(cri::StatusRequest { verbose: true })
            .await,
    );
    assert_eq!(status.status.expect("it is set").conditions.len(), 2);
    expect_ok(
        old.runtime
            .update_runtime_config(cri::UpdateRuntimeConfigRequest::default())
            .await,
    );
}

#[tokio::test]
async fn image_status_has_volumes() {
    let node = ServiceFixture::new().await;
    let mut old = Old::of(&node);
    let request = old::PullImageRequest {
        image: Some(spec(BUSYBOX)),
        ..Default::default()
    };
    let id = expect_ok(old.images.pull_image(request).await).image_ref;
    let listed = expect_ok(
        old.images
            .list_images(cri::ListImagesRequest { filter: None })
            .await,
    )
    .images;
    let request = cri::ImageStatusRequest {
        image: Some(spec(BUSYBOX)),
        verbose: true,
    };
    let found = expect_ok(old.images.image_status(request).await);
    assert_eq!(listed, [found.image.expect("it was pulled")]);
    assert_eq!(
        (listed[0].id.as_str(), listed[0].repo_tags.as_slice()),
        (id.as_str(), &[BUSYBOX.to_owned()][..])
    );
    assert!(found.info.contains_key("info"));
    let usage = expect_ok(old.images.image_fs_info(cri::ImageFsInfoRequest {}).await);
    assert!(!usage.image_filesystems.is_empty());
    expect_ok(
        old.images
            .remove_image(cri::RemoveImageRequest {
                image: Some(spec(BUSYBOX)),
            })
            .await,
    );
    let listed = expect_ok(
        old.images
            .list_images(cri::ListImagesRequest { filter: None })
            .await,
    );
    assert_eq!(listed.images, []);
}

#[tokio::test]
async fn both_versions_see_the_same_pods_and_containers() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    let mut old = Old::of(&node);
    let request = old::RunPodSandboxRequest {
        config: Some(old_pod("web")),
        ..Default::default()
    };
    let sandbox = expect_ok(old.runtime.run_pod_sandbox(request).await).pod_sandbox_id;
    assert_eq!(node.run(pod("web")).await.expect("it is a retry"), sandbox);
    let made = old
        .create(&sandbox, container("app"))
        .await
        .expect("it is well formed");
    let request = cri::StartContainerRequest {
        container_id: made.clone(),
    };
    expect_ok(old.runtime.start_container(request).await);
    let other = node
        .create(&sandbox, app("other"))
        .await
        .expect("it is well formed");

    assert_lists_are_the_same(&mut node, &mut old, &sandbox).await;

    let new = node.status(&other).await.expect("it is there");
    let seen = old.status(&other).await;
    assert_eq!(
        (seen.id, seen.image_ref, seen.log_path),
        (new.id, new.image_ref, new.log_path)
    );
    assert_eq!(
        (seen.labels, seen.annotations),
        (new.labels, new.annotations)
    );
    assert_eq!(seen.mounts.len(), new.mounts.len());
    let limits = seen
        .resources
        .and_then(|resources| resources.linux)
        .expect("they are reported");
    assert_eq!(
        (limits.cpu_shares, limits.memory_limit_in_bytes),
        (512, 64 << 20)
    );
    assert_eq!(seen.pouch_resources, Some(limits));
    let seen = node.status(&made).await.expect("v1 sees it");
    assert_eq!(seen.state(), cri::ContainerState::ContainerRunning);
    assert_eq!(seen.labels["made"], "by v1alpha2");

    assert_removal_by_the_old_version_is_seen(&mut node, &mut old, &sandbox, &made).await;
    node.is_sound();
}

async fn assert_removal_by_the_old_version_is_seen(
    node: &mut ServiceFixture,
    old: &mut Old,
    sandbox: &str,
    container: &str,
) {
    let request = cri::StopContainerRequest {
        container_id: container.to_owned(),
        timeout: 0,
    };
    expect_ok(old.runtime.stop_container(request).await);
    expect_ok(
        old.runtime
            .remove_container(cri::RemoveContainerRequest {
                container_id: container.to_owned(),
            })
            .await,
    );
    assert_eq!(code(node.status(container).await), Code::NotFound);
    let pod_sandbox_id = sandbox.to_owned();
    expect_ok(
        old.runtime
            .stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id })
            .await,
    );
    let request = cri::RemovePodSandboxRequest {
        pod_sandbox_id: sandbox.to_owned(),
    };
    expect_ok(old.runtime.remove_pod_sandbox(request).await);
    assert_eq!(code(node.pod_status(sandbox).await), Code::NotFound);
}

async fn assert_lists_are_the_same(node: &mut ServiceFixture, old: &mut Old, sandbox: &str) {
    let filter = cri::ListContainersRequest { filter: None };
    let listed = expect_ok(old.runtime.list_containers(filter.clone()).await);
    assert_eq!(
        listed,
        expect_ok(node.runtime.list_containers(filter).await)
    );
    assert_eq!(listed.containers.len(), 2);
    let filter = cri::ListPodSandboxRequest { filter: None };
    let listed = expect_ok(old.runtime.list_pod_sandbox(filter.clone()).await);
    assert_eq!(
        listed,
        expect_ok(node.runtime.list_pod_sandbox(filter).await)
    );
    let request = cri::PodSandboxStatusRequest {
        pod_sandbox_id: sandbox.to_owned(),
        verbose: false,
    };
    let status = expect_ok(old.runtime.pod_sandbox_status(request).await)
        .status
        .expect("it is always set");
    assert_eq!(status, node.pod_status(sandbox).await.expect("it is there"));
}

#[tokio::test]
async fn exec_and_stats_work_in_both_versions() {
    let mut node = ServiceFixture::new().await;
    let (sandbox, container) = node.running().await;
    let mut old = Old::of(&node);
    let container_id = || container.clone();
    let request = cri::ExecSyncRequest {
        container_id: container_id(),
        cmd: vec!["true".into()],
        timeout: 5,
    };
    assert_eq!(
        expect_ok(old.runtime.exec_sync(request.clone()).await),
        expect_ok(node.runtime.exec_sync(request).await)
    );
    // This node has no streaming server; both versions report that.
    let request = cri::ExecRequest {
        container_id: container_id(),
        stdout: true,
        ..Default::default()
    };
    same(
        old.runtime.exec(request.clone()).await,
        node.runtime.exec(request).await,
    );
    let request = cri::AttachRequest {
        container_id: container_id(),
        stdout: true,
        ..Default::default()
    };
    same(
        old.runtime.attach(request.clone()).await,
        node.runtime.attach(request).await,
    );
    let request = cri::PortForwardRequest {
        pod_sandbox_id: sandbox.clone(),
        port: vec![80],
    };
    same(
        old.runtime.port_forward(request.clone()).await,
        node.runtime.port_forward(request).await,
    );

    expect_ok(
        old.runtime
            .reopen_container_log(cri::ReopenContainerLogRequest {
                container_id: container_id(),
            })
            .await,
    );
    assert_stats_are_reported(&mut old, &sandbox, &container).await;

    let linux = old::LinuxContainerResources {
        cpu_shares: 128,
        memory_reservation: 32 << 20,
        ..Default::default()
    };
    let request = old::UpdateContainerResourcesRequest {
        container_id: container_id(),
        linux: Some(linux),
        ..Default::default()
    };
    expect_ok(old.runtime.update_container_resources(request).await);
    let limits = old
        .status(&container)
        .await
        .pouch_resources
        .expect("they are reported");
    assert_eq!(
        (limits.cpu_shares, limits.memory_reservation),
        (128, 32 << 20)
    );
    assert_eq!(limits.memory_limit_in_bytes, 64 << 20);
    node.is_sound();
}

async fn assert_stats_are_reported(old: &mut Old, sandbox: &str, container: &str) {
    let request = cri::ContainerStatsRequest {
        container_id: container.to_owned(),
    };
    let stats = expect_ok(old.runtime.container_stats(request).await)
        .stats
        .expect("it runs");
    assert_eq!(stats.attributes.expect("it is set").id, container);
    let stats = expect_ok(
        old.runtime
            .list_container_stats(cri::ListContainerStatsRequest { filter: None })
            .await,
    );
    assert_eq!(stats.stats.len(), 1);
    let request = cri::PodSandboxStatsRequest {
        pod_sandbox_id: sandbox.to_owned(),
    };
    let stats = expect_ok(old.runtime.pod_sandbox_stats(request).await)
        .stats
        .expect("it is ready");
    assert_eq!(stats.attributes.expect("it is set").id, sandbox);
    let request = cri::ListPodSandboxStatsRequest { filter: None };
    assert_eq!(
        expect_ok(old.runtime.list_pod_sandbox_stats(request).await)
            .stats
            .len(),
        1
    );
}

#[track_caller]
fn same<T: std::fmt::Debug>(old: Result<Response<T>, Status>, new: Result<Response<T>, Status>) {
    let [old, new] = [old, new].map(|answer| answer.expect_err("there is no streaming server"));
    assert_eq!((old.code(), old.message()), (new.code(), new.message()));
}

#[tokio::test]
async fn v1_only_calls_are_not_served() {
    let node = ServiceFixture::new().await;
    for path in [
        "/runtime.v1alpha2.RuntimeService/GetContainerEvents",
        "/runtime.v1alpha2.RuntimeService/RuntimeConfig",
        "/runtime.v1alpha2.ImageService/StreamImages",
        "/runtime.v1alpha2.VolumeService/ListVolumes",
    ] {
        let mut grpc = tonic::client::Grpc::new(node.channel.clone());
        grpc.ready().await.expect("the socket listens");
        let codec =
            tonic_prost::ProstCodec::<cri::RuntimeConfigRequest, cri::RuntimeConfigResponse>::default();
        let request = tonic::Request::new(cri::RuntimeConfigRequest {});
        let answer = grpc
            .unary(request, path.parse().expect("it is a path"), codec)
            .await;
        assert_eq!(code(answer), Code::Unimplemented, "{path}");
    }
}
