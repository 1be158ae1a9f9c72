//! `runtime.v1.RuntimeService`: decode, call the core, encode.
//!
//! The calls themselves are in the modules below and in [`streaming`](crate::streaming), by what they are about; here they meet the
//! trait that tonic serves. Checkpoints of whole pods answer `Unimplemented`.

use std::sync::Arc;

use switchyard_core::backend::Handler;
use switchyard_core::gateway::Scope;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;
use switchyard_streaming::Sessions;
use tonic::Request;

use crate::batch;
use crate::config::Config;
use crate::cpus::{CpuOwnership, ExclusiveCpus};
use crate::deadline::{Answer, answer};
use crate::encoded::Encoded;
use crate::record::Records;
use crate::samples::Samples;
use crate::to_proto;

mod checkpoint;
mod container;
mod events;
mod metrics;
pub(crate) mod node;
mod sandbox;
mod stats;

/// Serves `runtime.v1.RuntimeService` over one scope.
#[derive(Debug)]
pub struct Runtime {
    pub(crate) scope: Scope,
    pub(crate) config: Config,
    pub(crate) records: Arc<Records>,
    /// Where streaming sessions wait for their clients.
    pub(crate) sessions: Option<Sessions>,
    pub(crate) cpus: CpuOwnership,
    encoded: Encoded,
    task_rates: Samples<TaskId>,
    sandbox_rates: Samples<SandboxId>,
}

impl Runtime {
    pub(crate) fn new(
        scope: Scope,
        config: Config,
        sessions: Option<Sessions>,
        cpus: Option<Arc<dyn ExclusiveCpus>>,
    ) -> Self {
        Self {
            scope,
            config,
            sessions,
            cpus: CpuOwnership::new(cpus),
            records: Arc::default(),
            encoded: Encoded::default(),
            task_rates: Samples::default(),
            sandbox_rates: Samples::default(),
        }
    }
}

/// The error for a handler that this node does not have.
pub(crate) fn unknown_handler(field: &str, name: &str, handlers: &[Handler]) -> Error {
    let known: Vec<_> = handlers.iter().map(|handler| handler.name.as_str()).collect();
    Error::invalid(field, format!("there is no handler {name:?}: this node has {}", known.join(", ")))
}

/// The answer to a call that this runtime does not serve.
fn absent<T>(call: &str, why: &str) -> Result<T> {
    Err(Error::unimplemented(format!("{call} is not served by this runtime: {why}")))
}

#[tonic::async_trait]
impl cri::runtime_service_server::RuntimeService for Runtime {
    type StreamPodSandboxesStream = batch::Stream<cri::StreamPodSandboxesResponse>;
    type StreamContainersStream = batch::Stream<cri::StreamContainersResponse>;
    type StreamContainerStatsStream = batch::Stream<cri::StreamContainerStatsResponse>;
    type StreamPodSandboxStatsStream = batch::Stream<cri::StreamPodSandboxStatsResponse>;
    type StreamPodSandboxMetricsStream = batch::Stream<cri::StreamPodSandboxMetricsResponse>;
    type GetContainerEventsStream = batch::Stream<cri::ContainerEventResponse>;

    // --- node ---

    async fn version(&self, request: Request<cri::VersionRequest>) -> Answer<cri::VersionResponse> {
        answer(request, |request| async move { Ok(node::version(request, "v1")) }).await
    }

    async fn status(&self, request: Request<cri::StatusRequest>) -> Answer<cri::StatusResponse> {
        answer(request, |request| async move { Ok(self.node_status(request)) }).await
    }

    async fn runtime_config(
        &self,
        request: Request<cri::RuntimeConfigRequest>,
    ) -> Answer<cri::RuntimeConfigResponse> {
        answer(request, |request| async move { Ok(self.node_config(request)) }).await
    }

    async fn update_runtime_config(
        &self,
        request: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> Answer<cri::UpdateRuntimeConfigResponse> {
        answer(request, |request| self.update_config(request)).await
    }

    // --- sandboxes ---

    async fn run_pod_sandbox(
        &self,
        request: Request<cri::RunPodSandboxRequest>,
    ) -> Answer<cri::RunPodSandboxResponse> {
        answer(request, |request| self.run_sandbox(request)).await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> Answer<cri::StopPodSandboxResponse> {
        answer(request, |request| self.stop_sandbox(request)).await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Answer<cri::RemovePodSandboxResponse> {
        answer(request, |request| self.remove_sandbox(request)).await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Answer<cri::PodSandboxStatusResponse> {
        answer(request, |request| self.sandbox_status(request)).await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Answer<cri::ListPodSandboxResponse> {
        answer(request, |cri::ListPodSandboxRequest { filter }| async {
            Ok(cri::ListPodSandboxResponse { items: self.list_sandboxes(filter)? })
        })
        .await
    }

    async fn stream_pod_sandboxes(
        &self,
        request: Request<cri::StreamPodSandboxesRequest>,
    ) -> Answer<Self::StreamPodSandboxesStream> {
        answer(request, |cri::StreamPodSandboxesRequest { filter }| async {
            let all = self.list_sandboxes(filter)?;
            Ok(batch::stream(all, |pod_sandboxes| cri::StreamPodSandboxesResponse { pod_sandboxes }))
        })
        .await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<cri::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<cri::UpdatePodSandboxResourcesResponse> {
        answer(request, |request| self.update_sandbox(request)).await
    }

    // --- containers ---

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> Answer<cri::CreateContainerResponse> {
        // It is large.
        answer(request, |request| Box::pin(self.create(request))).await
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> Answer<cri::StartContainerResponse> {
        answer(request, |request| self.start(request)).await
    }

    async fn stop_container(
        &self,
        request: Request<cri::StopContainerRequest>,
    ) -> Answer<cri::StopContainerResponse> {
        answer(request, |request| self.stop(request)).await
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> Answer<cri::RemoveContainerResponse> {
        answer(request, |request| self.remove(request)).await
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Answer<cri::ListContainersResponse> {
        answer(request, |cri::ListContainersRequest { filter }| async {
            Ok(cri::ListContainersResponse { containers: self.list(filter)? })
        })
        .await
    }

    async fn stream_containers(
        &self,
        request: Request<cri::StreamContainersRequest>,
    ) -> Answer<Self::StreamContainersStream> {
        answer(request, |cri::StreamContainersRequest { filter }| async {
            let all = self.list(filter)?;
            Ok(batch::stream(all, |containers| cri::StreamContainersResponse { containers }))
        })
        .await
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Answer<cri::ContainerStatusResponse> {
        answer(request, |request| self.container_status(request)).await
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Answer<cri::UpdateContainerResourcesResponse> {
        answer(request, |request| self.update(request)).await
    }

    async fn reopen_container_log(
        &self,
        request: Request<cri::ReopenContainerLogRequest>,
    ) -> Answer<cri::ReopenContainerLogResponse> {
        answer(request, |request| self.reopen_log(request)).await
    }

    async fn exec_sync(&self, request: Request<cri::ExecSyncRequest>) -> Answer<cri::ExecSyncResponse> {
        answer(request, |request| self.exec_sync(request)).await
    }

    async fn exec(&self, request: Request<cri::ExecRequest>) -> Answer<cri::ExecResponse> {
        answer(request, |request| async { self.exec(request) }).await
    }

    async fn attach(&self, request: Request<cri::AttachRequest>) -> Answer<cri::AttachResponse> {
        answer(request, |request| async { self.attach(request) }).await
    }

    async fn port_forward(
        &self,
        request: Request<cri::PortForwardRequest>,
    ) -> Answer<cri::PortForwardResponse> {
        answer(request, |request| async { self.port_forward(request) }).await
    }

    // --- usage ---

    async fn container_stats(
        &self,
        request: Request<cri::ContainerStatsRequest>,
    ) -> Answer<cri::ContainerStatsResponse> {
        answer(request, |request| self.usage_of_container(request)).await
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> Answer<cri::ListContainerStatsResponse> {
        answer(request, |cri::ListContainerStatsRequest { filter }| async {
            Ok(cri::ListContainerStatsResponse { stats: self.usage_of_containers(filter).await? })
        })
        .await
    }

    async fn stream_container_stats(
        &self,
        request: Request<cri::StreamContainerStatsRequest>,
    ) -> Answer<Self::StreamContainerStatsStream> {
        answer(request, |cri::StreamContainerStatsRequest { filter }| async {
            let all = self.usage_of_containers(filter).await?;
            Ok(batch::stream(all, |container_stats| cri::StreamContainerStatsResponse { container_stats }))
        })
        .await
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<cri::PodSandboxStatsRequest>,
    ) -> Answer<cri::PodSandboxStatsResponse> {
        answer(request, |request| self.usage_of_sandbox(request)).await
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Answer<cri::ListPodSandboxStatsResponse> {
        answer(request, |cri::ListPodSandboxStatsRequest { filter }| async {
            Ok(cri::ListPodSandboxStatsResponse { stats: self.usage_of_sandboxes(filter).await? })
        })
        .await
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<cri::StreamPodSandboxStatsRequest>,
    ) -> Answer<Self::StreamPodSandboxStatsStream> {
        answer(request, |cri::StreamPodSandboxStatsRequest { filter }| async {
            let all = self.usage_of_sandboxes(filter).await?;
            Ok(batch::stream(all, |pod_sandbox_stats| cri::StreamPodSandboxStatsResponse {
                pod_sandbox_stats,
            }))
        })
        .await
    }

    // --- metrics and events ---

    async fn list_metric_descriptors(
        &self,
        request: Request<cri::ListMetricDescriptorsRequest>,
    ) -> Answer<cri::ListMetricDescriptorsResponse> {
        answer(request, |cri::ListMetricDescriptorsRequest {}| async {
            Ok(cri::ListMetricDescriptorsResponse { descriptors: to_proto::descriptors() })
        })
        .await
    }

    async fn list_pod_sandbox_metrics(
        &self,
        request: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> Answer<cri::ListPodSandboxMetricsResponse> {
        answer(request, |cri::ListPodSandboxMetricsRequest {}| async {
            Ok(cri::ListPodSandboxMetricsResponse { pod_metrics: self.metrics().await? })
        })
        .await
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        request: Request<cri::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        answer(request, |cri::StreamPodSandboxMetricsRequest {}| async {
            let all = self.metrics().await?;
            Ok(batch::stream(all, |pod_sandbox_metrics| cri::StreamPodSandboxMetricsResponse {
                pod_sandbox_metrics,
            }))
        })
        .await
    }

    async fn get_container_events(
        &self,
        request: Request<cri::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        answer(request, |cri::GetEventsRequest {}| async { self.events() }).await
    }

    async fn checkpoint_container(
        &self,
        request: Request<cri::CheckpointContainerRequest>,
    ) -> Answer<cri::CheckpointContainerResponse> {
        answer(request, |request| self.checkpoint(request)).await
    }

    async fn checkpoint_pod(
        &self,
        request: Request<cri::CheckpointPodRequest>,
    ) -> Answer<cri::CheckpointPodResponse> {
        answer(request, |_| async { absent("CheckpointPod", "KEP-5823 is alpha, and no runtime has it") })
            .await
    }

    async fn restore_pod(&self, request: Request<cri::RestorePodRequest>) -> Answer<cri::RestorePodResponse> {
        answer(request, |_| async { absent("RestorePod", "KEP-5823 is alpha, and no runtime has it") }).await
    }
}
