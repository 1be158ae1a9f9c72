//! From the wire to the task model: every field is named and decided on.
//!
//! A field that is malformed is `InvalidArgument`, one that this gateway cannot serve `Unimplemented`, both with the path of the
//! field as the wire spells it (`config.linux.resources.cpu_period`). What kubelets send as a matter of course is not an error.
//! Fields for Windows are ignored, as every runtime on Linux does.

use std::fmt::Display;
use std::path::{Component, Path, PathBuf};

use switchyard_core::{Error, Result};

mod container;
mod image;
mod mount;
mod quantity;
mod reserved;
mod resources;
mod sandbox;
mod security;
mod signal;

pub(crate) use container::{Parent, container};
pub(crate) use image::pull_request;
pub(crate) use reserved::reserved;
pub(crate) use resources::{check as check_limits, update};
pub(crate) use sandbox::{ranges, sandbox};

/// The longest name of a file, in bytes.
const NAME_MAX: usize = 255;
/// The length from which on the kernel takes no path, in bytes.
const PATH_MAX: usize = 4096;

/// A part without which a message means nothing.
fn required<T>(field: impl Display, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| Error::invalid(field, "it is missing"))
}

/// An enum by its number on the wire.
fn known<E: TryFrom<i32>>(field: impl Display, number: i32) -> Result<E> {
    E::try_from(number).map_err(|_| Error::invalid(field, format!("{number} is not one of its values")))
}

/// A text that can be an argument, a variable or a part of a path.
fn text(field: impl Display, text: &str) -> Result<()> {
    if text.contains('\0') { Err(Error::invalid(field, "it contains a NUL byte")) } else { Ok(()) }
}

/// An absolute path.
pub(crate) fn absolute(field: impl Display, path: &str) -> Result<PathBuf> {
    if path.contains('\0') {
        Err(Error::invalid(field, "it contains a NUL byte"))
    } else if path.starts_with('/') {
        Ok(PathBuf::from(path))
    } else {
        Err(Error::invalid(field, format!("{path:?} is not an absolute path")))
    }
}

/// A path that goes nowhere up.
fn without_parents(field: impl Display, path: &Path) -> Result<()> {
    if path.components().any(|part| part == Component::ParentDir) {
        Err(Error::invalid(field, format!("{path:?} contains \"..\"")))
    } else {
        Ok(())
    }
}

/// A path that can be made: no name in it is longer than Linux takes, nor is the whole.
fn makeable(field: impl Display, path: &Path) -> Result<()> {
    if path.iter().any(|name| name.len() > NAME_MAX) {
        return Err(Error::invalid(field, format!("a name in it is longer than {NAME_MAX} bytes")));
    }
    if path.as_os_str().len() >= PATH_MAX {
        return Err(Error::invalid(field, format!("it makes a path of {PATH_MAX} bytes or more")));
    }
    Ok(())
}

/// A number of a user or a group. The largest `u32` means "none" to the kernel.
fn numeric_id(field: impl Display, number: i64) -> Result<u32> {
    u32::try_from(number)
        .ok()
        .filter(|id| *id != u32::MAX)
        .ok_or_else(|| Error::invalid(field, format!("{number} is not between 0 and {}", u32::MAX - 1)))
}

/// The name of an object, as it goes into names, labels and the arguments of network plugins.
fn name(field: impl Display, text: &str) -> Result<()> {
    if text.is_empty() { Err(Error::invalid(field, "it is empty")) } else { name_or_nothing(field, text) }
}

/// The same, where it may be missing.
fn name_or_nothing(field: impl Display, text: &str) -> Result<()> {
    if text.len() > 253 {
        return Err(Error::invalid(field, "it is longer than 253 bytes"));
    }
    let bad = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '/' | ';' | '=');
    match text.chars().find(|c| bad(*c)) {
        None => Ok(()),
        Some(c) => Err(Error::invalid(field, format!("it contains {c:?}"))),
    }
}

#[cfg(test)]
mod tests;
