//! Checks of single values.

use std::path::{Component, Path};

/// Returns whether a path is absolute, without `..` and NUL.
pub(super) fn is_absolute(path: &Path) -> bool {
    let up = path.components().any(|part| part == Component::ParentDir);
    path.is_absolute() && !up && !path.as_os_str().as_encoded_bytes().contains(&0)
}

/// Returns whether a text consists of `r`, `w` and `m`.
pub(super) fn is_permissions(text: &str) -> bool {
    (1..=3).contains(&text.len()) && text.bytes().all(|byte| b"rwm".contains(&byte))
}

/// Returns whether a text is a valid name of an environment variable.
pub(super) fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Returns whether a text is a hexadecimal number of `digits` digits.
pub(super) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
