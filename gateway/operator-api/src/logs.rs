//! Location of a task's log, as `/v1/tasks/log` answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A task, and where its log is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLogView {
    /// The task's id.
    pub id: String,
    /// Its owner.
    pub owner: String,
    /// The name that its owner's users give it, on one line.
    pub display_name: String,
    /// Its state, in one word.
    pub state: String,
    /// True if it has ended, and all of its output was passed on by the gateway.
    pub is_complete: bool,
    /// Location of its log.
    pub log: LogView,
}

/// Location of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "snake_case")]
pub enum LogView {
    /// A file in the CRI format, with its rotated files beside it.
    Cri {
        /// A directory that the orchestrator chose.
        root: PathBuf,
        /// The path of the file beneath it.
        path: PathBuf,
    },
    /// Files of plain text without times, `NAME.stdout.0`, `NAME.stderr.0` and so on.
    Plain {
        /// A directory that the orchestrator chose.
        root: PathBuf,
        /// The path of their directory beneath it.
        dir: PathBuf,
        /// Beginning of their names.
        name: String,
    },
    /// Nowhere.
    None {
        /// Reason why there is none.
        reason: String,
    },
}
