//! Where cgroups go.

use std::path::PathBuf;

/// Where the cgroup of an object goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupPlacement {
    /// Below this parent, in a group named after the id. An empty path is the gateway's own default parent.
    Parent(PathBuf),
    /// Exactly this group, which somebody else made and removes.
    Leaf(CgroupLeaf),
}

/// A group that somebody else makes and removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupLeaf {
    /// Its path below the root of the hierarchy; with cgroup v1 below that of each.
    pub path: PathBuf,
    /// With cgroup v1: its path in the hierarchy of cpusets, where that is another.
    pub cpuset: Option<PathBuf>,
}

// === impl CgroupPlacement ===

impl Default for CgroupPlacement {
    fn default() -> Self {
        Self::Parent(PathBuf::new())
    }
}
