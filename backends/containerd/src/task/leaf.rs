//! A cgroup that a client has made for a task, and removes: it is used as it is, and left as it was.
//!
//! A runtime joins it by its path, but removes it with the process; it is then created again at once, because
//! the client that made it is to remove it. On cgroup v1 the group of the cpuset controller may be a
//! different one, which a runtime cannot be told: the task is moved there before it runs, and each exec right
//! after its start. Until then the exec is in a group with the same processors.

use std::sync::Arc;

use switchyard_cgroup::{CgroupMode, Group};
use switchyard_core::spec::{CgroupPlacement, Resources};
use switchyard_core::{Error, Result};
use switchyard_runtime_spec::cgroups_path::CgroupLocation;

use super::TaskEntry;
use crate::backend::Inner;
use crate::fs::blocking;
use crate::record::{CpusetRecord, LeafRecord};

impl Inner {
    /// Inspects the cgroup that a client has made for a task; `None` if the cgroup is not made by a client.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid path; `FailedPrecondition` if the group of the cpuset controller does
    /// not exist.
    pub(super) fn plan_leaf(
        &self,
        placement: &CgroupPlacement,
        location: &CgroupLocation,
        limits: &Resources,
    ) -> Result<Option<LeafRecord>> {
        let CgroupPlacement::Leaf { path: _, cpuset } = placement else { return Ok(None) };
        let group = Group::from_cgroups_path(&location.path)?;
        let separate = match (cpuset, self.cgroups.hierarchy().mode()) {
            (Some(path), CgroupMode::V1) => Some(Group::from_path(path)?).filter(|other| *other != group),
            (Some(_), CgroupMode::V2) | (None, _) => None,
        };
        if let Some(other) = &separate
            && self.cgroups.hierarchy().dir("cpuset", other).is_some_and(|dir| !dir.is_dir())
        {
            return Err(Error::failed_precondition(format!(
                "cgroup {other} of the controller cpuset does not exist: the client that names it has to create it first"
            )));
        }
        let cpus = limits.cpuset_cpus.clone().filter(|cpus| !cpus.is_empty());
        let cpuset = separate.map(|other| CpusetRecord { path: other.relative().to_owned(), cpus });
        Ok(Some(LeafRecord { kept: self.cgroups.existing_dirs(&group), cpuset }))
    }

    /// Gives the task's own group the processors of its separate cpuset group, which may have changed since
    /// the start of the task: so the next exec begins on the right processors. [`Inner::join_cpuset`] moves
    /// it right after its start. Idempotent.
    pub(crate) async fn sync_cpuset(&self, entry: &TaskEntry) -> Result<()> {
        let Some((CpusetRecord { path, cpus: _ }, group)) = self.separate_cpuset(entry) else {
            return Ok(());
        };
        let cgroups = Arc::clone(&self.cgroups);
        blocking(move || cgroups.match_cpuset(&group, &Group::from_path(&path)?).map_err(Error::from)).await
    }

    /// The separate group of the cpuset controller, if there is one, and the task's own group.
    fn separate_cpuset(&self, entry: &TaskEntry) -> Option<(CpusetRecord, Group)> {
        let record = entry.record();
        let cpuset = record.theirs.as_ref()?.cpuset.clone()?;
        Some((cpuset, self.cgroup_location(&record)?))
    }

    /// Moves the processes of a task into its separate cpuset group, if there is one. Idempotent.
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

    /// Ends the process of a task, deletes it from containerd, and restores the cgroup if a client has made
    /// it: a runtime removes it with the process, or when the creation of one has `failed`. Idempotent.
    pub(crate) async fn end_task_process(&self, entry: &TaskEntry, failed: bool) -> Result<()> {
        let _guard = self.lock_pod(entry).await;
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
