//! The flag that stops a walk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

/// Stops a walk that runs on another thread. Clones are the same flag.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Has the walk end with [`Error::Cancelled`] before its next entry. What it did so far stays done.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// [`Error::Cancelled`] if it is.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }
}
