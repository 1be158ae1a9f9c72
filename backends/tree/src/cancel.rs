//! The flag that cancels a walk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::error::Error;

/// Cancels a walk that runs on another thread. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    is_cancelled: Arc<AtomicBool>,
    /// Number of entries that may still be visited; `None` for any number.
    left: Option<Arc<AtomicU32>>,
}

// === impl Cancel ===

impl Cancel {
    /// Makes the walk end with [`Error::Cancelled`] before its next entry. What it has done so far stays.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// The same flag, for a walk that also ends with [`Error::Cancelled`] after about this many entries.
    #[must_use]
    pub fn after(&self, entries: u32) -> Self {
        Self {
            is_cancelled: Arc::clone(&self.is_cancelled),
            left: Some(Arc::new(AtomicU32::new(entries))),
        }
    }

    /// Counts an entry.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the flag is set, or no more entries may be visited.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let is_used_up = self.left.as_ref().is_some_and(|left| {
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            })
            .is_err()
        });
        if is_used_up || self.is_cancelled.load(Ordering::Relaxed) {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }
}
