//! The node's part in a swarm, for display.

use serde::{Deserialize, Serialize};
use switchyard_swarm::{Departure, DepartureCause, NodePhase, NodeStatus};

use super::time::rfc3339;

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

impl From<NodeStatus> for SwarmView {
    fn from(status: NodeStatus) -> Self {
        let problems = status.problems();
        let NodeStatus { phase, since, sessions, failures, refusal: _ } = status;
        let view =
            Self { since: rfc3339(since), sessions, session_failures: failures, problems, ..Self::default() };
        let state = |state: &str| state.to_owned();
        let of_member = |state: String, member: Option<switchyard_swarm::MemberName>| {
            let (cluster, node) = member.map(|member| (member.cluster, member.node)).unzip();
            Self { state, cluster, node, ..view.clone() }
        };
        match phase {
            NodePhase::NotJoined { departure } => {
                Self { state: state("not_joined"), departure: departure.map(Into::into), ..view }
            }
            NodePhase::Joining { error: _ } => Self { state: state("joining"), ..view },
            NodePhase::Member(report) => Self {
                state: state("member"),
                cluster: Some(report.cluster),
                node: Some(report.node),
                manager: report.manager,
                session_since: Some(rfc3339(report.since)),
                certificate_begins: Some(rfc3339(report.certificate_begins)),
                certificate_ends: Some(rfc3339(report.certificate_ends)),
                ..view
            },
            NodePhase::Leaving(member) => of_member(state("leaving"), member),
            NodePhase::Ended { member, error: _ } => of_member(state("ended"), member),
        }
    }
}

impl From<Departure> for DepartureView {
    fn from(departure: Departure) -> Self {
        let Departure { cluster, node, cause } = departure;
        let cause = match cause {
            DepartureCause::Left => "left",
            DepartureCause::Removed => "removed",
        };
        Self { cluster, node, cause: cause.to_owned() }
    }
}
