//! Removal of a task: of everything that carries its id, the container object last.

use std::sync::atomic::Ordering;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use switchyard_core::id::TaskId;
use switchyard_core::{ErrorKind, Result};

use super::TaskEntry;
use super::start::from_logkeeper;
use crate::backend::Inner;
use crate::client::{QUICK, call, ignore_not_found, writable_dir};
use crate::disks::tolerate_full_disk;
use crate::fs::{cancellable, remove_tree, tree_error};
use crate::steps::Step;

/// The snapshotters that keep the writes of a container in a directory that belongs to its snapshot alone.
const EMPTIED: [&str; 2] = ["native", "overlayfs"];

impl Inner {
    pub(crate) async fn remove_task(&self, id: TaskId) -> Result<()> {
        let Ok(entry) = self.task(id) else { return Ok(()) };
        self.destroy_task(&entry).await?;
        self.tasks().remove(&id);
        Ok(())
    }

    /// Removes everything that exists of a task. Idempotent.
    pub(crate) async fn destroy_task(&self, entry: &TaskEntry) -> Result<()> {
        let _guard = entry.lock_process().await;
        let id = entry.id.to_string();
        // Deleting the process makes containerd forget an exit that may be stored nowhere else. If the disk
        // is too full to persist it, the removal goes on, because it frees space.
        tolerate_full_disk(
            self.persist_observed_exit(entry).await,
            "the disk is full: removing a task whose exit is not persisted",
        )?;
        if entry.may_have_process() {
            self.end_task_process(entry, false).await?;
        }
        let uses_logkeeper = entry.uses_logkeeper();
        let location = self.cgroup_location(&entry.record());
        if uses_logkeeper && !entry.log_finished.load(Ordering::Acquire) && entry.dirs.run.exists() {
            self.logkeeper.finish(&id, std::time::Duration::ZERO).await.map_err(from_logkeeper)?;
        }
        if !entry.leaf {
            let sandbox = self.sandbox(entry.sandbox).ok();
            self.remove_cgroup(&id, location, sandbox.as_deref()).await?;
        }
        self.unstage(entry).await?;
        self.remove_views(entry).await?;
        self.empty_snapshot(entry).await?;
        self.faults.reach(Step::TaskEmptied)?;
        let request = snap::RemoveSnapshotRequest { snapshotter: entry.snapshotter.clone(), key: id.clone() };
        ignore_not_found(
            call(&format!("remove snapshot {id}"), QUICK, self.client.snapshots().remove(request)).await,
        )?;
        self.faults.reach(Step::TaskSnapshotGone)?;
        remove_tree(&entry.dirs.run).await?;
        self.trees.remove(&entry.dirs.state).await?;
        let volumes = entry.record().volumes.len();
        for number in 0..volumes {
            self.trees.remove(&self.volumes.draft(entry.id, number)).await?;
        }
        self.faults.reach(Step::TaskFilesGone)?;
        self.lift_limits(entry).await?;
        let request = api::DeleteContainerRequest { id: id.clone() };
        ignore_not_found(
            call(&format!("delete container {id}"), QUICK, self.client.containers().delete(request)).await,
        )?;
        self.volumes.release(entry.id);
        self.faults.reach(Step::TaskForgotten)
    }

    /// Removes what a task has written to its root file system, if the snapshotter keeps that in a directory.
    /// containerd would remove it with the snapshot, but recursively, with one open descriptor for each level
    /// of the tree: a deep tree exhausts the descriptors and the memory of containerd, which all other tasks
    /// need too.
    ///
    /// # Errors
    /// containerd cannot be reached. A tree that cannot be emptied is no error: containerd has to remove it.
    async fn empty_snapshot(&self, entry: &TaskEntry) -> Result<()> {
        if !EMPTIED.contains(&entry.snapshotter.as_str()) {
            return Ok(());
        }
        let mounts = match self.mounts_of(entry).await {
            Ok(mounts) => mounts,
            // The snapshot was never prepared, or has been removed.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(dir) = writable_dir(&mounts) else { return Ok(()) };
        let task = entry.id;
        cancellable(move |cancel| {
            let Ok(opened) = switchyard_tree::open(&dir) else { return Ok(()) };
            match switchyard_tree::empty(opened, cancel) {
                Ok(()) => Ok(()),
                Err(error @ switchyard_tree::Error::Cancelled) => Err(tree_error("empty", &dir, error)),
                Err(error) => {
                    let error = tree_error("empty", &dir, error);
                    tracing::warn!(task.id = %task, error = error.report(), "cannot empty the snapshot of a task: containerd has to remove its files");
                    Ok(())
                }
            }
        })
        .await
    }
}
