//! A cgroup that a client has made for a task, and removes: it is used as it is, and left as it was.
//!
//! A runtime joins it by its path, but removes it with the process; it is then created again at once, because
//! the client that made it is to remove it. On cgroup v1 the group of the cpuset controller may be a
//! different one, which a runtime has no parameter for: the task is moved there before it runs, and each exec
//! right after its start. Until then the exec is in a group with the same processors.

use std::sync::Arc;

use switchyard_cgroup::{CgroupMode, Group};
use switchyard_core::spec::{CgroupPlacement, Resources};
use switchyard_core::{Error, Result};
use switchyard_runtime_spec::cgroups_path::CgroupLocation;

use crate::base::fs::blocking;
use crate::record::{CpusetRecord, LeafRecord};
use crate::task::TaskEntry;
use crate::task::cgroups::TaskCgroups;

impl TaskCgroups {
    /// Inspects the cgroup that a client has made for a task; `None` if the cgroup is not made by a client.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid path; `FailedPrecondition` if the group of the cpuset controller does
    /// not exist.
    pub(crate) fn plan_leaf(
        &self,
        placement: &CgroupPlacement,
        location: &CgroupLocation,
        limits: &Resources,
    ) -> Result<Option<LeafRecord>> {
        let CgroupPlacement::Leaf { path: _, cpuset } = placement else {
            return Ok(None);
        };
        let group = Group::from_cgroups_path(&location.path)?;
        let separate = match (cpuset, self.reader.hierarchy().mode()) {
            (Some(path), CgroupMode::V1) => {
                Some(Group::from_path(path)?).filter(|other| *other != group)
            }
            (Some(_), CgroupMode::V2) | (None, _) => None,
        };
        if let Some(other) = &separate
            && self
                .reader
                .hierarchy()
                .dir("cpuset", other)
                .is_some_and(|dir| !dir.is_dir())
        {
            return Err(Error::failed_precondition(format!(
                "cgroup {other} of the controller cpuset does not exist: the client that names it has to create it first"
            )));
        }
        let cpus = limits
            .cpuset_cpus
            .as_ref()
            .map(|cpus| cpus.as_str().to_owned());
        let cpuset = separate.map(|other| CpusetRecord {
            path: other.relative().to_owned(),
            cpus,
        });
        Ok(Some(LeafRecord {
            kept: self.reader.existing_dirs(&group),
            cpuset,
        }))
    }

    /// Gives the task's own group the processors of its separate cpuset group, which may have changed since
    /// the start of the task: so the next exec begins on the right processors. [`TaskCgroups::join_cpuset`]
    /// moves it right after its start. Idempotent.
    pub(crate) async fn sync_cpuset(&self, entry: &TaskEntry) -> Result<()> {
        let Some((CpusetRecord { path, cpus: _ }, group)) = self.separate_cpuset(entry) else {
            return Ok(());
        };
        let cgroups = Arc::clone(&self.reader);
        blocking(move || {
            cgroups
                .match_cpuset(&group, &Group::from_path(&path)?)
                .map_err(Error::from)
        })
        .await
    }

    /// The separate group of the cpuset controller, if there is one, and the task's own group.
    fn separate_cpuset(&self, entry: &TaskEntry) -> Option<(CpusetRecord, Group)> {
        let record = entry.record();
        let cpuset = record.theirs.as_ref()?.cpuset.clone()?;
        Some((cpuset, record.group()?))
    }

    /// Moves the processes of a task into its separate cpuset group, if there is one. Idempotent.
    pub(crate) async fn join_cpuset(&self, entry: &TaskEntry) -> Result<()> {
        let Some((CpusetRecord { path, cpus }, group)) = self.separate_cpuset(entry) else {
            return Ok(());
        };
        let cgroups = Arc::clone(&self.reader);
        blocking(move || {
            let other = Group::from_path(&path)?;
            if let Some(cpus) = cpus {
                cgroups.set_cpus(&other, &cpus)?;
            }
            cgroups.move_cpuset(&group, &other).map_err(Error::from)
        })
        .await
    }
}
