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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_of_the_first_version_is_read_and_written() {
        let golden = include_str!("golden/restart.json").trim_end();
        let read: RestartReport = serde_json::from_str(golden).unwrap();
        assert_eq!((read.before, read.after), (Some(17), 42));
        assert_eq!(serde_json::to_string(&read).unwrap(), golden);
    }
}
