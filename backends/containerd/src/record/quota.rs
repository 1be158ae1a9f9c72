//! The record of disk limits.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The quotas of a task's directories.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuotaRecord {
    /// The limit of the root file system first.
    pub(crate) limits: Vec<LimitRecord>,
    /// All limits are set. A record without this is of a task whose creation did not finish.
    pub(crate) in_force: bool,
}

/// A project and its limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LimitRecord {
    pub(crate) project: u32,
    pub(crate) bytes: u64,
    /// The mount point of the file system.
    pub(crate) mount: PathBuf,
}
