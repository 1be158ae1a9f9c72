//! The configuration: what a reload did, what waits for something else, and the level of the log.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of the configuration, in `/statusz`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigView {
    /// Time at which the files were last read and accepted, as RFC 3339.
    pub loaded_at: String,
    /// The changes in the files that wait for something else than a reload.
    pub pending: Vec<Change>,
    /// The last reload, if it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedReloadView>,
    /// Unknown keys and values that the daemon ignored at its start, each with its position; none after a reload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
}

/// A refused reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedReloadView {
    /// Time of the refusal, as RFC 3339.
    pub at: String,
    /// Reason of the refusal.
    pub why: String,
}

/// Result of a reload, the answer to `POST /v1/config/reload`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// The files that were read, in order.
    pub files: Vec<String>,
    /// The changes that are in force now.
    pub applied: Vec<Change>,
    /// The changes that wait for something else, such as a restart of the daemon.
    pub pending: Vec<Change>,
    /// Values of files that have no effect, because a variable or a flag of the daemon sets them.
    pub overridden: Vec<Overridden>,
    /// Values that are valid but probably not intended.
    pub warnings: Vec<String>,
}

/// A key whose value in the sources differs from the one in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The key, dotted.
    pub key: String,
    /// The effect of the new value.
    pub effect: Effect,
    /// Source of the new value: a file with its line, a variable, a flag, or the default.
    pub location: String,
    /// The value in force before, if it is short; `None` if there was none, or it is a table or a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The new value, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A value of a file that has no effect, because an environment variable or a flag sets the key too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overridden {
    /// The key, dotted.
    pub key: String,
    /// The file and its line.
    pub location: String,
    /// The variable or the flag.
    pub by: String,
}

/// Time at which a changed key in the files takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// With a reload of the configuration.
    Reload,
    /// With a restart of the daemon. Containers keep running.
    Restart,
    /// With a restart of the managed containerd. Containers keep running.
    RestartContainerd,
    /// With a restart of the logkeeper. Containers keep running.
    RestartLogkeeper,
    /// With a restart of the daemon on a node without containers: the daemon would not find or could not run
    /// those that were created before.
    EmptyNode,
}

/// The level of the log, the content of `/v1/log/level`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelView {
    /// The level in force.
    pub level: String,
    /// The configured level.
    pub configured: String,
    /// End of a temporary level, as RFC 3339; `None` if the configured one is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

// === impl Effect ===

impl Effect {
    /// The words that mark a key in `config.toml`.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::Restart => "restart",
            Self::RestartContainerd => "restart containerd",
            Self::RestartLogkeeper => "restart logkeeper",
            Self::EmptyNode => "empty node",
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reload => "takes effect with a reload",
            Self::Restart => "takes effect with a restart of the daemon",
            Self::RestartContainerd => {
                "takes effect with a restart of the daemon, and then of its containerd"
            }
            Self::RestartLogkeeper => "takes effect with a restart of the logkeeper",
            Self::EmptyNode => {
                "takes effect with a restart of the daemon, on a node without containers"
            }
        })
    }
}
