//! `[audit]`: the log of operations that change something.

use std::path::PathBuf;

use serde::Deserialize;

/// Where the audit log is written, and what it contains.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// Where its lines are written.
    pub to: AuditTarget,
    /// Its file, if it is written to one.
    pub file: PathBuf,
    /// Whether commands that run to their end, as probes do, are recorded too.
    pub exec_sync: bool,
}

/// Where the audit log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditTarget {
    /// To systemd's journal, or to the daemon's log on a node without one.
    #[default]
    Journal,
    /// To a file.
    File,
    /// Nowhere.
    Off,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { to: AuditTarget::default(), file: "/var/log/switchyard/audit.log".into(), exec_sync: false }
    }
}
