//! The named steps of every sequence that changes something, as this backend reaches them.

use switchyard_core::{Error, Result};
pub use switchyard_steps::Step;

/// What a test wants to fail in the sequences of one backend; nothing in a build without the feature `faults`.
#[derive(Debug, Clone, Default)]
pub struct Faults(switchyard_steps::Faults);

impl Faults {
    /// Lets the sequence fail that reaches `step` next, once.
    #[cfg(feature = "faults")]
    pub fn fail(&self, step: Step) {
        self.0.fail(step);
    }

    /// Whether a failure still waits: its step has not been reached.
    #[cfg(feature = "faults")]
    #[must_use]
    pub fn waits(&self) -> bool {
        self.0.is_pending()
    }

    /// Says that a step's effect is there.
    pub(crate) fn reach(&self, step: Step) -> Result<()> {
        self.0.reach(step).map_err(|failure| Error::internal("a test's fault").with_source(failure))
    }
}
