//! The crash points of Switchyard: a name for every effect that a kill could be the last word after.
//!
//! A step is *reached* right after its effect, which is the worst moment to die or to fail. In a build with the feature `faults`
//! a test can have the process killed there, with no unwinding ([`reach`]), or one sequence fail ([`Faults`]). In any other build
//! reaching a step does nothing.
//!
//! The file that the variable `SWITCHYARD_KILL_FILE` names says where to die: the name of a step, and after a colon at which time
//! it is reached, if not at the first (`PluginAdded:2`). It is read anew at each step, so that a process that runs can be told. The
//! line is taken away just before the kill, so that the next process lives, or dies where the next line says.

mod step;

pub use step::{Area, Step};

#[cfg(feature = "faults")]
mod faults;
#[cfg(feature = "faults")]
pub use faults::{Faults, KILL_FILE, reach};

/// A failure that a test has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure(pub Step);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a test lets the step {:?} fail", self.0)
    }
}

impl std::error::Error for Failure {}

/// Says that a step's effect is there.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub const fn reach(_step: Step) {}

/// The failures that wait for their step: none in this build.
#[cfg(not(feature = "faults"))]
#[derive(Debug, Clone, Default)]
pub struct Faults;

#[cfg(not(feature = "faults"))]
impl Faults {
    /// Says that a step's effect is there.
    ///
    /// # Errors
    /// None in this build.
    #[inline(always)]
    pub const fn reach(&self, _step: Step) -> Result<(), Failure> {
        Ok(())
    }
}
