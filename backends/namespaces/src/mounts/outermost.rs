//! Finds the outermost mounts at and below a directory by a walk, without the table of mounts: to read that takes the longer
//! the more mounts the node has, and holds up whoever mounts something meanwhile.
//!
//! The kernel refuses to cross into a mount (`openat2` with `RESOLVE_NO_XDEV`), so that no mounted file system is asked
//! anything, and may hang.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;

/// The most entries that are looked at: there is a table for larger trees.
const ENTRIES_MAX: usize = 512;

/// The most levels of directories.
const DEPTH_MAX: usize = 16;

/// Entry of a directory under a name.
enum Entry {
    /// Something is mounted there.
    MountPoint,
    Directory(OwnedFd),
    /// Another file, or none.
    Other,
}

/// The outermost mounts at and below `dir`, whose parents contain no symbolic link. `None` if a walk cannot tell: the tree is
/// too large, or an older kernel has no `openat2`.
pub(super) fn outermost_mounts(dir: &Path) -> Option<Vec<PathBuf>> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return None;
    };
    let opened = open(parent, directory_flags(), Mode::empty());
    let parent = match opened {
        Ok(parent) => parent,
        Err(Errno::NOENT | Errno::NOTDIR) => return Some(Vec::new()),
        Err(_) => return None,
    };
    let mut found = Vec::new();
    match look(&parent, name, FileType::Unknown).ok()? {
        Entry::MountPoint => found.push(dir.to_owned()),
        Entry::Directory(opened) => {
            let mut left = ENTRIES_MAX;
            walk(&opened, dir, DEPTH_MAX, &mut left, &mut found)?;
        }
        Entry::Other => {}
    }
    Some(found)
}

/// Returns whether `path`, whose parents contain no symbolic link, is itself a mount point. `None` if that cannot be told.
pub(super) fn is_mount_point(path: &Path) -> Option<bool> {
    let parent = open(path.parent()?, directory_flags(), Mode::empty()).ok()?;
    let entry = look(&parent, path.file_name()?, FileType::Unknown).ok()?;
    Some(matches!(entry, Entry::MountPoint))
}

fn walk(
    dir: &OwnedFd,
    path: &Path,
    depth: usize,
    left: &mut usize,
    found: &mut Vec<PathBuf>,
) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    for entry in Dir::read_from(dir).ok()? {
        let entry = entry.ok()?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        *left = left.checked_sub(1)?;
        match look(dir, name, entry.file_type()).ok()? {
            Entry::MountPoint => found.push(path.join(name)),
            Entry::Directory(opened) => walk(&opened, &path.join(name), depth, left, found)?,
            Entry::Other => {}
        }
    }
    Some(())
}

/// Returns what a name in a directory is, if the directory says this of its type.
fn look(dir: &OwnedFd, name: &OsStr, kind: FileType) -> Result<Entry, Errno> {
    let open_here = |flags| {
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        openat2(dir, name, flags, Mode::empty(), resolve)
    };
    if matches!(kind, FileType::Directory | FileType::Unknown) {
        match open_here(directory_flags()) {
            Ok(opened) => return Ok(Entry::Directory(opened)),
            Err(Errno::XDEV) => return Ok(Entry::MountPoint),
            Err(Errno::NOENT) => return Ok(Entry::Other),
            // A file, or a symbolic link.
            Err(Errno::NOTDIR | Errno::LOOP) => {}
            Err(fault) => return Err(fault),
        }
    }
    match open_here(OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC) {
        Err(Errno::XDEV) => Ok(Entry::MountPoint),
        Ok(_) | Err(Errno::NOENT) => Ok(Entry::Other),
        Err(fault) => Err(fault),
    }
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}
