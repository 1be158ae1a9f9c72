//! Checks of fields that many messages have. An error names the field in wire spelling.

use std::fmt::Display;
use std::path::{Component, Path, PathBuf};

use switchyard_core::{Error, Result};

/// The longest file name, in bytes.
const NAME_MAX: usize = 255;
/// The kernel refuses paths of this length or more, in bytes.
const PATH_MAX: usize = 4096;

/// A mandatory part of a message.
pub(super) fn required<T>(field: impl Display, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| Error::invalid(field, "it is missing"))
}

/// An enum value by its number on the wire.
pub(super) fn known<E: TryFrom<i32>>(field: impl Display, number: i32) -> Result<E> {
    E::try_from(number)
        .map_err(|_| Error::invalid(field, format!("{number} is not one of its values")))
}

/// Checks a text that is used as an argument, a variable or a part of a path.
pub(super) fn text(field: impl Display, text: &str) -> Result<()> {
    if text.contains('\0') {
        Err(Error::invalid(field, "it contains a NUL byte"))
    } else {
        Ok(())
    }
}

/// An absolute path.
pub(crate) fn absolute(field: impl Display, path: &str) -> Result<PathBuf> {
    if path.contains('\0') {
        Err(Error::invalid(field, "it contains a NUL byte"))
    } else if path.starts_with('/') {
        Ok(PathBuf::from(path))
    } else {
        Err(Error::invalid(
            field,
            format!("{path:?} is not an absolute path"),
        ))
    }
}

/// Checks that a path does not contain `..`.
pub(super) fn without_parents(field: impl Display, path: &Path) -> Result<()> {
    if path.components().any(|part| part == Component::ParentDir) {
        Err(Error::invalid(field, format!("{path:?} contains \"..\"")))
    } else {
        Ok(())
    }
}

/// Checks that Linux accepts the length of the path and of each name in it.
pub(super) fn makeable(field: impl Display, path: &Path) -> Result<()> {
    if path.iter().any(|name| name.len() > NAME_MAX) {
        return Err(Error::invalid(
            field,
            format!("a name in it is longer than {NAME_MAX} bytes"),
        ));
    }
    if path.as_os_str().len() >= PATH_MAX {
        return Err(Error::invalid(
            field,
            format!("it makes a path of {PATH_MAX} bytes or more"),
        ));
    }
    Ok(())
}

/// A user or group id. The largest `u32` means "none" to the kernel.
pub(super) fn numeric_id(field: impl Display, number: i64) -> Result<u32> {
    u32::try_from(number)
        .ok()
        .filter(|id| *id != u32::MAX)
        .ok_or_else(|| {
            Error::invalid(
                field,
                format!("{number} is not between 0 and {}", u32::MAX - 1),
            )
        })
}

/// Checks the name of an object, which is used in names, labels and the arguments of CNI plugins.
pub(super) fn name(field: impl Display, text: &str) -> Result<()> {
    if text.is_empty() {
        Err(Error::invalid(field, "it is empty"))
    } else {
        name_or_nothing(field, text)
    }
}

/// As [`name`], but may be empty.
pub(super) fn name_or_nothing(field: impl Display, text: &str) -> Result<()> {
    if text.len() > 253 {
        return Err(Error::invalid(field, "it is longer than 253 bytes"));
    }
    let bad = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '/' | ';' | '=');
    match text.chars().find(|c| bad(*c)) {
        None => Ok(()),
        Some(c) => Err(Error::invalid(field, format!("it contains {c:?}"))),
    }
}
