//! The state directories of runc and crun, which are outside containerd's own directories.

use std::fs;
use std::path::{Path, PathBuf};

/// The default root of the runtimes' state: `<namespace>/<id>` below it.
const STATE: &str = "/run/containerd/runc";

/// The directories of containers whose bundle or root file system lies below `root`.
#[must_use]
pub fn state_dirs_of(root: &Path) -> Vec<PathBuf> {
    let root = root.to_string_lossy();
    let namespaces = fs::read_dir(STATE).into_iter().flatten().flatten();
    let containers = namespaces.flat_map(|namespace| {
        fs::read_dir(namespace.path())
            .into_iter()
            .flatten()
            .flatten()
    });
    containers
        .map(|container| container.path())
        .filter(|dir| {
            // The first is runc's name for it, the second crun's.
            ["state.json", "status"].iter().any(|file| {
                fs::read_to_string(dir.join(file)).is_ok_and(|text| text.contains(root.as_ref()))
            })
        })
        .collect()
}

/// Removes what [`state_dirs_of`] finds; to be called when no process of `root` runs. Returns what remains.
#[must_use]
pub fn clear(root: &Path) -> Vec<PathBuf> {
    for dir in state_dirs_of(root) {
        // A directory that cannot be removed is listed below.
        let _ = fs::remove_dir_all(dir);
    }
    state_dirs_of(root)
}
