//! `runtime.v1.RuntimeService`: decodes, calls the core, encodes.
//!
//! The calls themselves are in the modules below and in [`streaming`](crate::streaming), by topic; this
//! module implements tonic's trait with them. Checkpoints of whole pods answer `Unimplemented`.

use std::sync::Arc;

use switchyard_core::backend::Handler;
use switchyard_core::gateway::Scope;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::reload::Reloadable;
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;
use switchyard_streaming::Sessions;
use tonic::Request;

use crate::batch;
use crate::config::Config;
use crate::cpus::{CpuOwnership, ExclusiveCpus};
use crate::deadline::{RpcResult, with_deadline};
use crate::encoded::EncodedCache;
use crate::output;
use crate::record::Records;
use crate::samples::Samples;
use crate::to_proto;

mod checkpoint;
mod container;
mod events;
mod held;
mod metrics;
mod node;
mod rivals;
mod sandbox;
mod stats;

/// Serves `runtime.v1.RuntimeService` over one scope.
#[derive(Debug)]
pub struct Runtime {
    pub(crate) scope: Scope,
    pub(crate) config: Reloadable<Config>,
    pub(crate) records: Arc<Records>,
    /// The streaming sessions that wait for their clients.
    pub(crate) sessions: Option<Sessions>,
    pub(crate) cpus: CpuOwnership,
    encoded: EncodedCache,
    task_rates: Samples<TaskId>,
    sandbox_rates: Samples<SandboxId>,
}

impl Runtime {
    pub(crate) fn new(
        scope: Scope,
        config: Reloadable<Config>,
        sessions: Option<Sessions>,
        cpus: Option<Arc<dyn ExclusiveCpus>>,
    ) -> Self {
        Self {
            scope,
            config,
            sessions,
            cpus: CpuOwnership::new(cpus),
            records: Arc::default(),
            encoded: EncodedCache::default(),
            task_rates: Samples::default(),
            sandbox_rates: Samples::default(),
        }
    }
}

/// The error for a runtime handler that this node does not have.
pub(crate) fn unknown_handler(field: &str, name: &str, handlers: &[Handler]) -> Error {
    let known: Vec<_> = handlers
        .iter()
        .map(|handler| handler.name.as_str())
        .collect();
    Error::invalid(
        field,
        format!(
            "there is no handler {name:?}: this node has {}",
            known.join(", ")
        ),
    )
}

/// The answer to an unsupported call.
fn unimplemented<T>(call: &str, why: &str) -> Result<T> {
    Err(Error::unimplemented(format!(
        "{call} is not served by this runtime: {why}"
    )))
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

    async fn version(
        &self,
        request: Request<cri::VersionRequest>,
    ) -> RpcResult<cri::VersionResponse> {
        with_deadline(request, |request| async move {
            Ok(self.version_of(request, "v1"))
        })
        .await
    }

    async fn status(&self, request: Request<cri::StatusRequest>) -> RpcResult<cri::StatusResponse> {
        with_deadline(request, |request| async move {
            Ok(self.node_status(request).await)
        })
        .await
    }

    async fn runtime_config(
        &self,
        request: Request<cri::RuntimeConfigRequest>,
    ) -> RpcResult<cri::RuntimeConfigResponse> {
        with_deadline(
            request,
            |request| async move { Ok(self.node_config(request)) },
        )
        .await
    }

    async fn update_runtime_config(
        &self,
        request: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> RpcResult<cri::UpdateRuntimeConfigResponse> {
        with_deadline(request, |request| self.update_config(request)).await
    }

    // --- sandboxes ---

    async fn run_pod_sandbox(
        &self,
        request: Request<cri::RunPodSandboxRequest>,
    ) -> RpcResult<cri::RunPodSandboxResponse> {
        with_deadline(request, |request| self.run_sandbox(request)).await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> RpcResult<cri::StopPodSandboxResponse> {
        with_deadline(request, |request| self.stop_sandbox(request)).await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> RpcResult<cri::RemovePodSandboxResponse> {
        with_deadline(request, |request| self.remove_sandbox(request)).await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> RpcResult<cri::PodSandboxStatusResponse> {
        with_deadline(request, |request| self.sandbox_status(request)).await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> RpcResult<cri::ListPodSandboxResponse> {
        with_deadline(request, |cri::ListPodSandboxRequest { filter }| async {
            Ok(cri::ListPodSandboxResponse {
                items: self.list_sandboxes(filter)?,
            })
        })
        .await
    }

    async fn stream_pod_sandboxes(
        &self,
        request: Request<cri::StreamPodSandboxesRequest>,
    ) -> RpcResult<Self::StreamPodSandboxesStream> {
        with_deadline(request, |cri::StreamPodSandboxesRequest { filter }| async {
            let all = self.list_sandboxes(filter)?;
            Ok(batch::stream(all, |pod_sandboxes| {
                cri::StreamPodSandboxesResponse { pod_sandboxes }
            }))
        })
        .await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<cri::UpdatePodSandboxResourcesRequest>,
    ) -> RpcResult<cri::UpdatePodSandboxResourcesResponse> {
        with_deadline(request, |request| self.update_sandbox(request)).await
    }

    // --- containers ---

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> RpcResult<cri::CreateContainerResponse> {
        // Boxed because the future is large.
        with_deadline(request, |request| Box::pin(self.create(request))).await
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> RpcResult<cri::StartContainerResponse> {
        with_deadline(request, |request| self.start(request)).await
    }

    async fn stop_container(
        &self,
        request: Request<cri::StopContainerRequest>,
    ) -> RpcResult<cri::StopContainerResponse> {
        with_deadline(request, |request| self.stop(request)).await
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> RpcResult<cri::RemoveContainerResponse> {
        with_deadline(request, |request| self.remove(request)).await
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> RpcResult<cri::ListContainersResponse> {
        with_deadline(request, |cri::ListContainersRequest { filter }| async {
            Ok(cri::ListContainersResponse {
                containers: self.list(filter)?,
            })
        })
        .await
    }

    async fn stream_containers(
        &self,
        request: Request<cri::StreamContainersRequest>,
    ) -> RpcResult<Self::StreamContainersStream> {
        with_deadline(request, |cri::StreamContainersRequest { filter }| async {
            let all = self.list(filter)?;
            Ok(batch::stream(all, |containers| {
                cri::StreamContainersResponse { containers }
            }))
        })
        .await
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> RpcResult<cri::ContainerStatusResponse> {
        with_deadline(request, |request| self.container_status(request)).await
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> RpcResult<cri::UpdateContainerResourcesResponse> {
        with_deadline(request, |request| self.update(request)).await
    }

    async fn reopen_container_log(
        &self,
        request: Request<cri::ReopenContainerLogRequest>,
    ) -> RpcResult<cri::ReopenContainerLogResponse> {
        with_deadline(request, |request| self.reopen_log(request)).await
    }

    async fn exec_sync(
        &self,
        request: Request<cri::ExecSyncRequest>,
    ) -> RpcResult<cri::ExecSyncResponse> {
        let answered = with_deadline(request, |request| self.exec_sync(request)).await?;
        Ok(output::attach(answered))
    }

    async fn exec(&self, request: Request<cri::ExecRequest>) -> RpcResult<cri::ExecResponse> {
        with_deadline(request, |request| async { self.exec(request) }).await
    }

    async fn attach(&self, request: Request<cri::AttachRequest>) -> RpcResult<cri::AttachResponse> {
        with_deadline(request, |request| async { self.attach(request) }).await
    }

    async fn port_forward(
        &self,
        request: Request<cri::PortForwardRequest>,
    ) -> RpcResult<cri::PortForwardResponse> {
        with_deadline(request, |request| async { self.port_forward(request) }).await
    }

    // --- usage ---

    async fn container_stats(
        &self,
        request: Request<cri::ContainerStatsRequest>,
    ) -> RpcResult<cri::ContainerStatsResponse> {
        with_deadline(request, |request| self.usage_of_container(request)).await
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> RpcResult<cri::ListContainerStatsResponse> {
        with_deadline(request, |cri::ListContainerStatsRequest { filter }| async {
            Ok(cri::ListContainerStatsResponse {
                stats: self.usage_of_containers(filter).await?,
            })
        })
        .await
    }

    async fn stream_container_stats(
        &self,
        request: Request<cri::StreamContainerStatsRequest>,
    ) -> RpcResult<Self::StreamContainerStatsStream> {
        with_deadline(
            request,
            |cri::StreamContainerStatsRequest { filter }| async {
                let all = self.usage_of_containers(filter).await?;
                Ok(batch::stream(all, |container_stats| {
                    cri::StreamContainerStatsResponse { container_stats }
                }))
            },
        )
        .await
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<cri::PodSandboxStatsRequest>,
    ) -> RpcResult<cri::PodSandboxStatsResponse> {
        with_deadline(request, |request| self.usage_of_sandbox(request)).await
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<cri::ListPodSandboxStatsRequest>,
    ) -> RpcResult<cri::ListPodSandboxStatsResponse> {
        with_deadline(
            request,
            |cri::ListPodSandboxStatsRequest { filter }| async {
                Ok(cri::ListPodSandboxStatsResponse {
                    stats: self.usage_of_sandboxes(filter).await?,
                })
            },
        )
        .await
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<cri::StreamPodSandboxStatsRequest>,
    ) -> RpcResult<Self::StreamPodSandboxStatsStream> {
        with_deadline(
            request,
            |cri::StreamPodSandboxStatsRequest { filter }| async {
                let all = self.usage_of_sandboxes(filter).await?;
                Ok(batch::stream(all, |pod_sandbox_stats| {
                    cri::StreamPodSandboxStatsResponse { pod_sandbox_stats }
                }))
            },
        )
        .await
    }

    // --- metrics and events ---

    async fn list_metric_descriptors(
        &self,
        request: Request<cri::ListMetricDescriptorsRequest>,
    ) -> RpcResult<cri::ListMetricDescriptorsResponse> {
        with_deadline(request, |cri::ListMetricDescriptorsRequest {}| async {
            Ok(cri::ListMetricDescriptorsResponse {
                descriptors: to_proto::descriptors(),
            })
        })
        .await
    }

    async fn list_pod_sandbox_metrics(
        &self,
        request: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> RpcResult<cri::ListPodSandboxMetricsResponse> {
        with_deadline(request, |cri::ListPodSandboxMetricsRequest {}| async {
            Ok(cri::ListPodSandboxMetricsResponse {
                pod_metrics: self.metrics().await?,
            })
        })
        .await
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        request: Request<cri::StreamPodSandboxMetricsRequest>,
    ) -> RpcResult<Self::StreamPodSandboxMetricsStream> {
        with_deadline(request, |cri::StreamPodSandboxMetricsRequest {}| async {
            let all = self.metrics().await?;
            Ok(batch::stream(all, |pod_sandbox_metrics| {
                cri::StreamPodSandboxMetricsResponse {
                    pod_sandbox_metrics,
                }
            }))
        })
        .await
    }

    async fn get_container_events(
        &self,
        request: Request<cri::GetEventsRequest>,
    ) -> RpcResult<Self::GetContainerEventsStream> {
        with_deadline(request, |cri::GetEventsRequest {}| async { self.events() }).await
    }

    async fn checkpoint_container(
        &self,
        request: Request<cri::CheckpointContainerRequest>,
    ) -> RpcResult<cri::CheckpointContainerResponse> {
        with_deadline(request, |request| self.checkpoint(request)).await
    }

    async fn checkpoint_pod(
        &self,
        request: Request<cri::CheckpointPodRequest>,
    ) -> RpcResult<cri::CheckpointPodResponse> {
        with_deadline(request, |_| async {
            unimplemented("CheckpointPod", "KEP-5823 is alpha, and no runtime has it")
        })
        .await
    }

    async fn restore_pod(
        &self,
        request: Request<cri::RestorePodRequest>,
    ) -> RpcResult<cri::RestorePodResponse> {
        with_deadline(request, |_| async {
            unimplemented("RestorePod", "KEP-5823 is alpha, and no runtime has it")
        })
        .await
    }
}
