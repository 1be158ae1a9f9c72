//! Version, status and configuration of the node.

use switchyard_core::Result;
use switchyard_proto::cri::v1 as cri;

use super::Runtime;
use crate::{from_proto, to_proto};

/// The version of the kubelet's side of CRI; a constant that kubelets check, independent of the API version.
const KUBE_API_VERSION: &str = "0.1.0";

impl Runtime {
    /// CRI Version, for an API version such as `v1`. Also answers before recovery.
    pub(crate) fn version_of(
        &self,
        request: cri::VersionRequest,
        api: &str,
    ) -> cri::VersionResponse {
        // The client's version is irrelevant.
        let cri::VersionRequest { version: _ } = request;
        cri::VersionResponse {
            version: KUBE_API_VERSION.to_owned(),
            runtime_name: self.config.get().runtime_name.clone(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: api.to_owned(),
        }
    }

    /// CRI v1 UpdateRuntimeConfig: the ranges of pod addresses, for networks that are configured with them
    /// from outside. An empty request changes nothing.
    pub(super) async fn update_config(
        &self,
        request: cri::UpdateRuntimeConfigRequest,
    ) -> Result<cri::UpdateRuntimeConfigResponse> {
        let cri::UpdateRuntimeConfigRequest { runtime_config } = request;
        let network = runtime_config
            .and_then(|config| config.network_config)
            .unwrap_or_default();
        let cri::NetworkConfig { pod_cidr } = network;
        let ranges = from_proto::ranges(&pod_cidr)?;
        if !ranges.is_empty() {
            self.scope.sandboxes().set_ranges(ranges).await?;
            tracing::info!(pod_cidr, "the ranges of pod addresses are set");
        }
        Ok(cri::UpdateRuntimeConfigResponse {})
    }

    /// CRI v1 Status. Also answers before recovery.
    pub(super) async fn node_status(&self, request: cri::StatusRequest) -> cri::StatusResponse {
        let cri::StatusRequest { verbose } = request;
        let backend = self.scope.fresh_status().await;
        let handlers = self.scope.handlers();
        let mut status = to_proto::status(&backend, self.scope.is_recovered(), &handlers);
        if verbose {
            status.info = to_proto::status_info(&backend, &handlers);
        }
        status
    }

    /// CRI v1 RuntimeConfig. Also answers before recovery.
    pub(super) fn node_config(
        &self,
        request: cri::RuntimeConfigRequest,
    ) -> cri::RuntimeConfigResponse {
        let cri::RuntimeConfigRequest {} = request;
        to_proto::runtime_config(self.scope.status().cgroup_driver)
    }
}
