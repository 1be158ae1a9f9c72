//! Usage of containers, as `/v1/containers` answers: the counters that `switchyard top` shows.

use serde::{Deserialize, Serialize};

/// A reading, for display: counters since the start of each task. A share of time or a rate is the difference of
/// two readings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainersView {
    /// End of the reading, in nanoseconds since 1970.
    pub at_unix_ns: u64,
    /// The running tasks, by owner and name.
    pub tasks: Vec<TaskUsageView>,
}

/// The counters of a running task, for display. What was not measured is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskUsageView {
    /// Its id.
    pub id: String,
    /// Its owner.
    pub owner: String,
    /// The name that its owner's users give it, on one line.
    pub display_name: String,
    /// Time at which its processor time was read, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_at_unix_ns: Option<u64>,
    /// Processor time that it has used, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// Memory in its working set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The limit of its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Bytes read from block devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// Bytes written to block devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// The traffic of its sandbox, which its tasks share; absent with the host's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<SandboxTrafficView>,
}

/// The traffic of a sandbox, for display.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxTrafficView {
    /// The sandbox's id.
    pub sandbox: String,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}
