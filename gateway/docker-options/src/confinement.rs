//! The paths that Docker hides from containers or protects in them.

use std::path::PathBuf;

/// The type that SELinux does not confine, which Docker gives where labels are disabled.
pub const UNCONFINED_TYPE: &str = "spc_t";

/// The paths that Docker masks.
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// The paths that Docker makes read-only.
const READONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// The paths that Docker masks in a container that is not privileged.
#[must_use]
pub fn masked_paths() -> Vec<PathBuf> {
    MASKED.iter().map(PathBuf::from).collect()
}

/// The paths that Docker makes read-only in a container that is not privileged.
#[must_use]
pub fn readonly_paths() -> Vec<PathBuf> {
    READONLY.iter().map(PathBuf::from).collect()
}
