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
    /// Begin of the validity of a member's certificate, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_begins: Option<String>,
    /// End of its validity, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_ends: Option<String>,
    /// Number of sessions that were opened since the start of the daemon.
    pub sessions: u64,
    /// Number of sessions that have failed, or could not be opened.
    pub session_failures: u64,
    /// Problems that need attention, each with its cure.
    pub problems: Vec<String>,
    /// True if another machine seems to be the same node, as a clone of this one is; one of the problems says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_duplicate: bool,
    /// True if the swarm has promoted the node to a manager, which it cannot be; likewise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_promoted: bool,
    /// The services whose tasks the node was given and cannot begin. Of tasks that the scheduler keeps away it does not know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingServiceView>,
    /// The swarm that the node was in before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub departure: Option<DepartureView>,
}

/// A service whose tasks the node cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingServiceView {
    /// Its name.
    pub service: String,
    /// Reason why its tasks cannot begin: what they wait for, or lack.
    pub reason: String,
    /// Since when, as RFC 3339.
    pub since: String,
    /// True if its tasks are rejected; false if the node tries again.
    pub rejected: bool,
}

impl WaitingServiceView {
    /// In words, such as `web is rejected: …`.
    #[must_use]
    pub fn in_words(&self) -> String {
        let Self {
            service,
            reason,
            since: _,
            rejected,
        } = self;
        let how = if *rejected { "is rejected" } else { "waits" };
        format!("{service} {how}: {reason}")
    }
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

/// A request to join a swarm, the body of `POST /v1/swarm/join`. It has no `Debug`: the token is secret.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_debug_implementations, reason = "the token is secret")]
pub struct SwarmJoin {
    /// The worker token.
    pub token: String,
    /// The managers, `HOST` or `HOST:PORT`.
    pub managers: Vec<String>,
    /// The availability to begin with: `active`, `pause` or `drain`; `active` if it is missing.
    #[serde(default)]
    pub availability: JoinAvailability,
}

/// Permission for the scheduler of a swarm to place tasks on a node that joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JoinAvailability {
    /// It may.
    #[default]
    Active,
    /// It may not, and running tasks continue.
    Pause,
    /// It may not, and those that run are moved.
    Drain,
}
