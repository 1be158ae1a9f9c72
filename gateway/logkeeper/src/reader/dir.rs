//! Opens logs beneath their directory. A container can write to a directory of the host that it has mounted, so
//! what is in a log directory may be made to mislead its reader.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

use super::error::ReadError;

/// The most files of a directory that are looked at.
const FILES_MAX: usize = 100_000;

/// Number of attempts of a look-up during which a directory on its way was renamed.
const ATTEMPTS: u32 = 16;

/// No component may be a symbolic link, and none may lead out of the root.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// An open directory with logs.
#[derive(Debug)]
pub(super) struct LogDir {
    dir: OwnedFd,
    path: PathBuf,
}

/// The identity of a file, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

/// An open log file.
#[derive(Debug)]
pub(super) struct OpenLog {
    pub(super) file: File,
    pub(super) id: FileId,
    /// Its size when it was opened.
    pub(super) len: u64,
}

// === impl LogDir ===

impl LogDir {
    /// Opens the directory `below` beneath `root`. `root` is chosen by an orchestrator: links on the way to it are
    /// followed, but it is no link itself. Needs Linux 5.6.
    ///
    /// # Errors
    /// [`ReadError`], naming the directory.
    pub(super) fn open(root: &Path, below: &Path) -> Result<Self, ReadError> {
        let path = root.join(below);
        let failed = |errno| ReadError::of_open(path.clone(), errno);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, root, flags, Mode::empty()).map_err(failed)?;
        let below = if below.as_os_str().is_empty() {
            Path::new(".")
        } else {
            below
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = beneath(&root, below.as_os_str(), flags).map_err(failed)?;
        Ok(Self { dir, path })
    }

    /// The path of a file in it, for messages.
    pub(super) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a regular file in it; `None` if there is none of this name.
    ///
    /// # Errors
    /// [`ReadError`], also for what is no regular file: that is not even opened, since opening a device can have
    /// effects, and opening a FIFO can wait.
    pub(super) fn file(&self, name: &OsStr) -> Result<Option<OpenLog>, ReadError> {
        let failed = |errno| ReadError::of_open(self.path_of(name), errno);
        let Some(handle) = self.handle(name)? else {
            return Ok(None);
        };
        // The handle stays at the checked file, whatever is at the name by now.
        let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(CWD, link, flags, Mode::empty()).map_err(failed)?;
        let found = fstat(&file).map_err(failed)?;
        Ok(Some(OpenLog {
            file: file.into(),
            id: FileId {
                device: found.st_dev,
                inode: found.st_ino,
            },
            len: u64::try_from(found.st_size).unwrap_or(0),
        }))
    }

    /// The file that has this name now; `None` if none has.
    ///
    /// # Errors
    /// As [`LogDir::file`].
    pub(super) fn id_of(&self, name: &OsStr) -> Result<Option<FileId>, ReadError> {
        let Some(handle) = self.handle(name)? else {
            return Ok(None);
        };
        let found = fstat(handle).map_err(|errno| ReadError::of_open(self.path_of(name), errno))?;
        Ok(Some(FileId {
            device: found.st_dev,
            inode: found.st_ino,
        }))
    }

    /// A handle to a regular file, by which it cannot be read yet.
    fn handle(&self, name: &OsStr) -> Result<Option<OwnedFd>, ReadError> {
        let failed = |errno| ReadError::of_open(self.path_of(name), errno);
        let handle = match beneath(&self.dir, name, OFlags::PATH | OFlags::CLOEXEC) {
            Ok(handle) => handle,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let found = fstat(&handle).map_err(failed)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => Ok(Some(handle)),
            FileType::Directory
            | FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Err(ReadError::NotRegular(self.path_of(name))),
        }
    }

    /// The names of at most [`FILES_MAX`] files in it that `wanted` accepts, in any order.
    ///
    /// # Errors
    /// [`ReadError::File`].
    pub(super) fn names(&self, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<OsString>, ReadError> {
        let failed = |errno| ReadError::of_open(self.path.clone(), errno);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir).map_err(failed)?.take(FILES_MAX) {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if wanted(name) {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        Ok(names)
    }
}

/// Opens what is at a path beneath a directory, without following any link.
fn beneath(root: &OwnedFd, path: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    for _ in 0..ATTEMPTS {
        match openat2(root, path.as_bytes(), flags, Mode::empty(), BENEATH) {
            // A directory on the way was renamed: the kernel does not know whether it is still beneath.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}
