//! A cache of what the writable layers of tasks use.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use switchyard_core::id::TaskId;
use switchyard_core::stats::DiskUsage;

/// Cached measurements of writable layers, and the root directories of snapshotters.
#[derive(Debug, Default)]
pub(crate) struct LayerUsageCache {
    pub(super) measured: Mutex<HashMap<TaskId, (Instant, DiskUsage)>>,
    pub(super) roots: Mutex<Option<BTreeMap<String, PathBuf>>>,
}

impl LayerUsageCache {
    /// Invalidates the root directories of snapshotters: a containerd that was replaced may use others.
    pub(crate) fn forget_roots(&self) {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
