//! Usage of tasks and sandboxes, read directly from cgroups, and facts for inspection.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use containerd_client::services::v1::snapshots as snap;
use futures::stream::{self, StreamExt};
use switchyard_cgroup::{Group, net};
use switchyard_core::backend::{Inspection, SandboxStats};
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::stats::{DiskUsage, InterfaceStats, TaskStats, Usage};
use switchyard_core::{ErrorKind, Result};
use switchyard_namespaces::run_in_netns;

use crate::backend::Inner;
use crate::client::{QUICK, call};
use crate::fs::{blocking, io_error};
use crate::record::TaskRecord;
use crate::task::TaskEntry;

pub(crate) mod layer_usage;
mod metrics;

/// How long a measurement of a writable layer is cached: measuring walks the whole tree.
const LAYER_AGE: Duration = Duration::from_secs(10);
/// How many layers are measured at once.
const MEASURES: usize = 8;

impl Inner {
    /// The cgroup of a task; `None`, with a warning, if its record has no valid path.
    pub(crate) fn cgroup_location(&self, record: &TaskRecord) -> Option<Group> {
        match Group::from_cgroups_path(&record.cgroups_path) {
            Ok(group) => Some(group),
            Err(fault) => {
                tracing::warn!(path = record.cgroups_path, error = %fault, "the cgroup path in a task's record is not valid");
                None
            }
        }
    }

    pub(crate) async fn task_stats(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskStats>> {
        let entries: Vec<Arc<TaskEntry>> = {
            let tasks = self.tasks();
            ids.iter().filter_map(|id| tasks.get(id).cloned()).collect()
        };
        let groups: Vec<(TaskId, Option<Group>)> = entries
            .iter()
            .map(|entry| {
                let runs = entry.started().is_some() && entry.final_exit().is_none();
                (entry.id, if runs { self.cgroup_location(&entry.record()) } else { None })
            })
            .collect();
        let cgroups = Arc::clone(&self.cgroups);
        // All tasks in one pass on one thread: each takes a few small files of a kernel file system.
        let usages: Vec<(TaskId, Usage)> = blocking(move || {
            groups
                .into_iter()
                .map(|(id, group)| {
                    // A task whose usage cannot be read must not hide the others.
                    let usage = match group.map(|group| cgroups.usage(&group)).transpose() {
                        Ok(usage) => usage.flatten(),
                        Err(fault) => {
                            tracing::warn!(task.id = %id, error = %fault, "the usage of a task cannot be read");
                            None
                        }
                    };
                    Ok((id, usage.unwrap_or_default()))
                })
                .collect()
        })
        .await?;
        let layers = self.writable_layers(&entries).await;
        let all = usages.into_iter().zip(layers);
        Ok(all.map(|((id, usage), writable_layer)| (id, TaskStats { usage, writable_layer })).collect())
    }

    /// The sizes of writable layers, in the order of `entries`; `None` for one that cannot be measured.
    async fn writable_layers(&self, entries: &[Arc<TaskEntry>]) -> Vec<Option<DiskUsage>> {
        let measure = async |entry: &TaskEntry| {
            self.writable_layer(entry).await.unwrap_or_else(|error| {
                tracing::warn!(task.id = %entry.id, error = error.report(), "the writable layer of a task cannot be measured");
                None
            })
        };
        let measures: Vec<_> = entries.iter().map(|entry| measure(entry)).collect();
        let measured = stream::iter(measures).buffered(MEASURES).collect().await;
        self.prune_layer_usage();
        measured
    }

    /// The size of a task's writable layer; `None` if its snapshot does not exist.
    async fn writable_layer(&self, entry: &TaskEntry) -> Result<Option<DiskUsage>> {
        let known =
            self.layer_usage.measured.lock().unwrap_or_else(PoisonError::into_inner).get(&entry.id).cloned();
        if let Some((at, usage)) = known
            && at.elapsed() < LAYER_AGE
        {
            return Ok(Some(usage));
        }
        let request =
            snap::UsageRequest { snapshotter: entry.snapshotter.clone(), key: entry.id.to_string() };
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
        let mut layers = self.layer_usage.measured.lock().unwrap_or_else(PoisonError::into_inner);
        layers.insert(entry.id, (Instant::now(), usage.clone()));
        Ok(Some(usage))
    }

    async fn snapshotter_root(&self, snapshotter: &str) -> Result<PathBuf> {
        let known = self.layer_usage.roots.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let roots = match known {
            Some(roots) => roots,
            None => {
                let roots = crate::image::usage::roots(&self.client).await?;
                *self.layer_usage.roots.lock().unwrap_or_else(PoisonError::into_inner) = Some(roots.clone());
                roots
            }
        };
        Ok(roots.get(snapshotter).cloned().unwrap_or_else(|| PathBuf::from("/")))
    }

    /// Drops the cached measurements of removed tasks.
    fn prune_layer_usage(&self) {
        let tasks = self.tasks();
        let mut layers = self.layer_usage.measured.lock().unwrap_or_else(PoisonError::into_inner);
        layers.retain(|id, _| tasks.contains_key(id));
    }

    pub(crate) async fn sandbox_stats(&self, id: SandboxId) -> Result<SandboxStats> {
        let entry = self.sandbox(id)?;
        let netns = entry.netns();
        let interfaces = blocking(move || match netns {
            Some(netns) if netns.exists() => interfaces(&netns),
            Some(_) | None => Ok(Vec::new()),
        })
        .await?;
        // Only a parent that the client named belongs to the pod alone.
        let parent = entry.record.cgroup_parent.as_deref().filter(|parent| !parent.as_os_str().is_empty());
        let group = match parent {
            Some(_) => Group::from_cgroups_path(&self.cgroup_of(&entry, &id.to_string())?.path)
                .ok()
                .and_then(|group| group.parent()),
            None => None,
        };
        let cgroups = Arc::clone(&self.cgroups);
        let (usage, processes) = blocking(move || match group {
            Some(group) => {
                let processes = cgroups.procs(&group)?.and_then(|pids| u64::try_from(pids.len()).ok());
                Ok((cgroups.usage(&group)?.unwrap_or_default(), processes))
            }
            None => Ok((Usage::default(), None)),
        })
        .await?;
        Ok(SandboxStats { usage, processes, interfaces })
    }

    pub(crate) async fn inspect_task(&self, id: TaskId) -> Result<Inspection> {
        let entry = self.task(id)?;
        let handler = entry.record().handler.clone();
        let spec = self.stored_spec(&id.to_string()).await?;
        let runtime = self.runtime(&handler)?;
        let systemd = entry.record().systemd_cgroup;
        Ok(Inspection {
            pid: entry.started().filter(|_| entry.final_exit().is_none()).map(|started| started.pid),
            runtime_type: runtime.type_.clone(),
            runtime_options: self.options_json(runtime, systemd),
            snapshotter: entry.snapshotter.clone(),
            snapshot_key: id.to_string(),
            runtime_spec: spec.to_string(),
            cni_result: String::new(),
        })
    }

    pub(crate) async fn inspect_sandbox(&self, id: SandboxId) -> Result<Inspection> {
        let entry = self.sandbox(id)?;
        let spec = if entry.record.infra {
            self.stored_spec(&id.to_string()).await?.to_string()
        } else {
            String::new()
        };
        let journal = entry.dirs.cni_journal();
        let result = blocking(move || {
            let saved = switchyard_cni::Saved::read(&journal).map_err(crate::error::from_cni)?;
            let result = saved.and_then(|saved| saved.result(&journal).ok().flatten());
            Ok(result.map_or_else(String::new, |result| result.raw.to_string()))
        })
        .await?;
        let runtime = self.runtime(&entry.record.handler)?;
        let systemd = self.host.cgroup_driver == switchyard_runtime_spec::CgroupDriver::Systemd;
        Ok(Inspection {
            pid: entry.pid,
            runtime_type: runtime.type_.clone(),
            runtime_options: self.options_json(runtime, systemd),
            snapshotter: String::new(),
            snapshot_key: String::new(),
            runtime_spec: spec,
            cni_result: result,
        })
    }
}

/// The traffic of the interfaces in a network namespace.
fn interfaces(netns: &std::path::Path) -> Result<Vec<InterfaceStats>> {
    let path = std::path::Path::new("/proc/thread-self/net/dev");
    let read =
        run_in_netns(netns, || std::fs::read_to_string(path)).map_err(crate::error::from_namespaces)?;
    read.map(|text| net::parse(&text)).map_err(|fault| io_error("read", path, fault))
}
