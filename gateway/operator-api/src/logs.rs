//! Where the log of a task is, as `/v1/tasks/log` answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A task, and where its log is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLogView {
    /// The task's id.
    pub id: String,
    /// Who made it.
    pub owner: String,
    /// What its owner's users call it, on one line.
    pub display_name: String,
    /// Its state, in one word.
    pub state: String,
    /// Whether it has ended, and all of its output was passed on by the gateway.
    pub is_complete: bool,
    /// Where its log is.
    pub log: LogView,
}

/// Where a log is.
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
        /// What their names begin with.
        name: String,
    },
    /// Nowhere.
    None {
        /// Why there is none.
        reason: String,
    },
}
