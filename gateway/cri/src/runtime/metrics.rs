//! Metrics of pods and their containers, for kubelets that do not run cAdvisor.

use std::collections::HashMap;
use std::time::SystemTime;

use futures::future::try_join;
use switchyard_core::Result;
use switchyard_core::id::SandboxId;
use switchyard_proto::cri::v1 as cri;

use super::Runtime;
use crate::to_proto::{self, CommonLabels};

impl Runtime {
    /// CRI v1 ListPodSandboxMetrics: the pods that are ready, with their running containers.
    pub(super) async fn metrics(&self) -> Result<Vec<cri::PodSandboxMetrics>> {
        let mut sandboxes = self.scope.sandboxes().list()?;
        sandboxes.retain(|sandbox| sandbox.state.is_ready());
        let mut tasks = self.scope.tasks().list()?;
        tasks.retain(|task| task.state.is_running());
        let sandbox_ids: Vec<SandboxId> = sandboxes.iter().map(|sandbox| sandbox.id).collect();
        let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
        let (traffic, read) = try_join(
            self.scope.sandboxes().traffic(&sandbox_ids),
            self.scope.tasks().metrics(&ids),
        )
        .await?;
        let now = SystemTime::now();
        let mut all = Vec::with_capacity(sandboxes.len());
        let mut places = HashMap::with_capacity(sandboxes.len());
        for sandbox in &sandboxes {
            let subject = CommonLabels::of(sandbox, self.records.sandbox(sandbox).as_deref());
            let interfaces = traffic
                .get(&sandbox.id)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let metrics = to_proto::sandbox_metrics(&subject, interfaces, now);
            places.insert(sandbox.id, (all.len(), subject));
            all.push(cri::PodSandboxMetrics {
                pod_sandbox_id: sandbox.id.to_string(),
                metrics,
                container_metrics: Vec::new(),
            });
        }
        for task in &tasks {
            // A container that has exited meanwhile has no readings; one whose pod is not ready is left out.
            let (Some((place, pod)), Some(read)) = (places.get(&task.sandbox), read.get(&task.id))
            else {
                continue;
            };
            let record = self.records.task(task);
            let metrics = to_proto::container_metrics(task, record.as_deref(), pod, read, now);
            all[*place].container_metrics.push(metrics);
        }
        Ok(all)
    }
}
