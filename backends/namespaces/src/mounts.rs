//! Finds mounts below a directory, and unmounts whole trees.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use switchyard_linux::mounts::MountTable;

use crate::error::Error;

mod detached;
mod outermost;
mod path_handle;

pub use detached::DetachedMount;
pub use path_handle::PathHandle;

/// Maximum number of mounts stacked on one mount point that are unmounted, or of passes over a tree, before
/// giving up.
const MAX_TRIES: usize = 64;

// === Reading ===

/// The mount points at or below `dir`, outermost and oldest first; stacked mounts are listed once each.
///
/// Symlinks above the last component of `dir` are resolved, the last one is not. A missing directory has no
/// mounts.
///
/// # Errors
/// [`Error::File`]; [`Error::MalformedMount`], since a mount that is overlooked would stay.
pub fn mount_points_under(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let Some(dir) = real_place(dir)? else {
        return Ok(Vec::new());
    };
    let table = MountTable::of_this_thread().map_err(Error::file("read the mounts above", &dir))?;
    let mut points = Vec::new();
    for mount in table.checked() {
        let mount = mount?;
        if mount.point.starts_with(&dir) {
            points.push(mount.point.into_owned());
        }
    }
    Ok(points)
}

/// Returns whether `path`, which contains no symbolic link, is itself a mount point.
///
/// # Errors
/// Those of [`mount_points_under`].
pub(crate) fn is_mount_point(path: &Path) -> Result<bool, Error> {
    match outermost::is_mount_point(path) {
        Some(is_one) => Ok(is_one),
        None => Ok(mount_points_under(path)?.iter().any(|point| point == path)),
    }
}

// === Removing ===

/// Unmounts everything that is mounted at or below `dir`, lazily, so that users of the mounts do not prevent
/// it.
///
/// Idempotent: a missing directory, or one without mounts, is fine. A symlink at `dir` is not followed.
/// Unmounting here does not unmount anything at the source of a shared bind mount. Files and directories
/// stay.
///
/// The table of mounts is read only if something is busy, or the tree is large: reading it takes the longer the more mounts
/// the node has.
///
/// # Errors
/// [`Error::Mount`] for the first mount that cannot be unmounted, after the others were tried;
/// [`Error::StillMounted`] if another program keeps mounting; [`Error::File`], [`Error::MalformedMount`].
pub fn unmount_tree(dir: &Path) -> Result<(), Error> {
    let Some(real) = real_place(dir)? else {
        return Ok(());
    };
    if unmount_idle(&real) {
        return Ok(());
    }
    for _ in 0..MAX_TRIES {
        let points = mount_points_under(dir)?;
        if points.is_empty() {
            return Ok(());
        }
        let mut first = Ok(());
        for point in &points {
            first = first.and(stop_propagation(point));
        }
        // The newest first: mounts below a mount, or stacked on it, are unmounted before it.
        for point in points.iter().rev() {
            first = first.and(detach_once(point).map(drop));
        }
        first?;
    }
    Err(Error::StillMounted {
        path: dir.to_owned(),
        tries: MAX_TRIES,
    })
}

/// Unmounts what is mounted at or below `dir` and is not busy: that nothing uses, and nothing else is mounted on. Returns
/// whether nothing is left.
fn unmount_idle(dir: &Path) -> bool {
    for _ in 0..MAX_TRIES {
        let Some(points) = outermost::outermost_mounts(dir) else {
            return false;
        };
        if points.is_empty() {
            return true;
        }
        let unmounted = points.iter().all(|point| {
            // Without mounts below it, nothing is unmounted at the source of a shared bind mount.
            umount2(point, MntFlags::UMOUNT_NOFOLLOW).is_ok()
        });
        if !unmounted {
            return false;
        }
    }
    false
}

/// Unmounts every mount stacked on `path` itself. Idempotent; symlinks are not followed.
pub(crate) fn detach(path: &Path) -> Result<(), Error> {
    for _ in 0..MAX_TRIES {
        if !detach_once(path)? {
            return Ok(());
        }
    }
    Err(Error::StillMounted {
        path: path.to_owned(),
        tries: MAX_TRIES,
    })
}

/// Unmounts the topmost mount; `false` if there was none.
fn detach_once(path: &Path) -> Result<bool, Error> {
    match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) => Ok(true),
        // EINVAL: not a mount point. ENOTDIR: a parent is a file, so nothing can be mounted here.
        Err(Errno::EINVAL | Errno::ENOENT | Errno::ENOTDIR) => Ok(false),
        Err(errno) => Err(Error::mount("unmount", path)(errno)),
    }
}

/// Makes a mount a slave of its peers. Otherwise unmounting something below a shared bind mount would
/// propagate to the source of the bind mount, and unmount what the host has mounted there.
fn stop_propagation(point: &Path) -> Result<(), Error> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(point);
    let file = match opened {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(());
        }
        Err(e) => return Err(Error::file("open", point)(e)),
    };
    // Through the descriptor, because mount(2) itself would follow a symlink put there meanwhile.
    let held = PathBuf::from(format!("/proc/thread-self/fd/{}", file.as_raw_fd()));
    match mount(
        None::<&Path>,
        &held,
        None::<&Path>,
        MsFlags::MS_SLAVE,
        None::<&Path>,
    ) {
        // EINVAL: it is not mounted any more, or it is hidden below another mount, and a later pass finds it.
        Ok(()) | Err(Errno::EINVAL) => Ok(()),
        Err(errno) => Err(Error::mount("stop the propagation of", point)(errno)),
    }
}

/// `dir` as the mount table has it: symlinks in parents resolved, the last component as it is. `None` if a
/// parent is missing.
fn real_place(dir: &Path) -> Result<Option<PathBuf>, Error> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return dir
            .canonicalize()
            .map(Some)
            .map_err(Error::file("resolve", dir));
    };
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    match parent.canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(Error::file("resolve", parent)(e)),
    }
}

#[cfg(test)]
mod tests;
