//! Finds, reads and removes the cgroups of Switchyard's tasks, on cgroup v1 (also the hybrid layout) and v2.
//!
//! A [`Group`] identifies a cgroup by its path below the root, which is the same in each hierarchy. Reads are
//! of small kernel files and take microseconds; removal may take up to a second. All functions block.
//!
//! - [`Hierarchy`] knows where the hierarchies are mounted.
//! - [`Reader`] reads usage and processes, changes OOM scores, limits block devices, freezes and thaws, kills,
//!   removes cgroups, and recreates cgroups of others that a runtime removed.
//! - [`Pass`] reads what is more expensive than usage, for many groups at once.
//! - [`Moves`] keeps the kernel ready for moving a process into a cgroup.
//! - [`OomWatch`] counts the OOM kills in a cgroup that may be removed before its end is reported.
//! - [`net::parse`] reads the traffic of a network namespace, [`process`] the open files of a process.
//!
//! A removed cgroup gives `None`, and so does a value that the kernel does not provide; neither is an error.

mod detail;
mod error;
mod files;
mod freezer;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod group;
mod hierarchy;
mod kill;
mod kill_count;
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
pub use reader::{EmptyRemoval, Reader};
pub use remove::busy_pauses;
pub use throttle::{Device, DeviceLimits};
