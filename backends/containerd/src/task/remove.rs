//! Removing a task: everything that bears its id, the container object last.

use std::sync::atomic::Ordering;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use switchyard_core::Result;
use switchyard_core::id::TaskId;

use super::TaskEntry;
use super::start::from_logkeeper;
use crate::backend::Inner;
use crate::client::{QUICK, call, gone_is_done};
use crate::disks::unless_full;
use crate::steps::Step;
use crate::text::remove_tree;

impl Inner {
    pub(crate) async fn remove_task(&self, id: TaskId) -> Result<()> {
        let Ok(entry) = self.task(id) else { return Ok(()) };
        self.destroy_task(&entry).await?;
        self.tasks().remove(&id);
        Ok(())
    }

    /// Removes all there is of a task. Idempotent.
    pub(crate) async fn destroy_task(&self, entry: &TaskEntry) -> Result<()> {
        let _turn = entry.take_turn().await;
        let id = entry.id.to_string();
        // containerd is about to forget an end that may be nowhere else. Without space for it the removal is what makes some.
        unless_full(self.record_told(entry).await, "a task is removed whose end is not on record")?;
        if entry.may_have_process() {
            self.end_task_process(entry, false).await?;
        }
        let (kept, location) = (entry.is_kept(), self.cgroup_location(&entry.record()));
        if kept && !entry.log_finished.load(Ordering::Acquire) && entry.dirs.run.exists() {
            self.logkeeper.finish(&id, std::time::Duration::ZERO).await.map_err(from_logkeeper)?;
        }
        if !entry.leaf {
            let sandbox = self.sandbox(entry.sandbox).ok();
            self.remove_cgroup(&id, location, sandbox.as_deref()).await?;
        }
        self.unstage(entry).await?;
        self.remove_views(entry).await?;
        let request = snap::RemoveSnapshotRequest { snapshotter: entry.snapshotter.clone(), key: id.clone() };
        gone_is_done(
            call(&format!("remove snapshot {id}"), QUICK, self.client.snapshots().remove(request)).await,
        )?;
        self.faults.reach(Step::TaskSnapshotGone)?;
        remove_tree(&entry.dirs.run).await?;
        remove_tree(&entry.dirs.state).await?;
        let volumes = entry.record().volumes.len();
        for number in 0..volumes {
            remove_tree(&self.volumes.draft(entry.id, number)).await?;
        }
        self.faults.reach(Step::TaskFilesGone)?;
        self.lift_limits(entry).await?;
        let request = api::DeleteContainerRequest { id: id.clone() };
        gone_is_done(
            call(&format!("delete container {id}"), QUICK, self.client.containers().delete(request)).await,
        )?;
        self.volumes.release(entry.id);
        self.faults.reach(Step::TaskForgotten)
    }
}
