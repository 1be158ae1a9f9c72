//! Starts that nobody wants any more while a backend carries them out.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::id::TaskId;

/// Flag of a start in progress that it was withdrawn: everybody who asked for it has gone away.
#[derive(Debug, Default)]
pub struct Withdrawal(AtomicBool);

impl Withdrawal {
    /// The start is not wanted any more.
    pub fn withdraw(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Called at the points where the start of task `id` can still be given up, the last one right before its
    /// program is executed.
    ///
    /// # Errors
    /// `Cancelled` if it was withdrawn.
    pub fn check(&self, id: TaskId) -> Result<()> {
        if self.0.load(Ordering::Acquire) {
            tracing::debug!(task = %id, "a withdrawn start is given up");
            Err(Self::error())
        } else {
            Ok(())
        }
    }

    /// The error of an operation that was given up because nobody waits for it. Its context names the operation.
    pub(crate) fn error() -> Error {
        Error::cancelled("everybody who asked for it has gone away, so it was given up")
    }
}
