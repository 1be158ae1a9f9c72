//! Directories and files of cgroups, any of which may be removed while it is read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::error::{Error, Result};

/// Maximum number of levels of descendants of a group that are visited.
pub(crate) const MAX_DEPTH: usize = 32;

/// The children of a group; none if the directory does not exist.
pub(crate) fn children(dir: &Path) -> Result<Vec<PathBuf>> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let mut list = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                list.push(entry.path());
            }
        }
        Ok(list)
    };
    match read() {
        Ok(list) => Ok(list),
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        Err(source) => Err(Error::File {
            path: dir.to_owned(),
            source,
        }),
    }
}

/// The text of a file; `None` if it does not exist, or its cgroup was removed during the read.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        // Pressure files exist and fail with EOPNOTSUPP if the kernel was booted without pressure accounting.
        Err(error) if is_gone(&error) || is_unsupported(&error) => Ok(None),
        Err(source) => Err(Error::File {
            path: path.to_owned(),
            source,
        }),
    }
}

/// A file's text, parsed with `parse`; `None` also if the file does not exist.
pub(crate) fn read_parsed<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>> {
    Ok(read_if_there(path)?.and_then(|text| parse(&text)))
}

/// Returns whether an error means that a cgroup, or a file of it, does not exist: reading an open file of a
/// removed cgroup gives `ENODEV`.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::ENOENT | Errno::ENODEV | Errno::ENOTDIR)
    )
}

/// Returns whether a file exists and the kernel cannot read it as it is.
pub(crate) fn is_unsupported(error: &io::Error) -> bool {
    error.raw_os_error().map(Errno::from_raw) == Some(Errno::EOPNOTSUPP)
}
