//! What a checkpoint of a task is to be.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// An archive to make of a running task, from which it could go on elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSpec {
    /// The archive: an absolute path that nothing has yet, in a directory that is there.
    pub location: PathBuf,
    /// How long all of it may take.
    pub limit: Duration,
    /// Files that the frontend adds to the archive, by their names.
    pub notes: BTreeMap<String, Vec<u8>>,
}
