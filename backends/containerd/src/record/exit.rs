//! The record of the exit of a task, which is the value of a label.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use switchyard_core::state::{Exit, ExitCause};
use switchyard_linux::beginning;

use super::{from_ns, to_ns};

/// The exit of a task, as in its label and in its note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExitRecord {
    code: i32,
    at_ns: u64,
    /// Time of its start; `None` if it never ran.
    started_ns: Option<u64>,
    #[serde(default)]
    oom: bool,
    #[serde(default)]
    lost: bool,
    /// The reason for which its start failed, if it did.
    #[serde(default)]
    start_failed: Option<String>,
}

/// The limit in bytes on the stored reason of a failed start: containerd's limit on a label is 4096 bytes,
/// key included.
const REASON_LIMIT: usize = 2048;

impl ExitRecord {
    pub(crate) fn from_core(exit: &Exit, started_at: Option<SystemTime>) -> Self {
        let Exit {
            code,
            finished_at,
            cause,
        } = exit;
        let start_failed = match cause {
            ExitCause::StartFailed(why) => Some(beginning(why, REASON_LIMIT / 4).to_owned()),
            ExitCause::Exited | ExitCause::OomKilled | ExitCause::Lost => None,
        };
        Self {
            code: *code,
            at_ns: to_ns(*finished_at),
            started_ns: started_at.map(to_ns),
            oom: *cause == ExitCause::OomKilled,
            lost: *cause == ExitCause::Lost,
            start_failed,
        }
    }

    pub(crate) fn to_core(&self) -> (Exit, Option<SystemTime>) {
        let Self {
            code,
            at_ns,
            started_ns,
            oom,
            lost,
            start_failed,
        } = self;
        let cause = match (start_failed, oom, lost) {
            (Some(why), _, _) => ExitCause::StartFailed(why.clone()),
            (None, true, _) => ExitCause::OomKilled,
            (None, false, true) => ExitCause::Lost,
            (None, false, false) => ExitCause::Exited,
        };
        (
            Exit {
                code: *code,
                finished_at: from_ns(*at_ns),
                cause,
            },
            started_ns.map(from_ns),
        )
    }

    /// Returns whether it says that the exit status is not known.
    pub(crate) const fn is_lost(&self) -> bool {
        self.lost
    }

    pub(crate) fn to_label(&self) -> String {
        serde_json::to_string(self).expect("an exit holds nothing that JSON cannot")
    }

    /// Reads what [`ExitRecord::to_label`] has written.
    ///
    /// # Errors
    /// One of the end of the text if it was cut off.
    pub(crate) fn parse_label(label: &str) -> serde_json::Result<Self> {
        serde_json::from_str(label)
    }
}
