//! Usage of tasks and sandboxes, read directly from cgroups, and facts for inspection.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use containerd_client::services::v1::snapshots as snap;
use futures::stream::{self, StreamExt};
use switchyard_cgroup as cgroup;
use switchyard_cgroup::{Group, net};
use switchyard_core::backend::{Blocker, Inspection, SandboxStats};
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::stats::{DiskUsage, InterfaceStats, TaskStats, Usage};
use switchyard_core::{ErrorKind, Result};
use switchyard_namespaces::{is_namespace_file, run_in_netns};
use switchyard_runtime_spec::infra;
use tokio::time::{Instant, timeout_at};

use crate::base::fs::{blocking, io_error};
use crate::blockers::Blockers;
use crate::client::{Client, QUICK, call};
use crate::context::Context;
use crate::image::layer_usage::LayerUsageCache;
use crate::sandbox::table::SandboxTable;
use crate::task::TaskEntry;
use crate::task::table::TaskTable;

mod failures;
mod metrics;
mod shown_spec;

use failures::FailedReadings;
use shown_spec::shown;

/// Maximum number of layers that are measured concurrently.
const MEASURES: usize = 8;

/// The time for the sizes of all layers of one reading of metrics. A layer that is not measured by then has no size in it, so
/// that a slow snapshotter hides nothing else; what was measured is kept for the next reading.
const SIZES_LIMIT: Duration = Duration::from_secs(2);

/// Measures and describes sandboxes and tasks.
#[derive(Debug)]
pub(crate) struct Stats {
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) sandboxes: Arc<SandboxTable>,
    pub(crate) tasks: Arc<TaskTable>,
    pub(crate) reader: Arc<cgroup::Reader>,
    pub(crate) layer_usage: Arc<LayerUsageCache>,
    pub(crate) blockers: Arc<Blockers>,
    pub(crate) failures: Arc<FailedReadings>,
}

impl Stats {
    pub(crate) async fn task_stats(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskStats>> {
        let entries: Vec<Arc<TaskEntry>> = {
            let tasks = self.tasks.lock();
            ids.iter().filter_map(|id| tasks.get(id).cloned()).collect()
        };
        let groups: Vec<(TaskId, Option<Group>)> = entries
            .iter()
            .map(|entry| {
                let runs = entry.runs();
                (entry.id, if runs { entry.record().group() } else { None })
            })
            .collect();
        let cgroups = Arc::clone(&self.reader);
        let failures = Arc::clone(&self.failures);
        // All tasks in one pass on one thread: each takes a few small files of a kernel file system.
        let usages: Vec<(TaskId, Usage)> = blocking(move || {
            groups
                .into_iter()
                .map(|(id, group)| {
                    let usage = group.map_or(Ok(None), |group| cgroups.usage(&group));
                    // A task whose usage cannot be read must not hide the others.
                    let usage = failures.noted("usage", id, usage, |fault| {
                        tracing::warn!(task = %id, error = %fault, "the usage of a task cannot be read");
                    });
                    Ok((id, usage.flatten().unwrap_or_default()))
                })
                .collect()
        })
        .await?;
        let layers = self.writable_layers(&entries, None).await;
        let all = usages.into_iter().zip(layers);
        Ok(all
            .map(|((id, usage), writable_layer)| {
                (
                    id,
                    TaskStats {
                        usage,
                        writable_layer,
                    },
                )
            })
            .collect())
    }

    /// The sizes of writable layers, in the order of `entries`; `None` for one that cannot be measured, or not until then.
    async fn writable_layers(
        &self,
        entries: &[Arc<TaskEntry>],
        until: Option<Instant>,
    ) -> Vec<Option<DiskUsage>> {
        let measure = async |entry: &TaskEntry| {
            let measured = match until {
                Some(until) => timeout_at(until, self.writable_layer(entry)).await,
                None => Ok(self.writable_layer(entry).await),
            };
            let Ok(measured) = measured else {
                tracing::debug!(task = %entry.id, "the writable layer of a task was not measured in time");
                return None;
            };
            let usage = self.failures.noted("layer", entry.id, measured, |error| {
                tracing::warn!(task = %entry.id, error = error.report(), "the writable layer of a task cannot be measured");
            });
            usage.flatten()
        };
        let measures: Vec<_> = entries.iter().map(|entry| measure(entry)).collect();
        let measured = stream::iter(measures).buffered(MEASURES).collect().await;
        self.prune_layer_usage();
        measured
    }

    /// The size of a task's writable layer; `None` if its snapshot does not exist.
    async fn writable_layer(&self, entry: &TaskEntry) -> Result<Option<DiskUsage>> {
        if let Some(usage) = self.layer_usage.measured(entry.id) {
            return Ok(Some(usage));
        }
        let request = snap::UsageRequest {
            snapshotter: entry.snapshotter.clone(),
            key: entry.id.to_string(),
        };
        let what = format!("measure snapshot {}", entry.id);
        let measured = match call(&what, QUICK, self.client.snapshots().usage(request)).await {
            Ok(measured) => measured,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let usage = DiskUsage {
            at: SystemTime::now(),
            mountpoint: self.snapshotter_root(&entry.snapshotter).await?,
            used_bytes: u64::try_from(measured.size).unwrap_or(0),
            inodes_used: u64::try_from(measured.inodes).ok(),
        };
        self.layer_usage.insert(entry.id, usage.clone());
        Ok(Some(usage))
    }

    async fn snapshotter_root(&self, snapshotter: &str) -> Result<PathBuf> {
        let roots = match self.layer_usage.roots() {
            Some(roots) => roots,
            None => {
                let roots = crate::image::usage::roots(&self.client).await?;
                self.layer_usage.set_roots(roots.clone());
                roots
            }
        };
        Ok(roots
            .get(snapshotter)
            .cloned()
            .unwrap_or_else(|| PathBuf::from("/")))
    }

    /// Drops the cached measurements of removed tasks.
    fn prune_layer_usage(&self) {
        let tasks = self.tasks.lock();
        self.layer_usage.retain(|id| tasks.contains_key(&id));
    }

    pub(crate) async fn sandbox_stats(&self, id: SandboxId) -> Result<SandboxStats> {
        let entry = self.sandboxes.get(id)?;
        let netns = entry.netns();
        let interfaces = blocking(move || match netns {
            Some(netns) if netns.exists() => interfaces(&netns),
            Some(_) | None => Ok(Vec::new()),
        })
        .await?;
        // Only a parent that the client named belongs to the pod alone.
        let parent = entry
            .record
            .cgroup_parent
            .as_deref()
            .filter(|parent| !parent.as_os_str().is_empty());
        let group = match parent {
            Some(_) => Group::from_cgroups_path(
                &entry.cgroup_location(&self.context, &id.to_string())?.path,
            )
            .ok()
            .and_then(|group| group.parent()),
            None => None,
        };
        let cgroups = Arc::clone(&self.reader);
        let (usage, processes) = blocking(move || match group {
            Some(group) => {
                let processes = cgroups
                    .procs(&group)?
                    .and_then(|pids| u64::try_from(pids.len()).ok());
                Ok((cgroups.usage(&group)?.unwrap_or_default(), processes))
            }
            None => Ok((Usage::default(), None)),
        })
        .await?;
        Ok(SandboxStats {
            usage,
            processes,
            interfaces,
        })
    }

    pub(crate) async fn inspect_task(&self, id: TaskId) -> Result<Inspection> {
        let entry = self.tasks.get(id)?;
        let handler = entry.record().handler.clone();
        let spec = self.client.stored_spec(&id.to_string()).await?;
        let spec = shown(spec, &entry.dirs.stage, &entry.record().staged);
        let runtime = self.context.runtime(&handler)?;
        let systemd = entry.record().systemd_cgroup;
        Ok(Inspection {
            pid: entry.running_start().map(|started| started.pid),
            runtime_type: runtime.type_.clone(),
            runtime_options: self.context.options_json(&runtime, systemd),
            snapshotter: entry.snapshotter.clone(),
            snapshot_key: id.to_string(),
            runtime_spec: spec.to_string(),
            cni_result: String::new(),
            netns_closed: false,
        })
    }

    pub(crate) async fn task_blockers(&self, id: TaskId) -> Result<Vec<Blocker>> {
        let entry = self.tasks.get(id)?;
        let group = entry.record().group();
        let sandbox = entry.sandbox.to_string();
        Ok(self
            .blockers
            .of_task(&id.to_string(), &sandbox, group)
            .await)
    }

    pub(crate) async fn sandbox_blockers(&self, id: SandboxId) -> Vec<Blocker> {
        let id = id.to_string();
        self.blockers.of_task(&id, &id, None).await
    }

    pub(crate) async fn inspect_sandbox(&self, id: SandboxId) -> Result<Inspection> {
        let entry = self.sandboxes.get(id)?;
        let spec = if entry.record.infra {
            self.client.stored_spec(&id.to_string()).await?.to_string()
        } else {
            infra::shown(&entry.facts())?.to_string()
        };
        let journal = entry.dirs.cni_journal();
        let netns = entry.netns();
        // Nothing is in it any more, and it goes once plugins are done with it.
        let is_ending = entry.lifecycle.is_ending();
        let (result, netns_closed) = blocking(move || {
            let is_open = netns.as_deref().map(is_namespace_file).transpose();
            let is_open = is_open.map_err(crate::base::error::from_namespaces)?;
            let saved =
                switchyard_cni::Saved::read(&journal).map_err(crate::base::error::from_cni)?;
            let result = saved.and_then(|saved| saved.result(&journal).ok().flatten());
            let result = result.map_or_else(String::new, |result| result.raw.to_string());
            let is_closed = is_open.is_some_and(|is_open| is_ending || !is_open);
            Ok((result, is_closed))
        })
        .await?;
        let runtime = self.context.runtime(&entry.record.handler)?;
        let systemd =
            self.context.host.cgroup_driver == switchyard_runtime_spec::CgroupDriver::Systemd;
        Ok(Inspection {
            pid: entry.infra_pid(),
            runtime_type: runtime.type_.clone(),
            runtime_options: self.context.options_json(&runtime, systemd),
            snapshotter: String::new(),
            snapshot_key: String::new(),
            runtime_spec: spec,
            cni_result: result,
            netns_closed,
        })
    }
}

/// The traffic of the interfaces in a network namespace.
fn interfaces(netns: &std::path::Path) -> Result<Vec<InterfaceStats>> {
    let path = std::path::Path::new("/proc/thread-self/net/dev");
    let read = run_in_netns(netns, || std::fs::read_to_string(path))
        .map_err(crate::base::error::from_namespaces)?;
    read.map(|text| net::parse(&text))
        .map_err(|fault| io_error("read", path, fault))
}
