//! `runtime.v1alpha2`: the last release of the version before v1, with PouchContainer's additions.
//!
//! ```text
//! runtime.v1alpha2.X/Y ──same messages──► runtime.v1.X/Y
//!                      ──additions──────► additions.rs, then v1's handler with the same bytes ──► status.rs
//! ```
//!
//! - A call whose messages have no additions is the call of v1 under another name: it is forwarded without
//!   conversion.
//! - A message with additions is decoded for these; then the same bytes are decoded as v1's message. An
//!   addition that this runtime does not support is refused by name, never ignored.
//! - Where clients of this version expect other behaviour than that of v1, they get it: a missing host path
//!   is an error.

use std::future::ready;
use std::sync::Arc;

use prost::Message;
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::image_service_server::ImageServiceServer;
use switchyard_proto::cri::v1alpha2 as old;
use tonic::Status;
use tonic::codegen::{Service, http};

use crate::image::Images;
use crate::routed::{Request, ResponseFuture, RoutedService, method_of, unary};
use crate::runtime::Runtime;
use crate::runtime_service::RuntimeService;

mod additions;
mod quota;
mod status;

/// The API version in the answer to Version.
const API: &str = "v1alpha2";

/// The calls of the RuntimeService that are forwarded to v1.
const RUNTIME_CALLS: [&str; 19] = [
    "Status",
    "UpdateRuntimeConfig",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PodSandboxStatus",
    "ListPodSandbox",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "ListContainers",
    "ReopenContainerLog",
    "ExecSync",
    "Exec",
    "Attach",
    "PortForward",
    "ContainerStats",
    "ListContainerStats",
    "PodSandboxStats",
    "ListPodSandboxStats",
];

/// The calls of the ImageService that are forwarded to v1.
const IMAGE_CALLS: [&str; 2] = ["RemoveImage", "ImageFsInfo"];

/// `runtime.v1alpha2.RuntimeService`.
#[derive(Debug, Clone)]
pub struct RuntimeServiceV1alpha2 {
    v1: RuntimeService,
    runtime: Arc<Runtime>,
}

/// `runtime.v1alpha2.ImageService`.
#[derive(Debug, Clone)]
pub struct ImageServiceV1alpha2 {
    v1: ImageServiceServer<Images>,
    images: Images,
}

/// `runtime.v1alpha2.VolumeService`.
#[derive(Debug, Clone)]
pub struct VolumeServiceV1alpha2 {
    runtime: Arc<Runtime>,
}

// === impl RuntimeServiceV1alpha2 ===

impl RuntimeServiceV1alpha2 {
    pub(crate) const fn new(v1: RuntimeService, runtime: Arc<Runtime>) -> Self {
        Self { v1, runtime }
    }
}

impl RoutedService for RuntimeServiceV1alpha2 {
    const NAME: &'static str = old::runtime_service_server::SERVICE_NAME;

    fn call(&self, request: Request) -> ResponseFuture {
        let runtime = &self.runtime;
        match method_of(&request) {
            "Version" => unary(runtime, request, |runtime, request| {
                ready(Ok(runtime.version_of(request, API)))
            }),
            "RunPodSandbox" => unary(runtime, request, run_sandbox),
            "StartPodSandbox" => unary(runtime, request, start_sandbox),
            // Boxed because the future is large.
            "CreateContainer" => unary(runtime, request, |runtime, request| {
                Box::pin(create(runtime, request))
            }),
            "UpdateContainerResources" => unary(runtime, request, update),
            "ContainerStatus" => unary(runtime, request, container_status),
            call if RUNTIME_CALLS.contains(&call) => self.v1.call(renamed(request)),
            call => unknown(call),
        }
    }
}

// === impl ImageServiceV1alpha2 ===

impl ImageServiceV1alpha2 {
    pub(crate) const fn new(v1: ImageServiceServer<Images>, images: Images) -> Self {
        Self { v1, images }
    }
}

impl RoutedService for ImageServiceV1alpha2 {
    const NAME: &'static str = old::image_service_server::SERVICE_NAME;

    fn call(&self, request: Request) -> ResponseFuture {
        let images = &self.images;
        match method_of(&request) {
            "ListImages" => unary(images, request, list_images),
            "ImageStatus" => unary(images, request, image_status),
            "PullImage" => unary(images, request, pull_image),
            call if IMAGE_CALLS.contains(&call) => self.v1.clone().call(renamed(request)),
            call => unknown(call),
        }
    }
}

// === impl VolumeServiceV1alpha2 ===

impl VolumeServiceV1alpha2 {
    pub(crate) const fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime }
    }
}

impl RoutedService for VolumeServiceV1alpha2 {
    const NAME: &'static str = old::volume_service_server::SERVICE_NAME;

    fn call(&self, request: Request) -> ResponseFuture {
        match method_of(&request) {
            "RemoveVolume" => unary(&self.runtime, request, remove_volume),
            call => unknown(call),
        }
    }
}

// === calls ===

/// The same request, addressed to v1.
fn renamed<B>(mut request: http::Request<B>) -> http::Request<B> {
    let path = request
        .uri()
        .path()
        .replacen("/runtime.v1alpha2.", "/runtime.v1.", 1);
    *request.uri_mut() = path
        .parse()
        .expect("a part of a path was replaced by another one");
    request
}

fn unknown(call: &str) -> ResponseFuture {
    let answer = Status::unimplemented(format!(
        "{call} is not a call of runtime.{API}: use runtime.v1"
    ));
    let answer = answer.into_http();
    Box::pin(async move { Ok(answer) })
}

/// Converts a message to the other version through its bytes. Fields that the other version lacks are lost.
fn recoded<T: Message + Default>(message: &impl Message) -> Result<T> {
    T::decode(message.encode_to_vec().as_slice()).map_err(|error| {
        Error::internal(format!("the versions of CRI differ in a message: {error}"))
    })
}

async fn run_sandbox(
    runtime: Arc<Runtime>,
    request: old::RunPodSandboxRequest,
) -> Result<cri::RunPodSandboxResponse> {
    additions::of_sandbox(request.config.as_ref(), "config")?;
    runtime.run_sandbox(recoded(&request)?).await
}

async fn start_sandbox(
    runtime: Arc<Runtime>,
    request: old::StartPodSandboxRequest,
) -> Result<old::StartPodSandboxResponse> {
    let old::StartPodSandboxRequest { pod_sandbox_id } = request;
    runtime.start_sandbox(&pod_sandbox_id).await?;
    Ok(old::StartPodSandboxResponse {})
}

async fn create(
    runtime: Arc<Runtime>,
    request: old::CreateContainerRequest,
) -> Result<cri::CreateContainerResponse> {
    let additions = additions::of_container(request.config.as_ref())?;
    additions::of_sandbox(request.sandbox_config.as_ref(), "sandbox_config")?;
    let volumes = additions.volumes().clone();
    runtime
        .create_with(recoded(&request)?, &volumes, |spec| additions.apply(spec))
        .await
}

async fn update(
    runtime: Arc<Runtime>,
    request: old::UpdateContainerResourcesRequest,
) -> Result<cri::UpdateContainerResourcesResponse> {
    let additions = additions::of_update(request.linux.as_ref())?;
    runtime
        .update_with(recoded(&request)?, |update| additions.change(update))
        .await
}

async fn container_status(
    runtime: Arc<Runtime>,
    request: cri::ContainerStatusRequest,
) -> Result<old::ContainerStatusResponse> {
    let task = runtime.scope.tasks().find(&request.container_id)?;
    let mut answer: old::ContainerStatusResponse =
        recoded(&runtime.container_status(request).await?)?;
    let inspection = runtime.scope.tasks().inspect(task.id).await?;
    if let Some(status) = &mut answer.status {
        status::complete(
            status,
            &task,
            runtime.records.task(&task).as_deref(),
            &inspection,
        );
    }
    Ok(answer)
}

async fn list_images(
    images: Images,
    request: cri::ListImagesRequest,
) -> Result<old::ListImagesResponse> {
    let cri::ListImagesRequest { filter } = request;
    let images = images.chosen(filter).await?;
    Ok(old::ListImagesResponse {
        images: images.iter().map(status::image).collect::<Result<_>>()?,
    })
}

async fn image_status(
    images: Images,
    request: cri::ImageStatusRequest,
) -> Result<old::ImageStatusResponse> {
    let (image, info) = images.found(request).await?;
    Ok(old::ImageStatusResponse {
        image: image.as_ref().map(status::image).transpose()?,
        info,
    })
}

async fn pull_image(
    images: Images,
    request: old::PullImageRequest,
) -> Result<cri::PullImageResponse> {
    additions::of_sandbox(request.sandbox_config.as_ref(), "sandbox_config")?;
    images.pull(recoded(&request)?).await
}

/// Idempotent. A volume that a container uses is not removed.
async fn remove_volume(
    runtime: Arc<Runtime>,
    request: old::RemoveVolumeRequest,
) -> Result<old::RemoveVolumeResponse> {
    let old::RemoveVolumeRequest { volume_name } = request;
    additions::check_volume(&volume_name, "volume_name")?;
    runtime.scope.volumes().remove(volume_name).await?;
    Ok(old::RemoveVolumeResponse {})
}

/// Decodes the bytes as the requests that have additions, and as those of v1; returns the refusals.
///
/// # Panics
/// If a request of this version is not a request of v1.
#[cfg(feature = "fuzzing")]
pub(crate) fn any_bytes(data: &[u8]) -> Vec<Error> {
    let mut refusals = Vec::new();
    if let Ok(request) = old::CreateContainerRequest::decode(data) {
        let v1: Result<cri::CreateContainerRequest> = recoded(&request);
        v1.expect("a request of this version is one of v1");
        refusals.extend(additions::of_container(request.config.as_ref()).err());
        refusals
            .extend(additions::of_sandbox(request.sandbox_config.as_ref(), "sandbox_config").err());
    }
    if let Ok(request) = old::RunPodSandboxRequest::decode(data) {
        let v1: Result<cri::RunPodSandboxRequest> = recoded(&request);
        v1.expect("a request of this version is one of v1");
        refusals.extend(additions::of_sandbox(request.config.as_ref(), "config").err());
    }
    if let Ok(request) = old::UpdateContainerResourcesRequest::decode(data) {
        let v1: Result<cri::UpdateContainerResourcesRequest> = recoded(&request);
        v1.expect("a request of this version is one of v1");
        refusals.extend(additions::of_update(request.linux.as_ref()).err());
    }
    if let Ok(request) = old::RemoveVolumeRequest::decode(data) {
        refusals.extend(additions::check_volume(&request.volume_name, "volume_name").err());
    }
    refusals
}
