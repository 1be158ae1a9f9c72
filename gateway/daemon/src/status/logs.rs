//! Where the log of a task is, as `/v1/tasks/log` answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use switchyard_logkeeper::reader::LogLocation;

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

// === impl LogView ===

impl LogView {
    /// Where a log is, or why there is none.
    #[must_use]
    pub fn of(log: Result<LogLocation, &str>) -> Self {
        match log {
            Ok(LogLocation::Cri { root, path }) => Self::Cri { root, path },
            Ok(LogLocation::Plain { root, dir, name }) => Self::Plain { root, dir, name },
            Err(reason) => Self::None { reason: reason.to_owned() },
        }
    }

    /// The same for the reader of logs.
    ///
    /// # Errors
    /// Why there is none.
    pub fn location(self) -> Result<LogLocation, String> {
        match self {
            Self::Cri { root, path } => Ok(LogLocation::Cri { root, path }),
            Self::Plain { root, dir, name } => Ok(LogLocation::Plain { root, dir, name }),
            Self::None { reason } => Err(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn view_has_the_documented_shape() {
        let location = LogLocation::Plain { root: "/a".into(), dir: "alloc/logs".into(), name: "web".into() };
        let view = LogView::of(Ok(location.clone()));
        let text = serde_json::to_string(&view).unwrap();
        assert_eq!(text, r#"{"format":"plain","root":"/a","dir":"alloc/logs","name":"web"}"#);
        assert_eq!(view.location(), Ok(location));
        let none = LogView::of(Err("why"));
        assert_eq!(serde_json::to_string(&none).unwrap(), r#"{"format":"none","reason":"why"}"#);
        assert_eq!(none.location(), Err("why".to_owned()));
    }
}
