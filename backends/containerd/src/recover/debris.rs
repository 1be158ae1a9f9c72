//! What bears no container's name any more, or never did: leases, views, downloads, directories, logs.

use std::collections::HashSet;
use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::{Error, Result};

use super::ids_below;
use super::inventory::Snapshots;
use crate::backend::Inner;
use crate::client::{QUICK, call, gone_is_done};
use crate::config::Mode;
use crate::image::lease;
use crate::image::unpack::extract_prefix;
use crate::leftovers::Leftover;
use crate::mount::unmount_all;
use crate::rootfs::view_prefix;
use crate::text::{blocking, remove_tree};

impl Inner {
    /// Clears away what no object accounts for. Runs before anything new is made, so that all of it is a predecessor's.
    pub(super) async fn clear_debris(&self, snapshots: &Snapshots, known: &HashSet<TaskId>) -> Result<()> {
        self.clear_leases().await?;
        self.clear_views(snapshots).await?;
        self.clear_downloads().await?;
        self.clear_dirs().await?;
        self.clear_logs(known).await;
        self.clear_shims().await
    }

    async fn clear_leases(&self) -> Result<()> {
        let request = api::ListRequest { filters: Vec::new() };
        let leases = call("list leases", QUICK, self.client.leases().list(request)).await?.leases;
        for found in leases.into_iter().filter(|found| found.id.starts_with(&lease::prefix(&self.client))) {
            lease::delete(&self.client, &found.id).await?;
        }
        Ok(())
    }

    /// Unmounts and removes views of images, and snapshots that an unpacking was cut off from.
    async fn clear_views(&self, snapshots: &Snapshots) -> Result<()> {
        let views = self.layout.views();
        let names = match std::fs::read_dir(&views) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect::<Vec<_>>(),
            Err(_) => Vec::new(),
        };
        for path in names {
            let target = path.clone();
            blocking(move || unmount_all(&target)).await?;
            remove_tree(&path).await?;
        }
        for (snapshotter, key) in
            snapshots.beginning(&[view_prefix(&self.client), extract_prefix(&self.client)])
        {
            let what = format!("remove snapshot {key}");
            let request = snap::RemoveSnapshotRequest { snapshotter, key };
            gone_is_done(call(&what, QUICK, self.client.snapshots().remove(request)).await)?;
        }
        Ok(())
    }

    /// Ends downloads that nobody continues. Beside a containerd that others use too they are left to their expiry.
    async fn clear_downloads(&self) -> Result<()> {
        if self.settings.containerd.mode != Mode::Managed {
            return Ok(());
        }
        let request = api::ListStatusesRequest { filters: Vec::new() };
        let statuses =
            call("list downloads", QUICK, self.client.content().list_statuses(request)).await?.statuses;
        for status in statuses {
            let request = api::AbortRequest { r#ref: status.r#ref.clone() };
            let what = format!("end download {}", status.r#ref);
            gone_is_done(call(&what, QUICK, self.client.content().abort(request)).await)?;
        }
        Ok(())
    }

    /// Removes what directories without a container object hold: mounts, namespaces, network attachments, files.
    async fn clear_dirs(&self) -> Result<()> {
        let layout = &self.layout;
        let mut sandboxes = ids_below::<SandboxId>(&layout.all_sandbox_state())?;
        sandboxes.extend(ids_below::<SandboxId>(&layout.all_sandbox_run())?);
        sandboxes.extend(ids_below::<SandboxId>(&layout.all_pins())?);
        for id in sandboxes.into_values() {
            if !self.sandboxes().contains_key(&id) && !self.has_container(&id.to_string()).await? {
                tracing::info!(sandbox.id = %id, "clearing what is left of a sandbox");
                if let Err(error) = self.destroy_sandbox(id).await {
                    tracing::warn!(sandbox.id = %id, error = error.report(), "the rest of a sandbox is cleared away later");
                    self.leftovers.keep(Leftover::Sandbox(id, None));
                }
            }
        }
        let mut tasks = ids_below::<TaskId>(&layout.all_task_state())?;
        tasks.extend(ids_below::<TaskId>(&layout.all_task_run())?);
        for id in tasks.into_values() {
            if !self.tasks().contains_key(&id) && !self.has_container(&id.to_string()).await? {
                let dirs = layout.task(id);
                remove_tree(&dirs.run).await?;
                remove_tree(&dirs.state).await?;
            }
        }
        Ok(())
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
    async fn clear_logs(&self, known: &HashSet<TaskId>) {
        let entries = match self.logkeeper.list().await {
            Ok(entries) => entries,
            Err(fault) => {
                let error = Error::unavailable("logkeeper").with_source(fault);
                tracing::warn!(error = error.report(), "logs of tasks that are gone are not looked for");
                return;
            }
        };
        for entry in entries {
            let known = entry.id.parse().is_ok_and(|id| known.contains(&id));
            if !known && let Err(fault) = self.logkeeper.finish(&entry.id, Duration::ZERO).await {
                tracing::warn!(id = entry.id, error = %fault, "the log of a task that is gone stays open");
            }
        }
    }
}
