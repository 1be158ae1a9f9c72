//! A blocking client of the CRI socket, and shortcuts to the message fields that tests change most.
//!
//! Longer than 500 lines because one client has a method for each CRI call that tests make.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::image_service_client::ImageServiceClient;
use switchyard_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use switchyard_proto::cri::v1alpha2 as old;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::host::eventually;

mod node;

mod images;

/// Limit for one call.
const CALL_LIMIT: Duration = Duration::from_secs(90);
/// Limit for a container to end by itself.
const EXIT_LIMIT: Duration = Duration::from_secs(30);
/// The largest answer that is taken, in bytes: what kubelets take.
const MAX_ANSWER: usize = 16 << 20;

/// A client of one socket. Each call is a connection of its own, so that it does not matter when the daemon
/// restarts.
#[derive(Clone)]
pub struct Cri {
    endpoint: Endpoint,
    runtime: Arc<Runtime>,
}

impl fmt::Debug for Cri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cri")
            .field("endpoint", &self.endpoint.uri())
            .finish_non_exhaustive()
    }
}

impl Cri {
    /// A client of the socket, which need not be there yet.
    ///
    /// # Panics
    /// When a thread cannot be started.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))
            .expect("the path of a test's socket needs no escapes")
            .timeout(CALL_LIMIT);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self {
            endpoint,
            runtime: Arc::new(runtime.expect("a runtime can be made")),
        }
    }

    /// The same client, but each of its calls may take no longer than this.
    #[must_use]
    pub fn with_timeout(&self, limit: Duration) -> Self {
        Self {
            endpoint: self.endpoint.clone().timeout(limit),
            runtime: Arc::clone(&self.runtime),
        }
    }

    /// The same client, but each of its streams buffers at most this many unread bytes.
    #[must_use]
    pub fn with_window(&self, bytes: u32) -> Self {
        let endpoint = self.endpoint.clone().initial_stream_window_size(bytes);
        Self {
            endpoint,
            runtime: Arc::clone(&self.runtime),
        }
    }

    /// Calls the RuntimeService.
    ///
    /// # Errors
    /// The status of the call; `Unavailable` or `Unknown` when no server listens.
    pub fn runtime<T>(
        &self,
        call: impl AsyncFnOnce(RuntimeServiceClient<Channel>) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        self.runtime.block_on(async {
            let channel = self.endpoint.connect_lazy();
            let client = RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER);
            Ok(call(client).await?.into_inner())
        })
    }

    /// Calls the ImageService.
    ///
    /// # Errors
    /// As [`Cri::runtime`].
    pub fn images<T>(
        &self,
        call: impl AsyncFnOnce(ImageServiceClient<Channel>) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        self.runtime.block_on(async {
            let channel = self.endpoint.connect_lazy();
            let client = ImageServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER);
            Ok(call(client).await?.into_inner())
        })
    }

    /// Calls any service of the socket, by a client that `call` makes.
    ///
    /// # Errors
    /// As [`Cri::runtime`].
    pub fn channel<T>(
        &self,
        call: impl AsyncFnOnce(Channel) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        self.runtime
            .block_on(async { Ok(call(self.endpoint.connect_lazy()).await?.into_inner()) })
    }

    /// Runs something on this client's own runtime, to its end.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// `RunPodSandbox` with the default handler; the id of the pod.
    ///
    /// # Errors
    /// The status of the call.
    pub fn run_pod(&self, config: &cri::PodSandboxConfig) -> Result<String, Status> {
        self.run_pod_with(config, "")
    }

    /// `RunPodSandbox` with this handler; the id of the pod.
    ///
    /// # Errors
    /// The status of the call.
    pub fn run_pod_with(
        &self,
        config: &cri::PodSandboxConfig,
        handler: &str,
    ) -> Result<String, Status> {
        let request = cri::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: handler.to_owned(),
        };
        self.runtime(async |mut client| client.run_pod_sandbox(request).await)
            .map(|answer| answer.pod_sandbox_id)
    }

    /// Returns the JSON that the verbose `PodSandboxStatus` has beyond the status.
    ///
    /// # Panics
    /// When the pod does not exist.
    #[track_caller]
    #[must_use]
    pub fn pod_info(&self, pod: &str) -> String {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: pod.to_owned(),
            verbose: true,
        };
        let answer = self.runtime(async |mut client| client.pod_sandbox_status(request).await);
        answer
            .expect("the pod exists")
            .info
            .remove("info")
            .unwrap_or_default()
    }

    /// Returns the JSON that the verbose `ContainerStatus` has beyond the status.
    ///
    /// # Panics
    /// When the container does not exist.
    #[track_caller]
    #[must_use]
    pub fn container_info(&self, container: &str) -> String {
        let request = cri::ContainerStatusRequest {
            container_id: container.to_owned(),
            verbose: true,
        };
        let answer = self.runtime(async |mut client| client.container_status(request).await);
        answer
            .expect("the container exists")
            .info
            .remove("info")
            .unwrap_or_default()
    }

    /// `StopPodSandbox`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn stop_pod(&self, pod: &str) -> Result<(), Status> {
        let request = cri::StopPodSandboxRequest {
            pod_sandbox_id: pod.to_owned(),
        };
        self.runtime(async |mut client| client.stop_pod_sandbox(request).await)
            .map(drop)
    }

    /// `StartPodSandbox`, which only `runtime.v1alpha2` has.
    ///
    /// # Errors
    /// The status of the call.
    pub fn start_pod(&self, pod: &str) -> Result<(), Status> {
        let request = old::StartPodSandboxRequest {
            pod_sandbox_id: pod.to_owned(),
        };
        let start = async |channel| {
            old::runtime_service_client::RuntimeServiceClient::new(channel)
                .start_pod_sandbox(request)
                .await
        };
        self.channel(start).map(drop)
    }

    /// `CreateContainer` of `runtime.v1alpha2`; the id.
    ///
    /// # Errors
    /// The status of the call.
    pub fn create_v1alpha2(
        &self,
        pod: &str,
        config: &old::ContainerConfig,
    ) -> Result<String, Status> {
        let request = old::CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config.clone()),
            sandbox_config: None,
        };
        let create = async |channel| {
            let mut client = old::runtime_service_client::RuntimeServiceClient::new(channel);
            Box::pin(client.create_container(request)).await
        };
        self.channel(create).map(|answer| answer.container_id)
    }

    /// `UpdateContainerResources` of v1alpha2.
    ///
    /// # Errors
    /// The status of the call.
    pub fn update_v1alpha2(
        &self,
        container: &str,
        limits: old::LinuxContainerResources,
    ) -> Result<(), Status> {
        let request = old::UpdateContainerResourcesRequest {
            container_id: container.to_owned(),
            linux: Some(limits),
            ..Default::default()
        };
        let call = async |channel| {
            old::runtime_service_client::RuntimeServiceClient::new(channel)
                .update_container_resources(request)
                .await
        };
        self.channel(call).map(drop)
    }

    /// `RemoveVolume`, which only `runtime.v1alpha2` has.
    ///
    /// # Errors
    /// The status of the call.
    pub fn remove_volume(&self, name: &str) -> Result<(), Status> {
        let request = old::RemoveVolumeRequest {
            volume_name: name.to_owned(),
        };
        let remove = async |channel| {
            old::volume_service_client::VolumeServiceClient::new(channel)
                .remove_volume(request)
                .await
        };
        self.channel(remove).map(drop)
    }

    /// `RemovePodSandbox`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn remove_pod(&self, pod: &str) -> Result<(), Status> {
        let request = cri::RemovePodSandboxRequest {
            pod_sandbox_id: pod.to_owned(),
        };
        self.runtime(async |mut client| client.remove_pod_sandbox(request).await)
            .map(drop)
    }

    /// `PodSandboxStatus`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn pod_status(&self, pod: &str) -> Result<cri::PodSandboxStatus, Status> {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: pod.to_owned(),
            verbose: false,
        };
        self.runtime(async |mut client| client.pod_sandbox_status(request).await)
            .map(|answer| answer.status.unwrap_or_default())
    }

    /// `ListPodSandbox` without a filter.
    ///
    /// # Errors
    /// The status of the call.
    pub fn pods(&self) -> Result<Vec<cri::PodSandbox>, Status> {
        self.runtime(async |mut client| {
            client
                .list_pod_sandbox(cri::ListPodSandboxRequest::default())
                .await
        })
        .map(|answer| answer.items)
    }

    /// `CreateContainer`; the id of the container.
    ///
    /// # Errors
    /// The status of the call.
    pub fn create(
        &self,
        pod: &str,
        config: &cri::ContainerConfig,
        pod_config: &cri::PodSandboxConfig,
    ) -> Result<String, Status> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config.clone()),
            sandbox_config: Some(pod_config.clone()),
        };
        self.runtime(async |mut client| client.create_container(request).await)
            .map(|answer| answer.container_id)
    }

    /// `StartContainer`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn start(&self, container: &str) -> Result<(), Status> {
        let request = cri::StartContainerRequest {
            container_id: container.to_owned(),
        };
        self.runtime(async |mut client| client.start_container(request).await)
            .map(drop)
    }

    /// `StopContainer` with a grace in seconds.
    ///
    /// # Errors
    /// The status of the call.
    pub fn stop(&self, container: &str, grace: i64) -> Result<(), Status> {
        let request = cri::StopContainerRequest {
            container_id: container.to_owned(),
            timeout: grace,
        };
        self.runtime(async |mut client| client.stop_container(request).await)
            .map(drop)
    }

    /// `RemoveContainer`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn remove(&self, container: &str) -> Result<(), Status> {
        let request = cri::RemoveContainerRequest {
            container_id: container.to_owned(),
        };
        self.runtime(async |mut client| client.remove_container(request).await)
            .map(drop)
    }

    /// `ContainerStatus`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn status(&self, container: &str) -> Result<cri::ContainerStatus, Status> {
        let request = cri::ContainerStatusRequest {
            container_id: container.to_owned(),
            verbose: false,
        };
        self.runtime(async |mut client| client.container_status(request).await)
            .map(|answer| answer.status.unwrap_or_default())
    }

    /// `ListContainers` without a filter.
    ///
    /// # Errors
    /// The status of the call.
    pub fn containers(&self) -> Result<Vec<cri::Container>, Status> {
        self.runtime(async |mut client| {
            client
                .list_containers(cri::ListContainersRequest::default())
                .await
        })
        .map(|answer| answer.containers)
    }

    /// `ExecSync` with a timeout in seconds, 0 for none.
    ///
    /// # Errors
    /// The status of the call.
    pub fn exec(
        &self,
        container: &str,
        words: &[&str],
        timeout: i64,
    ) -> Result<cri::ExecSyncResponse, Status> {
        let cmd = words.iter().map(|word| (*word).to_owned()).collect();
        let request = cri::ExecSyncRequest {
            container_id: container.to_owned(),
            cmd,
            timeout,
        };
        self.runtime(async |mut client| client.exec_sync(request).await)
    }

    /// Returns the output of `sh -c script` in the container, without its last newline.
    ///
    /// # Panics
    /// When the call fails or the script does not end with 0.
    #[track_caller]
    #[must_use]
    pub fn sh(&self, container: &str, script: &str) -> String {
        let answer = self
            .exec(container, &["sh", "-c", script], 30)
            .unwrap_or_else(|status| panic!("exec of {script:?} in {container}: {status}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let out = text(&answer.stdout);
        let err = text(&answer.stderr);
        assert!(
            answer.exit_code == 0,
            "{script:?} ended with {}: {out}{err}",
            answer.exit_code
        );
        out.strip_suffix('\n').map(str::to_owned).unwrap_or(out)
    }

    /// `UpdateContainerResources`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn update(
        &self,
        container: &str,
        limits: cri::LinuxContainerResources,
    ) -> Result<(), Status> {
        let request = cri::UpdateContainerResourcesRequest {
            container_id: container.to_owned(),
            linux: Some(limits),
            ..Default::default()
        };
        self.runtime(async |mut client| client.update_container_resources(request).await)
            .map(drop)
    }

    /// `ReopenContainerLog`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn reopen_log(&self, container: &str) -> Result<(), Status> {
        let request = cri::ReopenContainerLogRequest {
            container_id: container.to_owned(),
        };
        self.runtime(async |mut client| client.reopen_container_log(request).await)
            .map(drop)
    }

    /// `ContainerStats`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn stats(&self, container: &str) -> Result<cri::ContainerStats, Status> {
        let request = cri::ContainerStatsRequest {
            container_id: container.to_owned(),
        };
        self.runtime(async |mut client| client.container_stats(request).await)
            .map(|answer| answer.stats.unwrap_or_default())
    }

    /// `Exec`; the URL of the session.
    ///
    /// # Errors
    /// The status of the call.
    pub fn exec_url(&self, request: cri::ExecRequest) -> Result<String, Status> {
        self.runtime(async |mut client| client.exec(request).await)
            .map(|answer| answer.url)
    }

    /// `Attach`; the URL of the session.
    ///
    /// # Errors
    /// The status of the call.
    pub fn attach_url(&self, request: cri::AttachRequest) -> Result<String, Status> {
        self.runtime(async |mut client| client.attach(request).await)
            .map(|answer| answer.url)
    }

    /// `PortForward`; the URL of the session.
    ///
    /// # Errors
    /// The status of the call.
    pub fn port_forward_url(&self, pod: &str, ports: &[i32]) -> Result<String, Status> {
        let request = cri::PortForwardRequest {
            pod_sandbox_id: pod.to_owned(),
            port: ports.to_vec(),
        };
        self.runtime(async |mut client| client.port_forward(request).await)
            .map(|answer| answer.url)
    }

    /// Waits until the container has ended; its status then.
    ///
    /// # Panics
    /// When it has no status, or has not ended after half a minute.
    #[track_caller]
    #[must_use]
    pub fn wait_exit(&self, container: &str) -> cri::ContainerStatus {
        let mut last = cri::ContainerStatus::default();
        let ended = eventually(EXIT_LIMIT, || {
            last = self
                .status(container)
                .expect("the container exists, so it has a status");
            last.state() == cri::ContainerState::ContainerExited
        });
        assert!(
            ended,
            "container {container} has not ended after {EXIT_LIMIT:?}: {last:?}"
        );
        last
    }
}

/// An image by its reference.
#[must_use]
pub fn image_spec(reference: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: reference.to_owned(),
        ..Default::default()
    }
}

/// The security context of a pod, made if it is not there.
pub fn security(config: &mut cri::PodSandboxConfig) -> &mut cri::LinuxSandboxSecurityContext {
    config
        .linux
        .get_or_insert_default()
        .security_context
        .get_or_insert_default()
}

/// The namespaces of a pod, made if they are not there.
pub fn namespaces(config: &mut cri::PodSandboxConfig) -> &mut cri::NamespaceOption {
    security(config).namespace_options.get_or_insert_default()
}

/// The security context of a container, made if it is not there.
pub fn context(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerSecurityContext {
    config
        .linux
        .get_or_insert_default()
        .security_context
        .get_or_insert_default()
}

/// The limits of a container, made if they are not there.
pub fn limits(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerResources {
    config
        .linux
        .get_or_insert_default()
        .resources
        .get_or_insert_default()
}

/// Calls until it succeeds: what clients do while the daemon or containerd comes back.
///
/// # Panics
/// When it has not succeeded within `limit`.
#[track_caller]
pub fn retry<T>(limit: Duration, what: &str, mut call: impl FnMut() -> Result<T, Status>) -> T {
    let mut last = None;
    let done = eventually(limit, || {
        last = Some(call());
        last.as_ref().is_some_and(Result::is_ok)
    });
    let last = last.expect("it was called");
    assert!(done, "{what}: {:?}", last.err());
    last.unwrap_or_else(|status| panic!("{what}: {status}"))
}
