//! Empties the snapshot of a task before containerd removes it.

use switchyard_core::{ErrorKind, Result};

use super::Storage;
use crate::base::fs::{cancellable, tree_error};
use crate::base::mount::writable_dir;
use crate::task::TaskEntry;

/// The snapshotters that keep the writes of a container in a directory that belongs to its snapshot alone.
const EMPTIED: [&str; 2] = ["native", "overlayfs"];

impl Storage {
    /// Removes what a task has written to its root file system, if the snapshotter keeps that in a directory.
    /// containerd would remove it with the snapshot, but recursively, with one open descriptor for each level
    /// of the tree: a deep tree exhausts the descriptors and the memory of containerd, which all other tasks
    /// need too.
    ///
    /// # Errors
    /// containerd cannot be reached. A tree that cannot be emptied is no error: containerd has to remove it.
    pub(crate) async fn empty_snapshot(&self, entry: &TaskEntry) -> Result<()> {
        if !EMPTIED.contains(&entry.snapshotter.as_str()) {
            return Ok(());
        }
        let mounts = match self.mounts_of(entry).await {
            Ok(mounts) => mounts,
            // The snapshot was never prepared, or has been removed.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(dir) = writable_dir(&mounts) else {
            return Ok(());
        };
        let task = entry.id;
        cancellable(move |cancel| {
            let Ok(opened) = switchyard_tree::open(&dir) else { return Ok(()) };
            match switchyard_tree::empty(opened, cancel) {
                Ok(()) => Ok(()),
                Err(error @ switchyard_tree::Error::Cancelled) => Err(tree_error("empty", &dir, error)),
                Err(error) => {
                    let error = tree_error("empty", &dir, error);
                    tracing::warn!(%task, error = error.report(), "cannot empty the snapshot of a task: containerd has to remove its files");
                    Ok(())
                }
            }
        })
        .await
    }
}
