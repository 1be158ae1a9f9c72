//! The directories in which the kernel shows devices: `/dev` and `/sys`, or a test's replacements.

use std::fmt;
use std::path::PathBuf;

/// The directories in which the kernel shows devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// Device nodes.
    pub dev: PathBuf,
    /// The kernel's description of the devices (sysfs).
    pub sys: PathBuf,
}

/// The number of a device node, which identifies the device in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Number {
    /// True if it is a block device; otherwise a character device.
    pub(crate) block: bool,
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

// === impl Roots ===

impl Default for Roots {
    fn default() -> Self {
        Self {
            dev: "/dev".into(),
            sys: "/sys".into(),
        }
    }
}

// === impl Number ===

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            block,
            major,
            minor,
        } = self;
        write!(
            f,
            "{} {major}:{minor}",
            if *block {
                "block device"
            } else {
                "character device"
            }
        )
    }
}
