//! The named crash points of this backend's sequences, at which tests kill the daemon or inject failures.

use switchyard_core::{Error, Result};
pub use switchyard_crash_points::CrashPoint;

/// The failures that a test injects into the sequences of one backend; empty in a build without the feature
/// `faults`.
#[derive(Debug, Clone, Default)]
pub struct Faults(switchyard_crash_points::Faults);

impl Faults {
    /// Makes the next sequence that reaches `point` fail, once.
    #[cfg(feature = "faults")]
    pub fn fail(&self, point: CrashPoint) {
        self.0.fail(point);
    }

    /// Returns whether an injected failure is pending: its crash point has not been reached.
    #[cfg(feature = "faults")]
    #[must_use]
    pub fn waits(&self) -> bool {
        self.0.is_pending()
    }

    /// Marks a crash point as reached, right after its effect; fails if a test injected a failure.
    pub(crate) fn reach(&self, point: CrashPoint) -> Result<()> {
        self.0
            .reach(point)
            .map_err(|failure| Error::internal("a test's fault").with_source(failure))
    }
}
