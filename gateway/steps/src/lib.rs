//! The crash points of Switchyard: a name for every effect after which the daemon can be killed.
//!
//! A step is *reached* right after its effect, which is the worst moment to die or to fail. In a build with
//! the feature `faults`, a test can have the process killed there, without unwinding ([`reach`]), or make one
//! sequence fail ([`Faults`]). In any other build, reaching a step does nothing.
//!
//! The environment variable `SWITCHYARD_KILL_FILE` is the path of a file that names the step to die at,
//! optionally followed by a colon and a count: `PluginAdded:2` dies when the step is reached the second time.
//! The file is read again at each step, so that a test can change it while the process runs. Its first line
//! is removed just before the kill, so that the next process lives, or dies where the next line says.

#[macro_use]
mod define;
mod step;

pub use step::{Operation, Step};

#[cfg(feature = "faults")]
mod faults;
#[cfg(feature = "faults")]
pub use faults::{Faults, KILL_FILE, reach};

/// A failure that a test has requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure(pub Step);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a test made the step {:?} fail", self.0)
    }
}

impl std::error::Error for Failure {}

/// Reports that a step is reached.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub const fn reach(_step: Step) {}

/// The pending failures: none in this build.
#[cfg(not(feature = "faults"))]
#[derive(Debug, Clone, Default)]
pub struct Faults;

#[cfg(not(feature = "faults"))]
impl Faults {
    /// Reports that a step is reached.
    ///
    /// # Errors
    /// None in this build.
    #[inline(always)]
    pub const fn reach(&self, _step: Step) -> Result<(), Failure> {
        Ok(())
    }
}
