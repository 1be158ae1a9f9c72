//! A cache of what the writable layers of tasks use.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::id::TaskId;
use switchyard_core::stats::DiskUsage;

/// Time for which a measurement of a writable layer is cached: measuring walks the whole tree.
const LAYER_AGE: Duration = Duration::from_secs(10);

/// Cached measurements of writable layers, and the root directories of snapshotters.
#[derive(Debug, Default)]
pub(crate) struct LayerUsageCache {
    measured: Mutex<HashMap<TaskId, (Instant, DiskUsage)>>,
    roots: Mutex<Option<BTreeMap<String, PathBuf>>>,
}

impl LayerUsageCache {
    /// The last measurement of a task's layer, unless it is older than [`LAYER_AGE`].
    pub(crate) fn measured(&self, id: TaskId) -> Option<DiskUsage> {
        let (at, usage) = self.measurements().get(&id).cloned()?;
        (at.elapsed() < LAYER_AGE).then_some(usage)
    }

    /// Caches a measurement that was made now.
    pub(crate) fn insert(&self, id: TaskId, usage: DiskUsage) {
        self.measurements().insert(id, (Instant::now(), usage));
    }

    /// Keeps only the measurements of tasks of which `exists` is true.
    pub(crate) fn retain(&self, exists: impl Fn(TaskId) -> bool) {
        self.measurements().retain(|id, _| exists(*id));
    }

    /// The root directories of snapshotters by name, if they are cached.
    pub(crate) fn roots(&self) -> Option<BTreeMap<String, PathBuf>> {
        self.roots.lock().clone()
    }

    pub(crate) fn set_roots(&self, roots: BTreeMap<String, PathBuf>) {
        *self.roots.lock() = Some(roots);
    }

    fn measurements(&self) -> MutexGuard<'_, HashMap<TaskId, (Instant, DiskUsage)>> {
        self.measured.lock()
    }

    /// Invalidates the root directories of snapshotters: a containerd that was replaced may use others.
    pub(crate) fn forget_roots(&self) {
        self.roots.lock().take();
    }
}
