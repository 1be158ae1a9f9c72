//! Resource limits of processes, by the names that Docker gives them.

use std::fmt::Display;

use switchyard_core::spec::Rlimit;
use switchyard_core::{Error, Result};

/// The limits by name.
const NAMES: [&str; 15] = [
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
];

/// Checks the name of a limit.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub fn check_name(field: impl Display, name: &str) -> Result<()> {
    if NAMES.contains(&name) {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!("there is no such limit; there are {}", NAMES.join(", ")),
    ))
}

/// The limit of this name.
///
/// # Errors
/// `InvalidArgument`, naming the field, if there is no such limit, or the soft limit is over the hard one.
pub fn rlimit(field: impl Display, name: &str, soft: u64, hard: u64) -> Result<Rlimit> {
    check_name(&field, name)?;
    if soft > hard {
        let shown = |limit: u64| {
            if limit == u64::MAX {
                "-1".to_owned()
            } else {
                limit.to_string()
            }
        };
        let text = format!("{}:{}", shown(soft), shown(hard));
        return Err(Error::invalid(
            field,
            format!("the soft limit of {text:?} is over the hard one"),
        ));
    }
    Ok(Rlimit {
        name: format!("RLIMIT_{}", name.to_ascii_uppercase()),
        soft,
        hard,
    })
}
