//! A cgroup that somebody else has made for a task, and removes: used as it is, and left as it was.
//!
//! A runtime joins it by its path, but takes it away with the process; then it is made again at once: whoever made it removes it later. On cgroup v1
//! the group of the cpuset controller may be another, which a runtime cannot be told: the task is moved there before it runs, and each
//! process that is started in it later right after its start. Until then it is in a group that has the same processors.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use switchyard_cgroup::{CgroupMode, Group};
use switchyard_core::spec::{CgroupPlacement, Resources};
use switchyard_core::{Error, Result};
use switchyard_runtime_spec::cgroups_path::CgroupLocation;

use super::TaskEntry;
use crate::backend::Inner;
use crate::fs::blocking;

/// What somebody else has made of a task's cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeafRecord {
    /// The directories of it that were there before the task.
    kept: Vec<PathBuf>,
    /// The group of the cpuset controller, where that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpuset: Option<CpusetRecord>,
}

/// A group of the cpuset controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CpusetRecord {
    /// Its path below the root.
    path: PathBuf,
    /// The processors that it is to have; `None` leaves it those that it has.
    cpus: Option<String>,
}

impl Inner {
    /// What a task finds of a cgroup that is somebody else's; `None` if it is not.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no group; `FailedPrecondition` if that of the cpuset controller is not there.
    pub(super) fn plan_leaf(
        &self,
        placement: &CgroupPlacement,
        location: &CgroupLocation,
        limits: &Resources,
    ) -> Result<Option<LeafRecord>> {
        let CgroupPlacement::Leaf { path: _, cpuset } = placement else { return Ok(None) };
        let group = Group::from_cgroups_path(&location.path)?;
        let apart = match (cpuset, self.cgroups.hierarchy().mode()) {
            (Some(path), CgroupMode::V1) => Some(Group::from_path(path)?).filter(|other| *other != group),
            (Some(_), CgroupMode::V2) | (None, _) => None,
        };
        if let Some(other) = &apart
            && self.cgroups.hierarchy().dir("cpuset", other).is_some_and(|dir| !dir.is_dir())
        {
            return Err(Error::failed_precondition(format!(
                "cgroup {other} of the controller cpuset is not there: whoever names it has to make it first"
            )));
        }
        let cpus = limits.cpuset_cpus.clone().filter(|cpus| !cpus.is_empty());
        let cpuset = apart.map(|other| CpusetRecord { path: other.relative().to_owned(), cpus });
        Ok(Some(LeafRecord { kept: self.cgroups.existing_dirs(&group), cpuset }))
    }

    /// Has the next process that is made in a task begin on the processors of its cpuset, which may have others by now than when the task was
    /// started; it is put there right after by [`Inner::place`]. Idempotent.
    pub(crate) async fn sync_cpuset(&self, entry: &TaskEntry) -> Result<()> {
        let Some((CpusetRecord { path, cpus: _ }, group)) = self.separate_cpuset(entry) else {
            return Ok(());
        };
        let cgroups = Arc::clone(&self.cgroups);
        blocking(move || cgroups.match_cpuset(&group, &Group::from_path(&path)?).map_err(Error::from)).await
    }

    /// The group of the cpuset controller that is another than a task's own, and that of its own.
    fn separate_cpuset(&self, entry: &TaskEntry) -> Option<(CpusetRecord, Group)> {
        let record = entry.record();
        let cpuset = record.theirs.as_ref()?.cpuset.clone()?;
        Some((cpuset, self.cgroup_location(&record)?))
    }

    /// Puts the processes of a task where its cpuset is. Idempotent.
    pub(crate) async fn join_cpuset(&self, entry: &TaskEntry) -> Result<()> {
        let Some((CpusetRecord { path, cpus }, group)) = self.separate_cpuset(entry) else { return Ok(()) };
        let cgroups = Arc::clone(&self.cgroups);
        blocking(move || {
            let other = Group::from_path(&path)?;
            if let Some(cpus) = cpus {
                cgroups.set_cpus(&other, &cpus)?;
            }
            cgroups.move_cpuset(&group, &other).map_err(Error::from)
        })
        .await
    }

    /// Ends what runs of a task, has containerd forget it, and leaves a cgroup that is somebody else's as it was: a runtime takes it away
    /// with the process, or when it has `failed` to make one. Idempotent.
    pub(crate) async fn end_task_process(&self, entry: &TaskEntry, failed: bool) -> Result<()> {
        let _turn = self.lock_pod(entry).await;
        let ended = self.end_process(&entry.id.into()).await?;
        let (theirs, group) = {
            let record = entry.record();
            (record.theirs.clone(), self.cgroup_location(&record))
        };
        if let Some((LeafRecord { kept, cpuset: _ }, group)) = theirs.zip(group) {
            let cgroups = Arc::clone(&self.cgroups);
            blocking(move || {
                if ended || failed {
                    cgroups.recreate(&kept)?;
                }
                cgroups.keep_only(&group, &kept).map_err(Error::from)
            })
            .await?;
        }
        entry.set_cleared();
        Ok(())
    }
}
