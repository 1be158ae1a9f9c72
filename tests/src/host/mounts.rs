//! The mount table: lists the mounts below a path, and unmounts them.

use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};
use switchyard_linux::mounts::{self as linux, MountTable};

/// Maximum number of attempts to unmount a stacked or busy tree.
const ROUNDS: usize = 16;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its mount point.
    pub point: PathBuf,
    /// The type of the file system, for example `nsfs` for a pinned namespace.
    pub kind: String,
}

/// The mounts at or below `path`, the newest first, which is also the order in which they can be unmounted.
///
/// # Panics
/// When `/proc` is not mounted.
#[must_use]
pub fn below(path: &Path) -> Vec<Mount> {
    let mut mounts: Vec<_> = all()
        .into_iter()
        .filter(|mount| mount.point.starts_with(path))
        .collect();
    mounts.reverse();
    mounts
}

/// The whole mount table of this process, oldest first.
///
/// # Panics
/// When `/proc` is not mounted.
#[must_use]
pub fn all() -> Vec<Mount> {
    let table = MountTable::of_this_process().expect("/proc is mounted");
    let owned = |mount: linux::Mount<'_>| Mount {
        point: mount.point.into_owned(),
        kind: mount.fs_type.into_owned(),
    };
    table.iter().map(owned).collect()
}

/// Unmounts everything at or below `path`. Returns what is still mounted there.
#[must_use]
pub fn clear(path: &Path) -> Vec<Mount> {
    for _ in 0..ROUNDS {
        let mounts = below(path);
        if mounts.is_empty() {
            break;
        }
        for mount in mounts {
            // A failed unmount shows in the table, which is read again.
            let _ = umount2(
                &mount.point,
                MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW,
            );
        }
    }
    below(path)
}
