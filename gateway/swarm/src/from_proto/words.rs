//! Lists of words: arguments, variables and groups.

use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::text;

/// The most arguments, variables or groups that a task may have: the kernel takes fewer bytes of them.
const WORDS_MAX: usize = 1 << 16;

/// A list of words, each checked.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub(super) fn words(field: &str, list: &[String]) -> Result<Vec<String>> {
    check_length(field, list.len())?;
    for (index, word) in list.iter().enumerate() {
        text(format_args!("{field}[{index}]"), word)?;
    }
    Ok(list.to_vec())
}

/// Checks how many words a list has.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub(super) fn check_length(field: &str, length: usize) -> Result<()> {
    if length <= WORDS_MAX {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!("it has {length} entries, and may have {WORDS_MAX}"),
    ))
}
