//! Checks for texts and paths of several options.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use switchyard_core::spec::rooted;
use switchyard_core::{Error, Result};

/// The maximum number of mounts, devices and ports of a task, for each kind. They are compared pairwise, and
/// each costs kernel resources.
pub const ITEMS_MAX: usize = 1024;

/// Refuses another item if there are already `count` of its kind.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub fn check_count(field: impl Display, of: &str, count: usize) -> Result<()> {
    if count < ITEMS_MAX {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!("the task has {count} {of} without it, and may have {ITEMS_MAX}"),
    ))
}

/// Checks a text that becomes a name, an argument or a part of a path.
///
/// # Errors
/// `InvalidArgument`, naming the field, if it contains a NUL byte.
pub fn text(field: impl Display, text: &str) -> Result<()> {
    if text.contains('\0') {
        Err(Error::invalid(field, "it contains a NUL byte"))
    } else {
        Ok(())
    }
}

/// Parses an absolute path and normalises `.` and `..` lexically.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub fn absolute(field: impl Display, path: &str) -> Result<PathBuf> {
    if path.contains('\0') {
        Err(Error::invalid(field, "it contains a NUL byte"))
    } else if path.starts_with('/') {
        Ok(clean(Path::new(path)))
    } else {
        Err(Error::invalid(
            field,
            format!("{path:?} is not an absolute path"),
        ))
    }
}

/// The same absolute path without `.` and `..`, normalised lexically.
#[must_use]
pub fn clean(path: &Path) -> PathBuf {
    rooted(path)
}

/// Checks an environment variable. Errors never contain its value.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub fn check_variable(field: impl Display, name: &str, value: &str) -> Result<()> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(Error::invalid(
            field,
            format!("{name:?} is not a variable's name"),
        ));
    }
    if value.contains('\0') {
        return Err(Error::invalid(
            format_args!("{field}[{name:?}]"),
            "it contains a NUL byte",
        ));
    }
    Ok(())
}
