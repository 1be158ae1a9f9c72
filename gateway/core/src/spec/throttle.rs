//! Limits on the use of block devices, and shares in it.

use std::path::PathBuf;

/// The most that a task may do with a block device in a second. It stands until another of the same device and use takes its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throttle {
    /// The device on the host: a whole disk.
    pub device: PathBuf,
    /// What is counted.
    pub what: Throttled,
    /// Bytes or operations per second; not 0.
    pub rate: u64,
}

/// A task's share in the use of block devices, beside the shares of others. It stands for as long as the task does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoWeight {
    /// The device on the host, a whole disk; `None` is for all that are not named.
    pub device: Option<PathBuf>,
    /// The share: from 10 to 1000.
    pub weight: u16,
}

/// What a [`Throttle`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Throttled {
    /// Bytes that are read.
    ReadBytes,
    /// Bytes that are written.
    WriteBytes,
    /// Reads.
    Reads,
    /// Writes.
    Writes,
}

impl Throttle {
    /// Limits and those that change them, each in the place of an older one of the same device and use.
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
    fn a_change_takes_the_place_of_what_it_changes_alone() {
        let limit = |device: &str, what, rate| Throttle { device: device.into(), what, rate };
        let before = [limit("/dev/a", Throttled::Reads, 1), limit("/dev/a", Throttled::Writes, 2)];
        let changes = [limit("/dev/a", Throttled::Reads, 3), limit("/dev/b", Throttled::Reads, 4)];
        let expected = [before[1].clone(), changes[0].clone(), changes[1].clone()];
        assert_eq!(Throttle::merged(&before, &changes), expected);
    }
}
