//! Limits on the use of block devices, and shares in it.

use std::path::PathBuf;

/// The most that a task may do with a block device in a second. It stands for as long as the task does.
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
