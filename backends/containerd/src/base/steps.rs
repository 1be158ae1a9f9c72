//! The named steps of this backend's sequences, at which tests kill the daemon or inject failures.

use switchyard_core::{Error, Result};
pub use switchyard_steps::Step;

/// The failures that a test injects into the sequences of one backend; empty in a build without the feature
/// `faults`.
#[derive(Debug, Clone, Default)]
pub struct Faults(switchyard_steps::Faults);

impl Faults {
    /// Makes the next sequence that reaches `step` fail, once.
    #[cfg(feature = "faults")]
    pub fn fail(&self, step: Step) {
        self.0.fail(step);
    }

    /// Whether an injected failure is pending: its step has not been reached.
    #[cfg(feature = "faults")]
    #[must_use]
    pub fn waits(&self) -> bool {
        self.0.is_pending()
    }

    /// Marks a step as reached, right after its effect; fails if a test injected a failure.
    pub(crate) fn reach(&self, step: Step) -> Result<()> {
        self.0.reach(step).map_err(|failure| Error::internal("a test's fault").with_source(failure))
    }
}
