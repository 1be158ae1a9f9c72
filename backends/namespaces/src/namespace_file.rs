//! Recognition and comparison of namespace files.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::statfs::{NSFS_MAGIC, statfs};

use crate::error::Error;

/// Returns whether `path` is a namespace file: a bind mount of one, or a `/proc/<pid>/ns/…` link. `false` if
/// it does not exist.
///
/// # Errors
/// [`Error::File`] if the file system cannot be queried.
pub fn is_namespace_file(path: &Path) -> Result<bool, Error> {
    match statfs(path) {
        Ok(fs) => Ok(fs.filesystem_type() == NSFS_MAGIC),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(false),
        Err(errno) => Err(Error::file("stat", path)(io::Error::from(errno))),
    }
}
