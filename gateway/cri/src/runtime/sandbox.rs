//! The lifecycle calls of sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use switchyard_core::object::Sandbox;
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;

use super::{Runtime, held, rivals, unknown_handler};
use crate::encoded::EncodedList;
use crate::record::{SandboxNote, SandboxRecord};
use crate::{filter, from_proto, record, to_proto};

impl Runtime {
    /// CRI v1 RunPodSandbox. Idempotent under the pod's name, namespace, uid and attempt.
    pub(crate) async fn run_sandbox(
        &self,
        request: cri::RunPodSandboxRequest,
    ) -> Result<cri::RunPodSandboxResponse> {
        let cri::RunPodSandboxRequest {
            config,
            runtime_handler,
        } = request;
        let request = SandboxRecord {
            config,
            runtime_handler,
        };
        let spec = from_proto::sandbox(request, &self.config.get(), SystemTime::now())?;
        let handlers = self.scope.handlers();
        if !spec.handler.is_empty() && !handlers.iter().any(|handler| handler.name == spec.handler)
        {
            return Err(unknown_handler("runtime_handler", &spec.handler, &handlers));
        }
        rivals::check_pod(&self.scope, &spec.meta.name)?;
        let sandbox = self.scope.sandboxes().create(spec).await?;
        Ok(cri::RunPodSandboxResponse {
            pod_sandbox_id: sandbox.id.to_string(),
        })
    }

    /// StartPodSandbox, an addition to v1alpha2: makes a pod that is not ready ready again, with the
    /// addresses that it had. Idempotent.
    pub(crate) async fn start_sandbox(&self, id: &str) -> Result<()> {
        let sandbox = self.scope.sandboxes().find(id)?;
        let record = self
            .records
            .sandbox(&sandbox)
            .ok_or_else(|| unreadable(&sandbox))?;
        let spec = from_proto::sandbox(
            (*record).clone(),
            &self.config.get(),
            sandbox.meta.created_at,
        )?;
        self.scope.sandboxes().start(sandbox.id, spec).await
    }

    /// CRI v1 StopPodSandbox. Idempotent, also for an unknown id.
    pub(super) async fn stop_sandbox(
        &self,
        request: cri::StopPodSandboxRequest,
    ) -> Result<cri::StopPodSandboxResponse> {
        let cri::StopPodSandboxRequest { pod_sandbox_id } = request;
        self.scope.sandboxes().stop(&pod_sandbox_id).await?;
        Ok(cri::StopPodSandboxResponse {})
    }

    /// CRI v1 RemovePodSandbox. Idempotent, also for an unknown id.
    pub(super) async fn remove_sandbox(
        &self,
        request: cri::RemovePodSandboxRequest,
    ) -> Result<cri::RemovePodSandboxResponse> {
        let cri::RemovePodSandboxRequest { pod_sandbox_id } = request;
        self.scope.sandboxes().remove(&pod_sandbox_id).await?;
        self.records
            .retain_sandboxes(&self.scope.sandboxes().list()?);
        self.records.retain_tasks(&self.scope.tasks().list()?);
        Ok(cri::RemovePodSandboxResponse {})
    }

    /// CRI v1 PodSandboxStatus.
    pub(super) async fn sandbox_status(
        &self,
        request: cri::PodSandboxStatusRequest,
    ) -> Result<cri::PodSandboxStatusResponse> {
        let cri::PodSandboxStatusRequest {
            pod_sandbox_id,
            verbose,
        } = request;
        let id = self.scope.sandboxes().find(&pod_sandbox_id)?.id;
        let current = self.scope.sandboxes().with_tasks(id)?;
        let sandbox = &current.sandbox;
        let record = self.records.sandbox(sandbox);
        let info = if verbose {
            let inspection = self.scope.sandboxes().inspect(sandbox.id).await?;
            to_proto::sandbox_info(sandbox, record.as_deref(), &inspection)
        } else {
            BTreeMap::new()
        };
        let mut answer = cri::PodSandboxStatusResponse {
            status: Some(to_proto::sandbox_status(sandbox, record.as_deref())),
            info,
            // For kubelets that follow events: they use the later one of an event and this answer.
            containers_statuses: super::events::container_statuses(&current, &self.records),
            timestamp: to_proto::nanoseconds(current.at),
        };
        if held::has_container_of(&self.scope, id)? {
            // They would take a container that the answer lacks for gone. Without a time they ask for each one.
            answer.containers_statuses.clear();
            answer.timestamp = 0;
        }
        Ok(answer)
    }

    /// CRI v1 UpdatePodSandboxResources. The kubelet has changed the pod's own cgroup before this call; the
    /// values are stored with the pod and shown in its verbose status. Values that are not in the request
    /// stay unchanged.
    pub(super) async fn update_sandbox(
        &self,
        request: cri::UpdatePodSandboxResourcesRequest,
    ) -> Result<cri::UpdatePodSandboxResourcesResponse> {
        let cri::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id,
            overhead,
            resources,
        } = request;
        let sandbox = self.scope.sandboxes().find(&pod_sandbox_id)?;
        from_proto::check_limits(overhead.as_ref(), "overhead")?;
        from_proto::check_limits(resources.as_ref(), "resources")?;
        let make = |sandbox: &Sandbox| {
            let before = record::note(sandbox);
            let overhead = overhead.or(before.overhead);
            record::encode(&SandboxNote {
                overhead,
                resources: resources.or(before.resources),
            })
        };
        self.scope.sandboxes().amend(sandbox.id, make).await?;
        Ok(cri::UpdatePodSandboxResourcesResponse {})
    }

    /// CRI v1 ListPodSandbox, as messages.
    pub(super) fn list_sandboxes(
        &self,
        filter: Option<cri::PodSandboxFilter>,
    ) -> Result<Vec<cri::PodSandbox>> {
        let all = self.scope.sandboxes().list()?;
        self.records.retain_sandboxes(&all);
        let held = held::pods(&self.scope, filter.as_ref())?;
        Ok(chosen(all, filter)
            .iter()
            .map(|sandbox| self.pod_sandbox(sandbox))
            .chain(held)
            .collect())
    }

    /// CRI v1 ListPodSandbox, encoded.
    pub(crate) fn list_sandboxes_encoded(
        &self,
        cri::ListPodSandboxRequest { filter }: cri::ListPodSandboxRequest,
    ) -> Result<EncodedList> {
        let all = self.scope.sandboxes().list()?;
        self.records.retain_sandboxes(&all);
        let encoded = self
            .encoded
            .sandboxes(&all, |sandbox| self.pod_sandbox(sandbox));
        let held = held::pods(&self.scope, filter.as_ref())?;
        Ok(encoded.of(&chosen(all, filter)).with(&held))
    }

    fn pod_sandbox(&self, sandbox: &Sandbox) -> cri::PodSandbox {
        to_proto::pod_sandbox(sandbox, self.records.sandbox(sandbox).as_deref())
    }
}

/// The error for a sandbox without a record.
pub(super) fn unreadable(sandbox: &Sandbox) -> Error {
    Error::failed_precondition(format!(
        "sandbox {} was created by an incompatible version of this program: create it again",
        sandbox.id
    ))
}

/// The sandboxes of `all`, sorted by id, that match a filter.
fn chosen(all: Vec<Arc<Sandbox>>, filter: Option<cri::PodSandboxFilter>) -> Vec<Arc<Sandbox>> {
    let cri::PodSandboxFilter {
        id,
        state,
        label_selector,
    } = filter.unwrap_or_default();
    let mut found = filter::sandboxes(all, &id, &label_selector);
    if let Some(wanted) = state {
        found.retain(|sandbox| i32::from(to_proto::sandbox_state(&sandbox.state)) == wanted.state);
    }
    found
}
