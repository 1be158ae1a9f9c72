//! Finds, reads and removes the cgroups of Switchyard's tasks, on cgroup v1 (also the hybrid layout) and v2.
//!
//! A cgroup is named by [`Group`]: where it is below the root, which is the same in each hierarchy. All reads are of
//! small files in the kernel's memory and take microseconds; removal may take a bounded while. Everything here blocks.
//!
//! - [`Hierarchy`] says where the hierarchies are mounted.
//! - [`Reader`] reads usage and processes, changes their scores, limits block devices, has them stand still, removes, and puts back what
//!   was somebody else's.
//! - [`Pass`] reads what is dearer than usage, of many groups at once.
//! - [`Moves`] has the kernel ready for a process that is about to be put into a cgroup.
//! - [`OomWatch`] keeps an eye on a cgroup that may be gone by the time its end is told.
//! - [`net::parse`] reads the traffic of a network namespace, [`process`] what a process has open.
//!
//! A cgroup that is gone is `None`, a value that the kernel has no source for is `None`, and neither is an error.

mod detail;
mod error;
mod freezer;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod group;
mod hierarchy;
mod leaf;
mod moves;
pub mod net;
mod oom;
mod parent_group;
pub mod parse;
pub mod process;
mod reader;
mod remove;
mod score;
mod throttle;
mod usage;

pub use detail::{Pass, device_name};
pub use error::{Error, Result};
pub use group::Group;
pub use hierarchy::{CgroupMode, Hierarchy, Mount};
pub use moves::{ExpectedMove, Moves};
pub use oom::{Kills, OomWatch};
pub use reader::Reader;
pub use throttle::{Device, DeviceLimits};
