//! The node's part in a swarm, for display.

use serde::{Deserialize, Serialize};

/// The content of `/v1/swarm` and `switchyard swarm status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwarmView {
    /// `not_joined`, `joining`, `member`, `leaving` or `ended`.
    pub state: String,
    /// Since when, as RFC 3339.
    pub since: String,
    /// The id of the swarm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The id of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The manager of the session that is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
    /// Since when a member has that session, or none, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_since: Option<String>,
    /// When the certificate of a member begins to be valid, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_begins: Option<String>,
    /// When it ends, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_ends: Option<String>,
    /// How many sessions were opened since the start of the daemon.
    pub sessions: u64,
    /// How many have failed, or could not be opened.
    pub session_failures: u64,
    /// What has to be mended, each with what to do.
    pub problems: Vec<String>,
    /// The swarm that the node was in before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub departure: Option<DepartureView>,
}

/// A swarm that the node is no member of any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepartureView {
    /// Its id; empty if it was not known any more.
    pub cluster: String,
    /// The id of the node; empty likewise.
    pub node: String,
    /// `left` or `removed`.
    pub cause: String,
}
