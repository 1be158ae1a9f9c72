//! A request for a checkpoint of a task.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// An archive to write of a running task, from which it can be restored elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSpec {
    /// The archive: an absolute path that does not exist yet, in an existing directory.
    pub location: PathBuf,
    /// The time limit for the whole operation.
    pub limit: Duration,
    /// Files that the frontend adds to the archive, by name.
    pub notes: BTreeMap<String, Vec<u8>>,
}
