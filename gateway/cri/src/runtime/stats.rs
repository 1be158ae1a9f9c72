//! The usage calls of containers and sandboxes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use futures::stream::{self, StreamExt, TryStreamExt};
use switchyard_core::id::SandboxId;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::stats::Usage;
use switchyard_core::{ErrorKind, Result};
use switchyard_proto::cri::v1 as cri;

use super::Runtime;
use crate::{filter, to_proto};

/// Maximum number of sandboxes that are read concurrently.
const AT_ONCE: usize = 16;

impl Runtime {
    /// CRI v1 ContainerStats. For a container that does not run, only the attributes are set.
    pub(super) async fn usage_of_container(
        &self,
        request: cri::ContainerStatsRequest,
    ) -> Result<cri::ContainerStatsResponse> {
        let cri::ContainerStatsRequest { container_id } = request;
        let task = self.scope.tasks().find(&container_id)?;
        Ok(cri::ContainerStatsResponse {
            stats: self.container_usage(vec![task]).await?.pop(),
        })
    }

    /// CRI v1 ListContainerStats, of all containers that have not exited.
    pub(super) async fn usage_of_containers(
        &self,
        filter: Option<cri::ContainerStatsFilter>,
    ) -> Result<Vec<cri::ContainerStats>> {
        let cri::ContainerStatsFilter {
            id,
            pod_sandbox_id,
            label_selector,
        } = filter.unwrap_or_default();
        let all = self.scope.tasks().list()?;
        let mut tasks = filter::tasks(
            all,
            || self.scope.sandboxes().list(),
            &id,
            &pod_sandbox_id,
            &label_selector,
        )?;
        tasks.retain(|task| has_not_ended(task));
        self.container_usage(tasks).await
    }

    /// CRI v1 PodSandboxStats.
    pub(super) async fn usage_of_sandbox(
        &self,
        request: cri::PodSandboxStatsRequest,
    ) -> Result<cri::PodSandboxStatsResponse> {
        let cri::PodSandboxStatsRequest { pod_sandbox_id } = request;
        let sandbox = self.scope.sandboxes().find(&pod_sandbox_id)?;
        let mut tasks = self.scope.tasks().list()?;
        tasks.retain(|task| task.sandbox == sandbox.id && has_not_ended(task));
        let containers = self.container_usage(tasks).await?;
        Ok(cri::PodSandboxStatsResponse {
            stats: Some(self.sandbox_usage(&sandbox, containers).await?),
        })
    }

    /// CRI v1 ListPodSandboxStats, of all sandboxes that are ready.
    pub(super) async fn usage_of_sandboxes(
        &self,
        filter: Option<cri::PodSandboxStatsFilter>,
    ) -> Result<Vec<cri::PodSandboxStats>> {
        let cri::PodSandboxStatsFilter { id, label_selector } = filter.unwrap_or_default();
        let mut sandboxes = filter::sandboxes(self.scope.sandboxes().list()?, &id, &label_selector);
        sandboxes.retain(|sandbox| sandbox.state.is_ready());
        let mut inside: HashMap<SandboxId, Vec<cri::ContainerStats>> = sandboxes
            .iter()
            .map(|sandbox| (sandbox.id, Vec::new()))
            .collect();
        let mut tasks = self.scope.tasks().list()?;
        tasks.retain(|task| inside.contains_key(&task.sandbox) && has_not_ended(task));
        let sandbox_ids: Vec<_> = tasks.iter().map(|task| task.sandbox).collect();
        for (sandbox, stats) in sandbox_ids
            .into_iter()
            .zip(self.container_usage(tasks).await?)
        {
            inside.entry(sandbox).or_default().push(stats);
        }
        let reads: Vec<_> = sandboxes
            .into_iter()
            .map(|sandbox| {
                let containers = inside.remove(&sandbox.id).unwrap_or_default();
                async move {
                    match self.sandbox_usage(&sandbox, containers).await {
                        Ok(stats) => Ok(Some(stats)),
                        // The sandbox was removed while the list was built.
                        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                        Err(error) => Err(error),
                    }
                }
            })
            .collect();
        stream::iter(reads)
            .buffered(AT_ONCE)
            .try_filter_map(|stats| async { Ok(stats) })
            .try_collect()
            .await
    }

    /// The usage of these tasks, one entry each and in the same order, read in one pass.
    async fn container_usage(&self, tasks: Vec<Arc<Task>>) -> Result<Vec<cri::ContainerStats>> {
        let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
        let read = if ids.is_empty() {
            BTreeMap::new()
        } else {
            self.scope.tasks().stats(&ids).await?
        };
        let stats = |task: &Arc<Task>| {
            let stats = read.get(&task.id);
            let rate = stats
                .and_then(|stats| processor(&stats.usage))
                .and_then(|(at, total)| self.task_rates.rate(task.id, at, total));
            to_proto::container_stats(task, self.records.task(task).as_deref(), stats, rate)
        };
        Ok(tasks.iter().map(stats).collect())
    }

    async fn sandbox_usage(
        &self,
        sandbox: &Sandbox,
        containers: Vec<cri::ContainerStats>,
    ) -> Result<cri::PodSandboxStats> {
        let stats = self.scope.sandboxes().stats(sandbox.id).await?;
        let rate = processor(&stats.usage)
            .and_then(|(at, total)| self.sandbox_rates.rate(sandbox.id, at, total));
        let record = self.records.sandbox(sandbox);
        Ok(to_proto::sandbox_stats(
            sandbox,
            record.as_deref(),
            &stats,
            rate,
            containers,
            SystemTime::now(),
        ))
    }
}

fn processor(usage: &Usage) -> Option<(SystemTime, u64)> {
    usage.cpu.as_ref().map(|cpu| (cpu.at, cpu.total_ns))
}

fn has_not_ended(task: &Task) -> bool {
    match to_proto::container_state(&task.state) {
        cri::ContainerState::ContainerCreated | cri::ContainerState::ContainerRunning => true,
        cri::ContainerState::ContainerExited | cri::ContainerState::ContainerUnknown => false,
    }
}
