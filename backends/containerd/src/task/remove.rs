//! Removal of a task: of everything that carries its id, the container object last.

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use switchyard_core::Result;
use switchyard_core::id::TaskId;

use super::TaskEntry;
use super::exit::note_exit;
use super::logs::{end_log, from_logkeeper};
use crate::base::crash_points::CrashPoint;
use crate::base::disks::tolerate_unwritable_disk;
use crate::base::fs::remove_tree;
use crate::client::{QUICK, call, ignore_not_found};
use crate::task::Tasks;

impl Tasks {
    pub(crate) async fn remove_task(&self, id: TaskId) -> Result<()> {
        let Ok(entry) = self.table.get(id) else {
            return Ok(());
        };
        self.destroy_task(&entry).await?;
        self.table.lock().remove(&id);
        Ok(())
    }

    /// Removes everything that exists of a task. Idempotent.
    pub(crate) async fn destroy_task(&self, entry: &TaskEntry) -> Result<()> {
        let _guard = entry.lock_process().await;
        let id = entry.id.to_string();
        // Deleting the process makes containerd forget an exit that may be stored nowhere else. If the disk
        // cannot be written, the removal continues, because it frees space.
        tolerate_unwritable_disk(
            self.exits.persist_observed_exit(entry).await,
            "removing a task whose exit cannot be persisted",
        )?;
        if entry.may_have_process() {
            if let Some(exit) = entry.unpersisted_exit() {
                note_exit(entry, &exit, entry.started().map(|started| started.at)).await;
            }
            self.exits.end_task_process(entry, false).await?;
        }
        let location = entry.record().group();
        self.end_output(entry).await?;
        if !entry.record().leaf {
            let sandbox = self.sandboxes.table.get(entry.sandbox).ok();
            let above = sandbox
                .map(|sandbox| sandbox.made_groups())
                .unwrap_or_default();
            self.cgroups.remove_cgroup(&id, location, above).await?;
        }
        self.storage.unstage(entry).await?;
        self.storage.remove_views(entry).await?;
        self.storage.empty_snapshot(entry).await?;
        self.context.faults.reach(CrashPoint::TaskEmptied)?;
        let request = snap::RemoveSnapshotRequest {
            snapshotter: entry.snapshotter.clone(),
            key: id.clone(),
        };
        ignore_not_found(
            call(
                &format!("remove snapshot {id}"),
                QUICK,
                self.client.snapshots().remove(request),
            )
            .await,
        )?;
        self.context.faults.reach(CrashPoint::TaskSnapshotGone)?;
        remove_tree(&entry.dirs.run).await?;
        self.storage.trees.remove(&entry.dirs.state).await?;
        let volumes = entry.record().volumes.len();
        for number in 0..volumes {
            self.storage
                .trees
                .remove(&self.storage.volumes.draft(entry.id, number))
                .await?;
        }
        self.context.faults.reach(CrashPoint::TaskFilesGone)?;
        self.storage.lift_limits(entry).await?;
        let request = api::DeleteContainerRequest { id: id.clone() };
        ignore_not_found(
            call(
                &format!("delete container {id}"),
                QUICK,
                self.client.containers().delete(request),
            )
            .await,
        )?;
        self.storage.volumes.release(entry.id);
        self.context.faults.reach(CrashPoint::TaskForgotten)
    }

    /// Ends the output of a task that is removed.
    async fn end_output(&self, entry: &TaskEntry) -> Result<()> {
        if !entry.uses_logkeeper() || entry.is_output_finished() {
            return Ok(());
        }
        // Without it nothing was printed, but a start that failed may have left a log open.
        let has_run = entry.dirs.run.exists();
        if !has_run && !entry.holds_output() {
            return Ok(());
        }
        match end_log(&self.exits.logkeeper, &entry.id.to_string()).await {
            Ok(()) => entry.set_output_finished(),
            Err(error) if has_run => return Err(from_logkeeper(error)),
            Err(error) => {
                tracing::warn!(task = %entry.id, %error, "cannot close the log of a start that failed: the next start of the daemon does");
            }
        }
        Ok(())
    }
}
