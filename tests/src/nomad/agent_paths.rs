//! The paths of an agent: its directory, the daemon that it uses, and the parent cgroup of its tasks.

use std::path::PathBuf;

use crate::daemon::binary;
use crate::root::PrivateRoot;

/// The place of one agent. Another life of it has the same.
#[derive(Debug, Clone)]
pub struct AgentPaths {
    /// Below it are its plugins and its allocations.
    pub dir: PathBuf,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Its control group, below the root of the hierarchy.
    pub cgroup: String,
    /// The binary that its plugins are links to.
    pub program: PathBuf,
}

impl From<&PrivateRoot> for AgentPaths {
    fn from(root: &PrivateRoot) -> Self {
        Self {
            dir: root.path().to_owned(),
            socket: root.run().join("nomad.sock"),
            cgroup: root.cgroup_name(),
            program: binary(),
        }
    }
}

impl From<&Self> for AgentPaths {
    fn from(place: &Self) -> Self {
        place.clone()
    }
}
