//! The lifecycle calls of containers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use switchyard_core::gateway::{ExecOutput, OutputShare};
use switchyard_core::id::TaskId;
use switchyard_core::object::{Sandbox, Task, TaskDetails};
use switchyard_core::spec::{ComputeClaim, ExecSpec, Reserved, Resources, TaskSpec, TaskUpdate};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;

use super::sandbox::unreadable;
use super::{Runtime, held, rivals};
use crate::encoded::EncodedList;
use crate::from_proto::Parent;
use crate::{filter, from_proto, to_proto};

impl Runtime {
    /// CRI v1 CreateContainer. Idempotent under the container's name and attempt in its sandbox.
    pub(super) async fn create(
        &self,
        request: cri::CreateContainerRequest,
    ) -> Result<cri::CreateContainerResponse> {
        self.create_with(request, &BTreeMap::new(), |_| {}).await
    }

    /// Creates a container with named volumes, by the index of their mount; `add` adds further settings to
    /// the spec.
    pub(crate) async fn create_with(
        &self,
        request: cri::CreateContainerRequest,
        volumes: &BTreeMap<u32, String>,
        add: impl FnOnce(&mut TaskSpec) + Send,
    ) -> Result<cri::CreateContainerResponse> {
        let cri::CreateContainerRequest {
            pod_sandbox_id,
            config,
            sandbox_config,
        } = request;
        let sandbox = self.scope.sandboxes().find(&pod_sandbox_id)?;
        let record = self.records.sandbox(&sandbox);
        // The configuration that created the sandbox counts, not the one in this call, unless its record
        // cannot be decoded.
        let sandbox_config = record
            .as_ref()
            .and_then(|record| record.config.as_ref())
            .or(sandbox_config.as_ref())
            .ok_or_else(|| unreadable(&sandbox))?;
        let config = config.ok_or_else(|| Error::invalid("config", "it is missing"))?;
        let recursive_readonly = self.recursive_readonly(&sandbox);
        let parent = Parent {
            id: sandbox.id,
            config: sandbox_config,
            recursive_readonly,
            volumes,
        };
        let target = |id: &str| self.target(&sandbox, id);
        let mut spec = from_proto::container(
            config,
            &parent,
            &self.config.get(),
            &target,
            SystemTime::now(),
        )?;
        add(&mut spec);
        rivals::check_container(&self.scope, &spec.meta.name)?;
        let own = self
            .cpus
            .are_exclusive(spec.resources.cpuset_cpus.as_ref())
            .await;
        let node = self.scope.claims().capacity().unwrap_or_default();
        spec.compute = compute(&spec.resources, own.unwrap_or_default(), node);
        let task = self
            .scope
            .tasks()
            .create(&sandbox.id.to_string(), spec)
            .await?;
        Ok(cri::CreateContainerResponse {
            container_id: task.id.to_string(),
        })
    }

    fn recursive_readonly(&self, sandbox: &Sandbox) -> bool {
        let handlers = self.scope.handlers();
        let handler = if sandbox.handler.is_empty() {
            handlers.first()
        } else {
            handlers
                .iter()
                .find(|handler| handler.name == sandbox.handler)
        };
        handler.is_some_and(|handler| handler.recursive_readonly_mounts)
    }

    /// The container of this sandbox whose pid namespace another container joins.
    fn target(&self, sandbox: &Arc<Sandbox>, id: &str) -> Result<TaskId> {
        let task = self.scope.tasks().find(id)?;
        if task.sandbox != sandbox.id {
            return Err(Error::new(
                switchyard_core::ErrorKind::InvalidArgument,
                format!("container {} is in another sandbox", task.id),
            ));
        }
        if !task.state.is_running() {
            return Err(Error::failed_precondition(format!(
                "container {} is {}, not running",
                task.id,
                task.state.as_str()
            )));
        }
        Ok(task.id)
    }

    /// CRI v1 StartContainer.
    pub(super) async fn start(
        &self,
        request: cri::StartContainerRequest,
    ) -> Result<cri::StartContainerResponse> {
        let cri::StartContainerRequest { container_id } = request;
        self.scope.tasks().start(&container_id).await?;
        Ok(cri::StartContainerResponse {})
    }

    /// CRI v1 StopContainer. Idempotent, also for an unknown id. A negative grace period counts as zero.
    pub(super) async fn stop(
        &self,
        request: cri::StopContainerRequest,
    ) -> Result<cri::StopContainerResponse> {
        let cri::StopContainerRequest {
            container_id,
            timeout,
        } = request;
        let grace = Duration::from_secs(u64::try_from(timeout).unwrap_or(0));
        self.scope.tasks().stop(&container_id, grace).await?;
        Ok(cri::StopContainerResponse {})
    }

    /// CRI v1 RemoveContainer. Idempotent, also for an unknown id.
    pub(super) async fn remove(
        &self,
        request: cri::RemoveContainerRequest,
    ) -> Result<cri::RemoveContainerResponse> {
        let cri::RemoveContainerRequest { container_id } = request;
        self.scope.tasks().remove(&container_id).await?;
        self.records.retain_tasks(&self.scope.tasks().list()?);
        Ok(cri::RemoveContainerResponse {})
    }

    /// CRI v1 ListContainers, as messages.
    pub(super) fn list(&self, filter: Option<cri::ContainerFilter>) -> Result<Vec<cri::Container>> {
        let all = self.scope.tasks().list()?;
        self.records.retain_tasks(&all);
        let held = held::containers(&self.scope, filter.as_ref())?;
        Ok(self
            .chosen(all, filter)?
            .iter()
            .map(|task| self.container(task))
            .chain(held)
            .collect())
    }

    /// CRI v1 ListContainers, encoded.
    pub(crate) fn list_encoded(
        &self,
        cri::ListContainersRequest { filter }: cri::ListContainersRequest,
    ) -> Result<EncodedList> {
        let all = self.scope.tasks().list()?;
        self.records.retain_tasks(&all);
        let encoded = self.encoded.tasks(&all, |task| self.container(task));
        let held = held::containers(&self.scope, filter.as_ref())?;
        Ok(encoded.of(&self.chosen(all, filter)?).with(&held))
    }

    fn container(&self, task: &Task) -> cri::Container {
        to_proto::container(task, self.records.task(task).as_deref())
    }

    /// The containers of `all`, sorted by id, that match a filter.
    fn chosen(
        &self,
        all: Vec<Arc<Task>>,
        filter: Option<cri::ContainerFilter>,
    ) -> Result<Vec<Arc<Task>>> {
        let cri::ContainerFilter {
            id,
            state,
            pod_sandbox_id,
            label_selector,
        } = filter.unwrap_or_default();
        let mut found = filter::tasks(
            all,
            || self.scope.sandboxes().list(),
            &id,
            &pod_sandbox_id,
            &label_selector,
        )?;
        if let Some(wanted) = state {
            found.retain(|task| i32::from(to_proto::container_state(&task.state)) == wanted.state);
        }
        Ok(found)
    }

    /// CRI v1 ContainerStatus.
    pub(crate) async fn container_status(
        &self,
        request: cri::ContainerStatusRequest,
    ) -> Result<cri::ContainerStatusResponse> {
        let cri::ContainerStatusRequest {
            container_id,
            verbose,
        } = request;
        let task = self.scope.tasks().find(&container_id)?;
        let record = self.records.task(&task);
        let info = if verbose {
            let inspection = self.scope.tasks().inspect(task.id).await?;
            to_proto::container_info(&task, record.as_deref(), &inspection)
        } else {
            BTreeMap::new()
        };
        Ok(cri::ContainerStatusResponse {
            status: Some(to_proto::container_status(&task, record.as_deref())),
            info,
        })
    }

    /// CRI v1 UpdateContainerResources. The annotations are for the runtime; as CRI specifies, a status shows
    /// those of the container's creation.
    pub(super) async fn update(
        &self,
        request: cri::UpdateContainerResourcesRequest,
    ) -> Result<cri::UpdateContainerResourcesResponse> {
        self.update_with(request, |_| {}).await
    }

    /// Updates the limits; `add` adds further changes.
    pub(crate) async fn update_with(
        &self,
        request: cri::UpdateContainerResourcesRequest,
        add: impl FnOnce(&mut TaskUpdate) + Send,
    ) -> Result<cri::UpdateContainerResourcesResponse> {
        let cri::UpdateContainerResourcesRequest {
            container_id,
            linux,
            windows: _,
            annotations,
        } = request;
        let resources = from_proto::update(linux.unwrap_or_default())?;
        let mut update = TaskUpdate {
            resources,
            annotations,
            ..TaskUpdate::default()
        };
        add(&mut update);
        // `None` if the kubelet cannot be asked, or the CPUs do not change: it stays as it is.
        let own = match &update.resources.cpuset_cpus {
            Some(list) => self.cpus.are_exclusive(Some(list)).await,
            None => None,
        };
        let node = self.scope.claims().capacity().unwrap_or_default();
        let make = move |had: &TaskDetails| {
            let limits = had.resources.merged(&update.resources);
            let own = own.unwrap_or(had.compute.exclusive_cpus);
            TaskUpdate {
                compute: Some(compute(&limits, own, node)),
                ..update
            }
        };
        self.scope.tasks().update_from(&container_id, make).await?;
        Ok(cri::UpdateContainerResourcesResponse {})
    }

    /// CRI v1 ReopenContainerLog.
    pub(super) async fn reopen_log(
        &self,
        request: cri::ReopenContainerLogRequest,
    ) -> Result<cri::ReopenContainerLogResponse> {
        let cri::ReopenContainerLogRequest { container_id } = request;
        self.scope.tasks().reopen_log(&container_id).await?;
        Ok(cri::ReopenContainerLogResponse {})
    }

    /// CRI v1 ExecSync. A timeout of 0 is no limit. A command that exits with an error code is an answer, not
    /// an error. The share of the output budget is for as long as the answer exists.
    pub(super) async fn exec_sync(
        &self,
        request: cri::ExecSyncRequest,
    ) -> Result<(cri::ExecSyncResponse, OutputShare)> {
        let cri::ExecSyncRequest {
            container_id,
            cmd,
            timeout,
        } = request;
        let limit = match u64::try_from(timeout) {
            Ok(0) => None,
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => {
                return Err(Error::invalid(
                    "timeout",
                    format!("{timeout} is negative; 0 is for no limit"),
                ));
            }
        };
        let spec = ExecSpec {
            command: cmd,
            tty: false,
            size: None,
            stdin: false,
            env: Vec::new(),
            cwd: None,
            drain: self.config.get().exec_drain(),
        };
        let ExecOutput {
            code,
            stdout,
            stderr,
            share,
        } = self
            .scope
            .commands()
            .exec_sync(&container_id, &spec, limit)
            .await?;
        let answer = cri::ExecSyncResponse {
            stdout: stdout.into(),
            stderr: stderr.into(),
            exit_code: code,
        };
        Ok((answer, share))
    }
}

/// Makes the compute claim of a container with these limits on `node`.
fn compute(limits: &Resources, exclusive_cpus: bool, node: Reserved) -> ComputeClaim {
    ComputeClaim {
        reserved: from_proto::reserved(limits, node.memory_bytes),
        exclusive_cpus,
    }
}
