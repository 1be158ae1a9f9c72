//! What bears no container's name any more, or never did: leases, views, downloads, directories, logs.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::{Error, Result};

use super::ids_below;
use super::inventory::Snapshots;
use crate::backend::Inner;
use crate::client::{QUICK, call, ignore_not_found};
use crate::config::ContainerdMode;
use crate::fs::{blocking, remove_tree};
use crate::image::lease;
use crate::image::unpack::extract_prefix;
use crate::image_reader::view_prefix;
use crate::mount::unmount_all;
use crate::task::stage::clear_stage;

/// What a predecessor left and no object accounts for; it was all there before anything new was made.
#[derive(Debug)]
pub(super) struct StartupGarbage {
    /// Mount points of views of images.
    views: Vec<PathBuf>,
    /// Snapshots of views, and those that an unpacking was cut off from, with their snapshotters.
    snapshots: Vec<(String, String)>,
    sandboxes: Vec<SandboxId>,
    tasks: Vec<TaskId>,
    /// Volumes that were being filled or removed.
    volumes: Vec<PathBuf>,
}

impl Inner {
    /// Finds what no object accounts for, and clears away what would be in the way of requests: leases and downloads.
    pub(super) async fn find_garbage(
        &self,
        snapshots: &Snapshots,
        all: &HashSet<String>,
    ) -> Result<StartupGarbage> {
        self.delete_leases().await?;
        self.abort_downloads().await?;
        let layout = &self.layout;
        let mut sandboxes = ids_below::<SandboxId>(&layout.all_sandbox_state())?;
        sandboxes.extend(ids_below::<SandboxId>(&layout.all_sandbox_run())?);
        sandboxes.extend(ids_below::<SandboxId>(&layout.all_pins())?);
        let mut tasks = ids_below::<TaskId>(&layout.all_task_state())?;
        tasks.extend(ids_below::<TaskId>(&layout.all_task_run())?);
        tasks.extend(ids_below::<TaskId>(&layout.all_stages())?);
        let views = match std::fs::read_dir(layout.views()) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(_) => Vec::new(),
        };
        Ok(StartupGarbage {
            views,
            snapshots: snapshots.with_prefix(&[view_prefix(&self.client), extract_prefix(&self.client)]),
            sandboxes: sandboxes
                .into_iter()
                .filter(|(name, _)| !all.contains(name))
                .map(|(_, id)| id)
                .collect(),
            volumes: self.volumes.unpublished(),
            tasks: tasks.into_iter().filter(|(name, _)| !all.contains(name)).map(|(_, id)| id).collect(),
        })
    }

    /// Clears it away. What cannot be is found again by the next start.
    pub(super) async fn clear_garbage(&self, debris: StartupGarbage, known: &HashSet<TaskId>) {
        let StartupGarbage { views, snapshots, sandboxes, tasks, volumes } = debris;
        let warn_on_error = |what: &str, outcome: Result<()>| {
            if let Err(error) = outcome {
                tracing::warn!(
                    error = error.report(),
                    "{what} that nothing accounts for stays until the next start"
                );
            }
        };
        warn_on_error("a view of an image", self.remove_stale_views(views, snapshots).await);
        for id in sandboxes {
            warn_on_error("the rest of a sandbox", self.clear_sandbox_dirs(id).await);
        }
        for id in tasks {
            warn_on_error("the rest of a task", self.clear_task_dirs(id).await);
        }
        for path in volumes {
            warn_on_error("the rest of a volume", self.trees.remove(&path).await);
        }
        self.close_stale_logs(known).await;
    }

    async fn delete_leases(&self) -> Result<()> {
        let request = api::ListRequest { filters: Vec::new() };
        let leases = call("list leases", QUICK, self.client.leases().list(request)).await?.leases;
        for found in leases.into_iter().filter(|found| found.id.starts_with(&lease::prefix(&self.client))) {
            lease::delete(&self.client, &found.id).await?;
        }
        Ok(())
    }

    /// Unmounts and removes views of images, and snapshots that an unpacking was cut off from.
    async fn remove_stale_views(&self, views: Vec<PathBuf>, snapshots: Vec<(String, String)>) -> Result<()> {
        for path in views {
            let target = path.clone();
            blocking(move || unmount_all(&target)).await?;
            remove_tree(&path).await?;
        }
        for (snapshotter, key) in snapshots {
            let what = format!("remove snapshot {key}");
            let request = snap::RemoveSnapshotRequest { snapshotter, key };
            ignore_not_found(call(&what, QUICK, self.client.snapshots().remove(request)).await)?;
        }
        Ok(())
    }

    /// Ends downloads that nobody continues. Beside a containerd that others use too they go with their leases.
    async fn abort_downloads(&self) -> Result<()> {
        if self.settings.containerd.mode != ContainerdMode::Managed {
            return Ok(());
        }
        let request = api::ListStatusesRequest { filters: Vec::new() };
        let statuses =
            call("list downloads", QUICK, self.client.content().list_statuses(request)).await?.statuses;
        for status in statuses {
            let request = api::AbortRequest { r#ref: status.r#ref.clone() };
            let what = format!("end download {}", status.r#ref);
            ignore_not_found(call(&what, QUICK, self.client.content().abort(request)).await)?;
        }
        Ok(())
    }

    /// Removes what the directories of a sandbox without a container object hold: mounts, namespaces, network attachments, files.
    async fn clear_sandbox_dirs(&self, id: SandboxId) -> Result<()> {
        if self.has_container(&id.to_string()).await? {
            return Ok(());
        }
        tracing::info!(sandbox.id = %id, "clearing what is left of a sandbox");
        self.destroy_sandbox(id).await
    }

    async fn clear_task_dirs(&self, id: TaskId) -> Result<()> {
        if self.has_container(&id.to_string()).await? {
            return Ok(());
        }
        let dirs = self.layout.task(id);
        clear_stage(&dirs.stage).await?;
        remove_tree(&dirs.run).await?;
        self.trees.remove(&dirs.state).await
    }

    async fn has_container(&self, id: &str) -> Result<bool> {
        let request = api::GetContainerRequest { id: id.to_owned() };
        match call(&format!("look up container {id}"), QUICK, self.client.containers().get(request)).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == switchyard_core::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Has the logkeeper let go of logs whose tasks are gone.
    async fn close_stale_logs(&self, known: &HashSet<TaskId>) {
        let entries = match self.logkeeper.list().await {
            Ok(entries) => entries,
            Err(fault) => {
                let error = Error::unavailable("logkeeper").with_source(fault);
                tracing::warn!(error = error.report(), "logs of tasks that are gone are not looked for");
                return;
            }
        };
        for entry in entries {
            // A task that is started by now is among ours.
            let known =
                entry.id.parse().is_ok_and(|id| known.contains(&id) || self.tasks().contains_key(&id));
            if !known && let Err(fault) = self.logkeeper.finish(&entry.id, Duration::ZERO).await {
                tracing::warn!(id = entry.id, error = %fault, "the log of a task that is gone stays open");
            }
        }
    }
}
