//! Checks for fields of several messages. An error names the field or the key.

use std::path::{Component, Path, PathBuf};

use switchyard_core::{Error, Result};

/// The maximum number of mounts, devices and ports of a task, for each kind. They are compared pairwise, and
/// each costs kernel resources.
pub(super) const ITEMS_MAX: usize = 1024;

/// Refuses another item if there are already `count` of its kind.
pub(super) fn check_count(field: &str, of: &str, count: usize) -> Result<()> {
    if count < ITEMS_MAX {
        return Ok(());
    }
    Err(Error::invalid(field, format!("the task has {count} {of} without it, and may have {ITEMS_MAX}")))
}

/// Checks a text that becomes a name, an argument or a part of a path.
pub(super) fn text(field: impl std::fmt::Display, text: &str) -> Result<()> {
    if text.contains('\0') { Err(Error::invalid(field, "it contains a NUL byte")) } else { Ok(()) }
}

/// Parses an absolute path and normalises `.` and `..` lexically.
pub(super) fn absolute(field: impl std::fmt::Display, path: &str) -> Result<PathBuf> {
    if path.contains('\0') {
        Err(Error::invalid(field, "it contains a NUL byte"))
    } else if path.starts_with('/') {
        Ok(clean(Path::new(path)))
    } else {
        Err(Error::invalid(field, format!("{path:?} is not an absolute path")))
    }
}

/// The same absolute path without `.` and `..`, normalised lexically.
pub(super) fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}
