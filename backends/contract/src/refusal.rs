//! Checks of the facts that an operation is refused.

use switchyard_core::{ErrorKind, Result};

/// The kind of the error of an operation that must be refused.
///
/// # Panics
/// If it succeeded.
#[track_caller]
pub fn refused<T>(result: Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("it should have been refused"),
        Err(error) => error.kind(),
    }
}
