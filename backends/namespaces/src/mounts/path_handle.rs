//! Handles to files and directories below paths that others can change: opened once without following
//! symlinks, checked, and then bind-mounted through the descriptor.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;

use crate::error::Error;

/// An open file or directory; the handle stays the same if another is put at its path.
#[derive(Debug)]
pub struct PathHandle(OwnedFd);

// === impl PathHandle ===

impl PathHandle {
    /// Opens `path` below `root`, without following symlinks below `root`. Needs Linux 5.6.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a path that is absolute or contains `..`; [`Error::File`] with `ELOOP` if a
    /// component is a symlink, and with `ENOENT` if there is no such file.
    pub fn open_beneath(root: &Path, path: &Path) -> Result<Self, Error> {
        let plain = path
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !plain {
            let value = path.display().to_string();
            return Err(Error::Invalid {
                what: "path",
                value,
                why: "must be relative and must not contain ..",
            });
        }
        let whole = root.join(path);
        let failed = |errno: Errno| Error::file("open", whole.clone())(errno.into());
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let root = open(root, flags | OFlag::O_DIRECTORY, Mode::empty()).map_err(failed)?;
        let below = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        openat2(root, below, OpenHow::new().flags(flags).resolve(resolve))
            .map(Self)
            .map_err(failed)
    }

    /// Bind-mounts it recursively at `target`, which is created. With `shared`, later mounts below `target`
    /// propagate to the source as well; else only those below the source to `target`.
    /// [`unmount_tree`](super::unmount_tree) removes the mounts, also after an error.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Mount`].
    pub fn bind_mount_at(&self, target: &Path, shared: bool) -> Result<(), Error> {
        let source = PathBuf::from(format!("/proc/thread-self/fd/{}", self.0.as_raw_fd()));
        let kind = fs::metadata(&source).map_err(Error::file("stat", &source))?;
        // A file is mounted on a file.
        if kind.is_dir() {
            fs::create_dir_all(target).map_err(Error::file("make directory", target))?;
        } else {
            fs::write(target, []).map_err(Error::file("write", target))?;
        }
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(&source), target, None::<&Path>, bind, None::<&Path>)
            .map_err(Error::mount("mount at", target))?;
        if shared {
            return Ok(());
        }
        let follow = MsFlags::MS_SLAVE | MsFlags::MS_REC;
        mount(None::<&Path>, target, None::<&Path>, follow, None::<&Path>)
            .map_err(Error::mount("stop the propagation of", target))
    }
}

impl AsFd for PathHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
