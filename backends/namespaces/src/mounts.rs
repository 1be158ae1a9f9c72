//! Reads the mount table, and unmounts whole trees.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::error::Error;

mod path_handle;

pub use path_handle::PathHandle;

/// How many mounts stacked on one mount point are unmounted, or how many passes over a tree are made, before
/// giving up.
const MAX_TRIES: usize = 64;

/// One line of `/proc/<pid>/mountinfo` (proc(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The id of this mount, unique while it exists.
    pub id: u32,
    /// The id of the parent mount.
    pub parent: u32,
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted, relative to the root of the process.
    pub mount_point: PathBuf,
    /// Options of this mount, comma-separated, such as `rw,nosuid`.
    pub options: String,
    /// Type of the file system, such as `ext4` or `nsfs`.
    pub fs_type: String,
    /// The device or other source, as the file system reports it.
    pub source: OsString,
}

// === Reading ===

/// Undoes the escapes of mountinfo: `\` and three octal digits stand for one byte. Anything else stays as it
/// is.
#[must_use]
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match octal(rest) {
            Some(byte) => {
                out.push(byte);
                rest = rest.get(4..).unwrap_or_default();
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

/// The byte that an escape at the start of `text` stands for.
fn octal(text: &[u8]) -> Option<u8> {
    let [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] = text else {
        return None;
    };
    Some(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'))
}

/// Reads a whole mountinfo file.
///
/// # Errors
/// [`Error::MountInfo`] with the first line that does not have the form of proc(5).
pub fn parse_mountinfo(text: &[u8]) -> Result<Vec<Mount>, Error> {
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            parse_line(line)
                .ok_or_else(|| Error::MountInfo { line: String::from_utf8_lossy(line).into_owned() })
        })
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let _device = fields.next()?;
    let root = path(fields.next()?);
    let mount_point = path(fields.next()?);
    let options = string(fields.next()?);
    // Optional fields, of any number, end with a single dash.
    fields.find(|field| *field == b"-")?;
    let fs_type = string(fields.next()?);
    let source = OsString::from_vec(unescape(fields.next()?));
    Some(Mount { id, parent, root, mount_point, options, fs_type, source })
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(field)))
}

fn string(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// The mounts in the mount namespace of the calling thread, in the order in which they were made.
///
/// # Errors
/// [`Error::File`], [`Error::MountInfo`].
pub fn mount_table() -> Result<Vec<Mount>, Error> {
    // thread-self, not self: a thread may have a mount namespace of its own.
    let file = "/proc/thread-self/mountinfo";
    parse_mountinfo(&fs::read(file).map_err(Error::file("read", file))?)
}

/// The mount points at or below `dir`, outermost and oldest first; stacked mounts are listed once each.
///
/// Symlinks above the last component of `dir` are resolved, the last one is not. A missing directory has no
/// mounts.
///
/// # Errors
/// [`Error::File`], [`Error::MountInfo`].
pub fn mount_points_under(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let Some(dir) = real_place(dir)? else {
        return Ok(Vec::new());
    };
    Ok(mount_table()?.into_iter().map(|m| m.mount_point).filter(|point| point.starts_with(&dir)).collect())
}

// === Removing ===

/// Unmounts everything that is mounted at or below `dir`, lazily, so that users of the mounts do not prevent
/// it.
///
/// Idempotent: a missing directory, or one without mounts, is fine. A symlink at `dir` is not followed.
/// Unmounting here does not unmount anything at the source of a shared bind mount. Files and directories
/// stay.
///
/// # Errors
/// [`Error::Mount`] for the first mount that cannot be unmounted, after the others were tried;
/// [`Error::StillMounted`] if another program keeps mounting; [`Error::File`], [`Error::MountInfo`].
pub fn unmount_tree(dir: &Path) -> Result<(), Error> {
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
    Err(Error::StillMounted { path: dir.to_owned(), tries: MAX_TRIES })
}

/// Unmounts every mount stacked on `path` itself. Idempotent; symlinks are not followed.
pub(crate) fn detach(path: &Path) -> Result<(), Error> {
    for _ in 0..MAX_TRIES {
        if !detach_once(path)? {
            return Ok(());
        }
    }
    Err(Error::StillMounted { path: path.to_owned(), tries: MAX_TRIES })
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
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        Err(e) => return Err(Error::file("open", point)(e)),
    };
    // Through the descriptor, because mount(2) itself would follow a symlink put there meanwhile.
    let held = PathBuf::from(format!("/proc/thread-self/fd/{}", file.as_raw_fd()));
    match mount(None::<&Path>, &held, None::<&Path>, MsFlags::MS_SLAVE, None::<&Path>) {
        // EINVAL: it is not mounted any more, or it is hidden below another mount, and a later pass finds it.
        Ok(()) | Err(Errno::EINVAL) => Ok(()),
        Err(errno) => Err(Error::mount("stop the propagation of", point)(errno)),
    }
}

/// `dir` as the mount table has it: symlinks in parents resolved, the last component as it is. `None` if a
/// parent is missing.
fn real_place(dir: &Path) -> Result<Option<PathBuf>, Error> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return dir.canonicalize().map(Some).map_err(Error::file("resolve", dir));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match parent.canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(Error::file("resolve", parent)(e)),
    }
}

#[cfg(test)]
mod tests;
