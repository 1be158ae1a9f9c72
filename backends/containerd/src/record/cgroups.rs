//! The cgroups in records.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use switchyard_cgroup::Group;

use super::TaskRecord;

impl TaskRecord {
    /// The cgroup of the task; `None`, with a warning, if the record has no valid path.
    pub(crate) fn group(&self) -> Option<Group> {
        match Group::from_cgroups_path(&self.cgroups_path) {
            Ok(group) => Some(group),
            Err(fault) => {
                tracing::warn!(path = self.cgroups_path, error = %fault, "the cgroup path in a task's record is not valid");
                None
            }
        }
    }
}

/// The cgroup that a client has made for a task, as it was before the task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeafRecord {
    /// Its directories that existed before the task.
    pub(crate) kept: Vec<PathBuf>,
    /// The group of the cpuset controller, if it is a different one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpuset: Option<CpusetRecord>,
}

/// A group of the cpuset controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CpusetRecord {
    /// Its path below the root.
    pub(crate) path: PathBuf,
    /// The processors to set on it; `None` keeps those that it has.
    pub(crate) cpus: Option<String>,
}
