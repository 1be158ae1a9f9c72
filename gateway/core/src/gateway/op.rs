//! Operations on one object: by which key their callers join, and which error means that there is nothing to do.

use std::fmt;

use crate::error::{ErrorKind, Result};

/// An operation on one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Op<I> {
    Start(I),
    Stop(I),
    Remove(I),
}

impl<I: fmt::Display> fmt::Display for Op<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(id) => write!(f, "start of {id}"),
            Self::Stop(id) => write!(f, "stop of {id}"),
            Self::Remove(id) => write!(f, "removal of {id}"),
        }
    }
}

/// Maps `NotFound` to success, for idempotent stops and removals.
pub(super) fn ignore_not_found(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
