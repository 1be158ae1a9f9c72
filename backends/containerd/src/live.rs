//! Queries by the lower parts about the objects in the tables of sandboxes and tasks.

use std::fmt::Debug;

/// The containers that this daemon knows, by their ids.
pub(crate) trait LiveContainers: Debug + Send + Sync {
    /// Returns whether the container may have a process. `false` for an unknown id.
    fn may_have_process(&self, id: &str) -> bool;

    /// The tasks without a persisted exit whose process is seen to run, except for `except`, each with the
    /// pid of its shim. Reads `/proc`: blocks.
    fn running_shims(&self, except: Option<&str>) -> Vec<(String, i32)>;
}
