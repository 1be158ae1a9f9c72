//! Cancellation of a reader that nobody waits for any more. A thread that reads cannot be ended from outside.

use std::io;
use std::sync::{Arc, Weak};

/// Whoever waits for a reader that works on another thread. When it is dropped, the reader's calls fail at their next
/// block of text.
#[derive(Debug, Default)]
pub struct ReadWaiter(Arc<()>);

/// The reader's view of its [`ReadWaiter`]: it sees whether that was dropped.
#[derive(Debug, Clone)]
pub struct ReadInterest(Weak<()>);

// === impl ReadWaiter ===

impl ReadWaiter {
    /// For the reader that it waits for.
    #[must_use]
    pub fn interest(&self) -> ReadInterest {
        ReadInterest(Arc::downgrade(&self.0))
    }
}

// === impl ReadInterest ===

impl ReadInterest {
    /// Fails if nobody waits any more.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.0.strong_count() > 0 {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "nobody waits for it any more",
            ))
        }
    }
}
