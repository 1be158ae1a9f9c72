//! Records of cgroups that clients have made.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
