//! The usage of sandboxes and tasks, and what the backend knows of each.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use switchyard_core::Result;
use switchyard_core::backend::{Blocker, Inspection, SandboxStats, StatsBackend};
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::stats::{InterfaceStats, TaskMetrics, TaskStats};
use switchyard_core::table::{no_sandbox, no_task};

use crate::Fake;
use crate::session::Method;
use crate::usage::{task_metrics, task_stats, traffic, usage};

impl StatsBackend for Fake {
    fn task_stats<'a>(
        &'a self,
        ids: &'a [TaskId],
    ) -> BoxFuture<'a, Result<BTreeMap<TaskId, TaskStats>>> {
        Box::pin(async move {
            let effect = || {
                let mut state = self.world.lock();
                let mut stats = BTreeMap::new();
                for id in ids {
                    if let Some(task) = state.tasks.get_mut(id) {
                        task.reads += 1;
                        let runs = task.state.is_running();
                        stats.insert(*id, task_stats(task.reads, runs));
                    }
                }
                Ok(stats)
            };
            self.session.act(Method::TaskStats, "", effect).await
        })
    }

    fn task_metrics<'a>(
        &'a self,
        ids: &'a [TaskId],
    ) -> BoxFuture<'a, Result<BTreeMap<TaskId, TaskMetrics>>> {
        Box::pin(async move {
            let effect = || {
                let mut state = self.world.lock();
                let mut metrics = BTreeMap::new();
                for id in ids {
                    if let Some(task) = state
                        .tasks
                        .get_mut(id)
                        .filter(|task| task.state.is_running())
                    {
                        task.reads += 1;
                        metrics.insert(*id, task_metrics(task.reads));
                    }
                }
                Ok(metrics)
            };
            self.session.act(Method::TaskMetrics, "", effect).await
        })
    }

    fn sandbox_traffic<'a>(
        &'a self,
        ids: &'a [SandboxId],
    ) -> BoxFuture<'a, Result<BTreeMap<SandboxId, Vec<InterfaceStats>>>> {
        Box::pin(async move {
            let effect = || {
                let mut state = self.world.lock();
                let mut all = BTreeMap::new();
                for id in ids {
                    let sandbox = state
                        .sandboxes
                        .get_mut(id)
                        .filter(|sandbox| sandbox.details.netns.is_some());
                    if let Some(sandbox) = sandbox {
                        sandbox.reads += 1;
                        all.insert(*id, vec![traffic(sandbox.reads)]);
                    }
                }
                Ok(all)
            };
            self.session.act(Method::SandboxTraffic, "", effect).await
        })
    }

    fn sandbox_stats(&self, id: SandboxId) -> BoxFuture<'_, Result<SandboxStats>> {
        Box::pin(async move {
            let effect = || {
                let mut state = self.world.lock();
                let sandbox = state.sandboxes.get_mut(&id).ok_or_else(|| no_sandbox(id))?;
                sandbox.reads += 1;
                let interfaces = if sandbox.details.ips.is_empty() {
                    Vec::new()
                } else {
                    vec![traffic(sandbox.reads)]
                };
                Ok(SandboxStats {
                    usage: usage(sandbox.reads),
                    processes: Some(1),
                    interfaces,
                })
            };
            self.session.act(Method::SandboxStats, id, effect).await
        })
    }

    fn inspect_task(&self, id: TaskId) -> BoxFuture<'_, Result<Inspection>> {
        Box::pin(async move {
            let effect = || {
                let state = self.world.lock();
                let task = state.tasks.get(&id).ok_or_else(|| no_task(id))?;
                let handler = state
                    .sandboxes
                    .get(&task.sandbox)
                    .map_or("", |sandbox| &sandbox.handler);
                Ok(Inspection {
                    pid: task.state.pid(),
                    runtime_type: handler.to_owned(),
                    snapshotter: "memory".into(),
                    snapshot_key: id.to_string(),
                    runtime_spec: task.runtime_spec.clone(),
                    ..Inspection::default()
                })
            };
            self.session.act(Method::InspectTask, id, effect).await
        })
    }

    fn inspect_sandbox(&self, id: SandboxId) -> BoxFuture<'_, Result<Inspection>> {
        Box::pin(async move {
            let effect = || {
                let state = self.world.lock();
                let sandbox = state.sandboxes.get(&id).ok_or_else(|| no_sandbox(id))?;
                Ok(Inspection {
                    pid: sandbox.details.pid,
                    runtime_type: sandbox.handler.clone(),
                    netns_closed: sandbox.stopped && sandbox.details.netns.is_some(),
                    ..Inspection::default()
                })
            };
            self.session.act(Method::InspectSandbox, id, effect).await
        })
    }

    fn task_blockers(&self, id: TaskId) -> BoxFuture<'_, Result<Vec<Blocker>>> {
        Box::pin(async move {
            let effect = || {
                let state = self.world.lock();
                let task = state.tasks.get(&id).ok_or_else(|| no_task(id))?;
                Ok(task.blockers.clone())
            };
            self.session.act(Method::TaskBlockers, id, effect).await
        })
    }

    fn sandbox_blockers(&self, _id: SandboxId) -> BoxFuture<'_, Vec<Blocker>> {
        self.image_blockers()
    }

    fn image_blockers(&self) -> BoxFuture<'_, Vec<Blocker>> {
        Box::pin(async move { self.world.lock().runtime_blockers.clone() })
    }
}
