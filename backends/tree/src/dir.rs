//! Opens directories by descriptor, one from another.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

/// The flags for opening a directory for reading; other files and symlinks are refused.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Maximum number of levels of a tree that have an open descriptor: the deepest ones.
pub(crate) const OPEN_LEVELS: usize = 16;

/// The identity of a directory, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id {
    device: u64,
    inode: u64,
}

impl Id {
    pub(crate) fn of(dir: impl AsFd) -> Result<Self, Errno> {
        let found = fstat(dir)?;
        Ok(Self {
            device: found.st_dev,
            inode: found.st_ino,
        })
    }
}

/// Opens a directory by a path that only trusted processes can change: symlinks are followed, except for the
/// last component.
///
/// # Errors
/// The kernel's.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, FLAGS, Mode::empty())?)
}

/// Opens the directory at `path` below `dir` without following symlinks; `None` if it does not exist, or a
/// component is a symlink or not a directory.
///
/// # Errors
/// `InvalidInput` for a path that contains `..`; the kernel's.
pub fn open_below(dir: impl AsFd, path: &Path) -> io::Result<Option<OwnedFd>> {
    let mut found = openat(dir, c".", FLAGS, Mode::empty())?;
    for part in path.components() {
        let name = match part {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => name,
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the path contains `..`",
                ));
            }
        };
        found = match openat(&found, name, FLAGS, Mode::empty()) {
            Ok(below) => below,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
    }
    Ok(Some(found))
}

/// Opens the directory `name` in `dir`, or the parent for `..`.
///
/// # Errors
/// `EXDEV` if something is mounted there.
pub(crate) fn enter(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    open_entry(dir, name, FLAGS)
}

/// Opens the entry `name` of `dir`, of whatever kind, as a handle that can neither be read nor written: a symlink itself,
/// and a device or FIFO without any effect.
///
/// # Errors
/// `EXDEV` if something is mounted there.
pub(crate) fn handle(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    open_entry(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)
}

fn open_entry(dir: impl AsFd, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    // Neither a mount point nor a link of /proc leads out of the tree.
    match openat2(
        &dir,
        name,
        flags,
        Mode::empty(),
        ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS,
    ) {
        // A kernel before 5.6, or a seccomp filter that does not know `openat2`.
        Err(Errno::NOSYS | Errno::PERM) => {
            let device = fstat(&dir)?.st_dev;
            let found = openat(dir, name, flags, Mode::empty())?;
            if fstat(&found)?.st_dev == device {
                Ok(found)
            } else {
                Err(Errno::XDEV)
            }
        }
        other => other,
    }
}
