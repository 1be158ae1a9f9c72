//! Limits on the use of block devices.

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
