//! Detailed metrics of tasks, and the traffic of sandboxes: each read in one pass on one thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::stat::{major, minor, stat};
use nix::sys::statvfs::statvfs;
use switchyard_cgroup::{Group, device_name, net};
use switchyard_core::Result;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::stats::{Detail, FileSystem, InterfaceStats, TaskMetrics, TaskStats, Usage};
use switchyard_namespaces::run_in_each_netns;
use tokio::time::Instant;

use crate::base::fs::{blocking, io_error};
use crate::stats::{SIZES_LIMIT, Stats};
use crate::task::TaskEntry;

/// A running task whose metrics are read.
struct MetricsTarget {
    id: TaskId,
    group: Group,
    main: u32,
}

impl Stats {
    pub(crate) async fn task_metrics(
        &self,
        ids: &[TaskId],
    ) -> Result<BTreeMap<TaskId, TaskMetrics>> {
        let (entries, targets): (Vec<Arc<TaskEntry>>, Vec<MetricsTarget>) = {
            let tasks = self.tasks.lock();
            let running = ids
                .iter()
                .filter_map(|id| tasks.get(id))
                .filter_map(|entry| {
                    let main = entry.running_start()?.pid;
                    let group = entry.record().group()?;
                    Some((
                        Arc::clone(entry),
                        MetricsTarget {
                            id: entry.id,
                            group,
                            main,
                        },
                    ))
                });
            running.unzip()
        };
        let cgroups = Arc::clone(&self.reader);
        let failures = Arc::clone(&self.failures);
        let read: Vec<Option<(Usage, Detail)>> = blocking(move || {
            let mut pass = cgroups.pass();
            let both = |target: &MetricsTarget| {
                let usage = cgroups.usage(&target.group)?;
                Ok::<_, switchyard_cgroup::Error>(usage.zip(pass.detail(&target.group, Some(target.main))?))
            };
            let metrics = targets.iter().map(both).zip(&targets).map(|(read, target)| {
                // A task whose metrics cannot be read must not hide the others.
                let read = failures.noted("metrics", target.id, read, |fault| {
                    tracing::warn!(task = %target.id, error = %fault, "the metrics of a task cannot be read");
                });
                read.flatten()
            });
            Ok(metrics.collect())
        })
        .await?;
        let until = Instant::now() + SIZES_LIMIT;
        let layers = self.writable_layers(&entries, Some(until)).await;
        let mut file_systems = BTreeMap::new();
        let mut all = BTreeMap::new();
        for ((entry, read), writable_layer) in entries.iter().zip(read).zip(layers) {
            // The task has exited meanwhile.
            let Some((usage, detail)) = read else {
                continue;
            };
            let root = self.snapshotter_root(&entry.snapshotter).await?;
            if !file_systems.contains_key(&root) {
                file_systems.insert(root.clone(), self.file_system(root.clone()).await?);
            }
            let file_system = file_systems.get(&root).cloned().flatten();
            let stats = TaskStats {
                usage,
                writable_layer,
            };
            all.insert(
                entry.id,
                TaskMetrics {
                    stats,
                    detail,
                    file_system,
                },
            );
        }
        Ok(all)
    }

    /// The file system that a directory is on; `None` if the directory does not exist.
    async fn file_system(&self, root: PathBuf) -> Result<Option<FileSystem>> {
        blocking(move || {
            if !root.exists() {
                return Ok(None);
            }
            let failed =
                |fault: nix::Error| io_error("stat the file system of", &root, fault.into());
            let device = stat(&root).map_err(failed)?.st_dev;
            let facts = statvfs(&root).map_err(failed)?;
            // File systems that allocate inodes dynamically report 0.
            let inodes = (facts.files() > 0).then(|| facts.files());
            Ok(Some(FileSystem {
                device: device_name(major(device), minor(device)),
                size_bytes: facts.blocks().saturating_mul(facts.fragment_size()),
                inodes,
                inodes_free: inodes.map(|_| facts.files_free()),
            }))
        })
        .await
    }

    pub(crate) async fn sandbox_traffic(
        &self,
        ids: &[SandboxId],
    ) -> Result<BTreeMap<SandboxId, Vec<InterfaceStats>>> {
        let (ids, namespaces): (Vec<SandboxId>, Vec<PathBuf>) = {
            let sandboxes = self.sandboxes.lock();
            let own = |id: &SandboxId| {
                Some((
                    *id,
                    sandboxes
                        .get(id)
                        .filter(|entry| !entry.lifecycle.is_stopped())?
                        .netns()?,
                ))
            };
            ids.iter().filter_map(own).unzip()
        };
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let failures = Arc::clone(&self.failures);
        blocking(move || {
            let path = Path::new("/proc/thread-self/net/dev");
            let read = run_in_each_netns(&namespaces, || std::fs::read_to_string(path));
            let read = read.map_err(crate::base::error::from_namespaces)?;
            let mut all = BTreeMap::new();
            for (id, text) in ids.into_iter().zip(read) {
                match text {
                    Ok(read) => {
                        let text = failures.noted("traffic", id, read, |fault| {
                            tracing::warn!(sandbox = %id, error = %fault, "the traffic of a sandbox cannot be read");
                        });
                        all.extend(text.map(|text| (id, net::parse(&text))));
                    }
                    // Most likely the sandbox was stopped meanwhile.
                    Err(fault) => {
                        tracing::debug!(sandbox = %id, error = %fault, "the network namespace of a sandbox cannot be entered")
                    }
                }
            }
            Ok(all)
        })
        .await
    }
}
