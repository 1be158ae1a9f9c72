//! The inside of the daemon, as `/v1/debug` shows it to those who look for a fault of the daemon itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use switchyard_core::keyed_lock::LockInUse;

use crate::operations::OperationView;

/// The content of `/v1/debug` and `switchyard debug`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DebugView {
    /// The build's version.
    pub version: String,
    /// The build's source revision.
    pub revision: String,
    /// The daemon's process id.
    pub pid: u32,
    /// The operations in flight.
    pub operations: Vec<OperationView>,
    /// The locks of objects that are held.
    pub locks: Vec<LockView>,
    /// The asynchronous tasks of the process.
    pub tasks: AsyncTasksView,
    /// The daemon's memory in bytes, by the names in `/proc/self/smaps_rollup`; empty if it cannot be read.
    pub memory: BTreeMap<String, u64>,
}

/// A lock of an object that is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockView {
    /// Its name, as in `docs/locks.md`.
    pub lock: String,
    /// The object.
    pub key: String,
    /// Number of callers that wait for it.
    pub waiting: usize,
}

/// The asynchronous tasks of the process, and its threads that execute them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AsyncTasksView {
    /// Number of tasks that have not ended.
    pub alive: usize,
    /// Number of those that are ready and wait for a thread.
    pub queued: usize,
    /// Those whose work is known, by what they do.
    pub tracked: BTreeMap<String, usize>,
    /// For how long each thread has executed tasks, in seconds.
    pub busy_seconds: Vec<f64>,
}

impl From<LockInUse> for LockView {
    fn from(LockInUse { lock, key, waiting }: LockInUse) -> Self {
        Self {
            lock: lock.to_owned(),
            key,
            waiting,
        }
    }
}
