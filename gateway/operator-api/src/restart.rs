//! What a restart of containerd or the logkeeper did.

use serde::{Deserialize, Serialize};

/// What a restart did, the answer to `POST /v1/restart/{part}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartReport {
    /// The part.
    pub part: String,
    /// The process that ran before; `None` if none did.
    pub before: Option<i32>,
    /// The process that serves now.
    pub after: i32,
}
