//! The state of the configuration, for display and for metrics.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::config::Change;

/// The state of the configuration, in `/statusz`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigView {
    /// When the files were last read and accepted, as RFC 3339.
    pub loaded_at: String,
    /// The changes in the files that wait for something else than a reload.
    pub pending: Vec<Change>,
    /// The last reload, if it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedReloadView>,
}

/// A refused reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedReloadView {
    /// When, as RFC 3339.
    pub at: String,
    /// Why.
    pub why: String,
}

/// The numbers of reloads, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReloadCounts {
    /// How many took effect.
    pub applied: u64,
    /// How many were refused.
    pub refused: u64,
    /// Whether the last one took effect, or there was none.
    pub is_last_applied: bool,
    /// When the files were last read and accepted.
    pub loaded_at: SystemTime,
    /// How many changes wait for something else than a reload.
    pub pending: usize,
}
