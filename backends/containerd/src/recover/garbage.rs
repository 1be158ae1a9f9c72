//! Garbage that predecessors left and that no container object refers to: leases, views of images, downloads,
//! directories and open logs.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use containerd_client::services::v1 as api;
use switchyard_core::backend::RecoveryResult;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::{Error, Result};

use super::inventory::Snapshots;
use super::plan::RecoveryPlan;
use crate::base::config::ContainerdMode;
use crate::base::fs::{blocking, ids_below, remove_tree};
use crate::base::layout::Layout;
use crate::base::mount::unmount_all;
use crate::client::{QUICK, call, ignore_not_found};
use crate::image::lease::{self, LeaseCleanup};
use crate::image::snapshots::remove_all;
use crate::recover::Recovery;
use crate::task::end_log;
use crate::task::storage::stage::clear_stage;
use crate::task::storage::volumes::Volumes;

/// Limit for listing the objects on disk.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// Objects on disk, of containers that exist and of others.
#[derive(Debug, Default)]
struct FilesOnDisk {
    /// Mount points of views of images.
    views: Vec<PathBuf>,
    /// Sandboxes and tasks that have directories, by the names of these.
    sandboxes: BTreeMap<String, SandboxId>,
    tasks: BTreeMap<String, TaskId>,
    /// Directories of volumes that were being filled or removed.
    volumes: Vec<PathBuf>,
    /// Every directory of sandboxes and tasks could be listed.
    is_complete: bool,
}

/// Objects of predecessors that no container object refers to. They were listed before requests were served,
/// so that nothing that this daemon created is among them.
#[derive(Debug)]
pub(super) struct StartupGarbage {
    /// Every directory of sandboxes and tasks could be listed.
    is_complete: bool,
    /// Mount points of views of images.
    views: Vec<PathBuf>,
    /// The keys of views, and of active snapshots of unpackings that were cut off, by snapshotter.
    snapshots: BTreeMap<String, Vec<String>>,
    sandboxes: Vec<SandboxId>,
    tasks: Vec<TaskId>,
    /// Directories of volumes that were being filled or removed.
    volumes: Vec<PathBuf>,
}

impl StartupGarbage {
    /// Returns whether a process may run that has no container object: there are directories of a sandbox or
    /// task, or some could not be listed.
    pub(super) fn may_run(&self) -> bool {
        !self.is_complete || !self.sandboxes.is_empty() || !self.tasks.is_empty()
    }
}

impl FilesOnDisk {
    /// Lists them. Blocks, for ever if a disk hangs.
    fn list(layout: &Layout, volumes: &Volumes) -> Self {
        let of_sandboxes = [
            layout.all_sandbox_run(),
            layout.all_pins(),
            layout.all_sandbox_state(),
        ];
        let of_tasks = [
            layout.all_task_run(),
            layout.all_stages(),
            layout.all_task_state(),
        ];
        let mut is_complete = true;
        let sandboxes = ids_below_all(&of_sandboxes, &mut is_complete);
        let tasks = ids_below_all(&of_tasks, &mut is_complete);
        let views = std::fs::read_dir(layout.views())
            .into_iter()
            .flatten()
            .flatten();
        Self {
            views: views.map(|entry| entry.path()).collect(),
            sandboxes,
            tasks,
            volumes: volumes.unpublished(),
            is_complete,
        }
    }
}

/// The entries of these directories whose names are ids, by name. A directory that cannot be listed is logged, and
/// `is_complete` is false then. Blocks, for ever if a disk hangs.
fn ids_below_all<I: FromStr>(dirs: &[PathBuf], is_complete: &mut bool) -> BTreeMap<String, I> {
    let mut all = BTreeMap::new();
    for dir in dirs {
        match ids_below(dir) {
            Ok(ids) => all.extend(ids),
            Err(error) => {
                *is_complete = false;
                tracing::warn!(
                    error = error.report(),
                    "cannot look for what predecessors left in a directory: trying again at the next start"
                );
            }
        }
    }
    all
}

impl Recovery {
    /// Lists the garbage, and removes at once the part that would obstruct requests, as far as that is
    /// possible: leases and downloads. `all` are the ids of all containers; `bridge_holders` are the
    /// sandboxes that bridges of clusters belong to. Leases that cannot be deleted are added to the plan.
    pub(super) async fn find_garbage(
        &self,
        snapshots: &Snapshots,
        all: &HashSet<String>,
        bridge_holders: Vec<SandboxId>,
        plan: &mut RecoveryPlan,
    ) -> StartupGarbage {
        let resumable = self.delete_leases(plan).await;
        // An unfinished download that stays is continued by the next pull of its layer. It is not queued: by then it
        // may be the download of such a pull.
        warn_if_kept("downloads", self.abort_downloads(&resumable).await);
        let on_disk = self.list_files().await;
        let FilesOnDisk {
            views,
            mut sandboxes,
            tasks,
            volumes,
            is_complete,
        } = on_disk.unwrap_or_default();
        sandboxes.extend(bridge_holders.into_iter().map(|id| (id.to_string(), id)));
        StartupGarbage {
            is_complete,
            views,
            snapshots: snapshots.stale(&self.client),
            sandboxes: sandboxes
                .into_iter()
                .filter(|(name, _)| !all.contains(name))
                .map(|(_, id)| id)
                .collect(),
            tasks: tasks
                .into_iter()
                .filter(|(name, _)| !all.contains(name))
                .map(|(_, id)| id)
                .collect(),
            volumes,
        }
    }

    /// Lists what is on disk; `None`, and logged, if a disk does not answer.
    async fn list_files(&self) -> Option<FilesOnDisk> {
        let layout = self.context.layout.clone();
        let volumes = Arc::clone(&self.storage.volumes);
        let list = blocking(move || Ok(FilesOnDisk::list(&layout, &volumes)));
        let failed = match tokio::time::timeout(LIST_LIMIT, list).await {
            Ok(Ok(files)) => return Some(files),
            Ok(Err(error)) => error.report(),
            Err(_) => format!("the disk does not answer within {LIST_LIMIT:?}"),
        };
        tracing::warn!(
            error = failed,
            state = %self.context.layout.state().display(),
            run = %self.context.layout.run().display(),
            "cannot list the files that predecessors left: trying again at the next start"
        );
        None
    }

    /// Removes the garbage. What cannot be removed is logged, and found again at the next start. `known` are
    /// the ids of the tasks that have a container object.
    pub(super) async fn clear_garbage(&self, garbage: StartupGarbage, known: &HashSet<TaskId>) {
        let StartupGarbage {
            is_complete: _,
            views,
            snapshots,
            sandboxes,
            tasks,
            volumes,
        } = garbage;
        warn_if_kept(
            "views of images",
            self.remove_stale_views(views, snapshots).await,
        );
        for id in sandboxes {
            warn_if_kept("files of a sandbox", self.clear_sandbox_dirs(id).await);
        }
        for id in tasks {
            warn_if_kept("files of a task", self.clear_task_dirs(id).await);
        }
        for path in volumes {
            let removed = self.storage.trees.remove(&path).await;
            if removed.is_ok() {
                self.report_cleaned("volume_files");
            }
            warn_if_kept("files of a volume", removed);
        }
        self.close_stale_logs(known).await;
    }

    /// Deletes the leases of predecessors, but for those of pulls that may be continued, whose ids are returned. Those
    /// that containerd does not delete now are added to the plan; after the first one the others are not tried, so
    /// that requests do not wait for a containerd that is slow in it.
    async fn delete_leases(&self, plan: &mut RecoveryPlan) -> Vec<String> {
        let request = api::ListRequest {
            filters: Vec::new(),
        };
        let leases = match call("list leases", QUICK, self.client.leases().list(request)).await {
            Ok(listed) => listed.leases,
            Err(error) => {
                warn_if_kept("leases", Err(error));
                return Vec::new();
            }
        };
        let prefix = lease::prefix(&self.client);
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |age| i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
        let (resumable, others): (Vec<_>, Vec<_>) = leases
            .into_iter()
            .filter(|found| found.id.starts_with(&prefix))
            .partition(|found| self.storage.images.leases().keep(found, now));
        let mut refused = false;
        for id in others.into_iter().map(|found| found.id) {
            if !refused {
                match lease::delete(&self.client, &id).await {
                    Ok(()) => {
                        self.report_cleaned("lease");
                        continue;
                    }
                    Err(error) => tracing::warn!(
                        lease = id,
                        error = error.report(),
                        "cannot delete a lease that a predecessor left: trying again while requests are served"
                    ),
                }
                refused = true;
            }
            plan.remove(
                "lease",
                LeaseCleanup::new(&self.client, id),
                &self.context.observer,
            );
        }
        resumable.into_iter().map(|found| found.id).collect()
    }

    /// Unmounts and removes views of images, and removes their snapshots and those of unpackings that were
    /// cut off.
    async fn remove_stale_views(
        &self,
        views: Vec<PathBuf>,
        snapshots: BTreeMap<String, Vec<String>>,
    ) -> Result<()> {
        for path in views {
            let target = path.clone();
            blocking(move || unmount_all(&target)).await?;
            remove_tree(&path).await?;
            self.report_cleaned("view");
        }
        let mut kept = Ok(());
        for (snapshotter, keys) in &snapshots {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let removed = || self.report_cleaned("snapshot");
            kept = kept.and(remove_all(&self.client, snapshotter, &keys, &removed).await);
        }
        kept
    }

    /// Aborts the unfinished downloads of predecessors that are not under one of these leases. In an external
    /// containerd, which others download into as well, they are left to containerd's garbage collection, which
    /// removes them once their leases are gone.
    async fn abort_downloads(&self, resumable: &[String]) -> Result<()> {
        if self.context.settings().containerd.mode != ContainerdMode::Managed {
            return Ok(());
        }
        let mut kept = HashSet::new();
        for id in resumable {
            kept.extend(lease::downloads(&self.client, id).await?);
        }
        let request = api::ListStatusesRequest {
            filters: Vec::new(),
        };
        let statuses = call(
            "list downloads",
            QUICK,
            self.client.content().list_statuses(request),
        )
        .await?
        .statuses;
        for status in statuses
            .into_iter()
            .filter(|status| !kept.contains(&status.r#ref))
        {
            let request = api::AbortRequest {
                r#ref: status.r#ref.clone(),
            };
            let what = format!("abort download {}", status.r#ref);
            ignore_not_found(call(&what, QUICK, self.client.content().abort(request)).await)?;
            self.report_cleaned("download");
        }
        Ok(())
    }

    /// Removes what the directories of a sandbox without a container object hold: mounts, pins, network
    /// attachments, files.
    async fn clear_sandbox_dirs(&self, id: SandboxId) -> Result<()> {
        if self.client.has_container(&id.to_string()).await? {
            return Ok(());
        }
        tracing::info!(sandbox = %id, "removing the files of a sandbox that has no container object");
        self.sandboxes.destroy_sandbox(id).await?;
        self.report_cleaned("sandbox_files");
        Ok(())
    }

    async fn clear_task_dirs(&self, id: TaskId) -> Result<()> {
        if self.client.has_container(&id.to_string()).await? {
            return Ok(());
        }
        let dirs = self.context.layout.task(id);
        clear_stage(&dirs.stage).await?;
        remove_tree(&dirs.run).await?;
        self.storage.trees.remove(&dirs.state).await?;
        self.report_cleaned("task_files");
        Ok(())
    }

    /// Has the logkeeper close the logs of tasks that are gone.
    async fn close_stale_logs(&self, known: &HashSet<TaskId>) {
        let entries = match self.logkeeper.list().await {
            Ok(entries) => entries,
            Err(fault) => {
                let error = Error::unavailable("logkeeper").with_source(fault);
                tracing::warn!(
                    error = error.report(),
                    "cannot list the logs of the logkeeper: logs of removed tasks stay open"
                );
                return;
            }
        };
        for entry in entries {
            // A task that was created since then is in the table of tasks.
            let known = entry
                .id
                .parse()
                .is_ok_and(|id| known.contains(&id) || self.tasks.table.lock().contains_key(&id));
            if known {
                continue;
            }
            match end_log(&self.logkeeper, &entry.id).await {
                Ok(()) => self.report_cleaned("log"),
                Err(fault) => {
                    tracing::warn!(task = entry.id, error = %fault, "cannot close the log of a removed task: it stays open");
                }
            }
        }
    }

    /// Reports that something of this kind was removed.
    pub(super) fn report_cleaned(&self, kind: &'static str) {
        self.context
            .observer
            .recovered(kind, RecoveryResult::Cleaned);
    }
}

/// Logs it if garbage of this kind could not be removed.
fn warn_if_kept(kind: &str, removal: Result<()>) {
    if let Err(error) = removal {
        tracing::warn!(
            error = error.report(),
            "cannot remove {kind} that a predecessor left: trying again at the next start"
        );
    }
}
