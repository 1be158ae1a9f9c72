//! The crash points of Switchyard: a name for every effect after which the daemon can be killed.
//!
//! A crash point is *reached* right after its effect, which is the worst moment to die or to fail. In a build with
//! the feature `faults`, a test can have the process killed there, without unwinding ([`reach`]), or make one
//! sequence fail ([`Faults`]). In any other build, reaching a crash point does nothing.
//!
//! The environment variable `SWITCHYARD_KILL_FILE` is the path of a file that names the crash point to die at,
//! optionally followed by a colon and a count: `PluginAdded:2` dies when the crash point is reached the second time.
//! The file is read again at each crash point, so that a test can change it while the process runs. Its first line
//! is removed just before the kill, so that the next process lives, or dies where the next line says.

#[macro_use]
mod define;
mod crash_point;
mod failure;

pub use crash_point::{CrashPoint, Operation};
pub use failure::Failure;

#[cfg(feature = "faults")]
mod faults;
#[cfg(feature = "faults")]
pub use faults::{Faults, KILL_FILE, reach};

/// Reports that a crash point is reached.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub const fn reach(_point: CrashPoint) {}

/// The pending failures: none in this build.
#[cfg(not(feature = "faults"))]
#[derive(Debug, Clone, Default)]
pub struct Faults;

#[cfg(not(feature = "faults"))]
impl Faults {
    /// Reports that a crash point is reached.
    ///
    /// # Errors
    /// None in this build.
    #[inline(always)]
    pub const fn reach(&self, _point: CrashPoint) -> Result<(), Failure> {
        Ok(())
    }
}
