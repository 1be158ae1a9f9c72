//! Limits on block devices, and I/O weights.

use std::path::PathBuf;

/// A limit on a task's use of a block device per second. Applies until replaced by another one for the same
/// device and kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throttle {
    /// The device on the host: a whole disk.
    pub device: PathBuf,
    /// The limited quantity.
    pub what: Throttled,
    /// Bytes or operations per second; not 0.
    pub rate: u64,
}

/// A task's I/O weight relative to other tasks, for the life of the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoWeight {
    /// The device on the host, a whole disk; `None` for all devices that are not named.
    pub device: Option<PathBuf>,
    /// The weight: 10 to 1000.
    pub weight: u16,
}

/// The quantity that a [`Throttle`] limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Throttled {
    /// Bytes read.
    ReadBytes,
    /// Bytes written.
    WriteBytes,
    /// Read operations.
    Reads,
    /// Write operations.
    Writes,
}

impl Throttle {
    /// `limits` with `changes` applied: each replaces an older limit of the same device and kind.
    #[must_use]
    pub fn merged(limits: &[Self], changes: &[Self]) -> Vec<Self> {
        let mut merged = limits.to_vec();
        for change in changes {
            merged.retain(|limit| (&limit.device, limit.what) != (&change.device, change.what));
            merged.push(change.clone());
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_update_replaces_only_what_it_names() {
        let limit = |device: &str, what, rate| Throttle {
            device: device.into(),
            what,
            rate,
        };
        let before = [
            limit("/dev/a", Throttled::Reads, 1),
            limit("/dev/a", Throttled::Writes, 2),
        ];
        let changes = [
            limit("/dev/a", Throttled::Reads, 3),
            limit("/dev/b", Throttled::Reads, 4),
        ];
        let expected = [before[1].clone(), changes[0].clone(), changes[1].clone()];
        assert_eq!(Throttle::merged(&before, &changes), expected);
    }
}
