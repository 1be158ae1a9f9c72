//! Result of a restart of containerd or the logkeeper.

use serde::{Deserialize, Serialize};

/// Result of a restart, the answer to `POST /v1/restart/{part}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartReport {
    /// The part.
    pub part: String,
    /// The process that ran before; `None` if none did.
    pub before: Option<i32>,
    /// The process that serves now.
    pub after: i32,
}
