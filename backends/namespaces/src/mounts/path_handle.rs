//! Places of the host that others can change the way to: held from the look at them, and shown elsewhere as they were then.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;

use crate::error::Error;

/// A file or directory that is held: whatever is put in its place, this is it.
#[derive(Debug)]
pub struct PathHandle(OwnedFd);

// === impl Held ===

impl PathHandle {
    /// What is at `path` below `root` now, without following a symbolic link below it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a path that leads up, or is absolute; [`Error::File`] with `ELOOP` if there is a link on the way, and with
    /// `ENOENT` if nothing is there. It needs Linux 5.6.
    pub fn open_beneath(root: &Path, path: &Path) -> Result<Self, Error> {
        let plain = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !plain {
            let value = path.display().to_string();
            return Err(Error::Invalid { what: "path", value, why: "leads out of where it begins" });
        }
        let whole = root.join(path);
        let failed = |errno: Errno| Error::file("open", whole.clone())(errno.into());
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let root = open(root, flags | OFlag::O_DIRECTORY, Mode::empty()).map_err(failed)?;
        let below = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        openat2(root, below, OpenHow::new().flags(flags).resolve(resolve)).map(Self).map_err(failed)
    }

    /// Mounts it at `target`, which is made, with what is mounted below it. `shared` says whether what is mounted at `target` later is
    /// mounted in the source as well; else only the other way. [`unmount_tree`](super::unmount_tree) takes it away, also half of it.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Mount`].
    pub fn bind_mount_at(&self, target: &Path, shared: bool) -> Result<(), Error> {
        let source = PathBuf::from(format!("/proc/thread-self/fd/{}", self.0.as_raw_fd()));
        let kind = fs::metadata(&source).map_err(Error::file("look at", &source))?;
        // A file is shown at a file.
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
