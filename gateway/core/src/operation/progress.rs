//! Reads the progress of an operation that moves bytes.

use std::fmt;

use crate::image::PullProgress;

/// Reads the progress of a pull in flight.
pub(super) struct ProgressReader(Box<dyn Fn() -> Option<PullProgress> + Send + Sync>);

impl ProgressReader {
    pub(super) fn new(read: impl Fn() -> Option<PullProgress> + Send + Sync + 'static) -> Self {
        Self(Box::new(read))
    }

    /// The progress; `None` while its size is not known.
    pub(super) fn read(&self) -> Option<PullProgress> {
        (self.0)()
    }
}

impl fmt::Debug for ProgressReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The function may hold credentials.
        f.debug_struct("ProgressReader").finish_non_exhaustive()
    }
}
