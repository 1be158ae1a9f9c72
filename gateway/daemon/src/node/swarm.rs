//! The node's part in a swarm, as a part of the daemon.

use switchyard_operator_api::text::rfc3339;
use switchyard_operator_api::{DepartureView, SwarmView};
use switchyard_swarm::{AgentReport, Departure, DepartureCause, NodePhase, NodeStatus};

use crate::status::{Condition, Part};

/// The part; `None` while the node is in no swarm and does not try to join one. It is not needed: other orchestrators
/// do not depend on it.
pub(super) fn part(status: &NodeStatus) -> Option<Part> {
    let condition = match &status.phase {
        NodePhase::NotJoined { .. } => return None,
        NodePhase::Joining { error: None } => Condition::Down("is joining".to_owned()),
        NodePhase::Joining { error: Some(error) } => Condition::Down(format!("has not joined yet: {error}")),
        NodePhase::Member(report) => of_member(report),
        NodePhase::Leaving(_) => Condition::Down("is leaving".to_owned()),
        NodePhase::Ended { member: _, error } => Condition::Down(error.clone()),
    };
    Some(Part { name: "swarm", needed: false, condition })
}

/// The node's part in a swarm, for display.
#[must_use]
pub fn view(status: NodeStatus) -> SwarmView {
    let problems = status.problems();
    let NodeStatus { phase, since, sessions, failures, refusal: _ } = status;
    let view = SwarmView {
        since: rfc3339(since),
        sessions,
        session_failures: failures,
        problems,
        ..SwarmView::default()
    };
    let state = |state: &str| state.to_owned();
    let of_member = |state: String, member: Option<switchyard_swarm::MemberName>| {
        let (cluster, node) = member.map(|member| (member.cluster, member.node)).unzip();
        SwarmView { state, cluster, node, ..view.clone() }
    };
    match phase {
        NodePhase::NotJoined { departure } => {
            SwarmView { state: state("not_joined"), departure: departure.map(departure_view), ..view }
        }
        NodePhase::Joining { error: _ } => SwarmView { state: state("joining"), ..view },
        NodePhase::Member(report) => SwarmView {
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

fn departure_view(departure: Departure) -> DepartureView {
    let Departure { cluster, node, cause } = departure;
    let cause = match cause {
        DepartureCause::Left => "left",
        DepartureCause::Removed => "removed",
    };
    DepartureView { cluster, node, cause: cause.to_owned() }
}

fn of_member(report: &AgentReport) -> Condition {
    let problems = report.problems().join("; ");
    let since = rfc3339(report.since);
    match &report.manager {
        Some(manager) if problems.is_empty() => {
            Condition::Up(format!("node {} of swarm {}, by manager {manager}", report.node, report.cluster))
        }
        Some(_) => Condition::Down(problems),
        None if problems.is_empty() => Condition::Down(format!("no session since {since}")),
        None => Condition::Down(format!("no session since {since}: {problems}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn status(phase: NodePhase) -> NodeStatus {
        NodeStatus { phase, since: SystemTime::UNIX_EPOCH, sessions: 1, failures: 0, refusal: None }
    }

    fn report() -> AgentReport {
        AgentReport {
            cluster: "c".to_owned(),
            node: "n".to_owned(),
            certificate_begins: SystemTime::UNIX_EPOCH,
            certificate_ends: SystemTime::UNIX_EPOCH,
            manager: Some("m:2377".to_owned()),
            since: SystemTime::UNIX_EPOCH,
            sessions: 1,
            failures: 0,
            session_error: None,
            renewal_error: None,
            is_promoted: false,
            is_duplicate: false,
        }
    }

    #[test]
    fn node_in_no_swarm_has_no_such_part() {
        assert_eq!(part(&status(NodePhase::NotJoined { departure: None })), None);
    }

    #[test]
    fn each_condition_of_a_member_is_told_and_blocks_nothing() {
        let told = |report: AgentReport| {
            let part = part(&status(NodePhase::Member(report))).unwrap();
            assert!(!part.blocks_readiness());
            (part.is_up(), part.detail().to_owned())
        };
        assert_eq!(told(report()), (true, "node n of swarm c, by manager m:2377".to_owned()));
        let away = AgentReport { manager: None, ..report() };
        assert_eq!(told(away.clone()), (false, "no session since 1970-01-01T00:00:00.000Z".to_owned()));
        let failed = AgentReport { session_error: Some("m:2377 is gone".to_owned()), ..away };
        assert!(told(failed).1.ends_with("Z: m:2377 is gone"));
        let promoted = AgentReport { is_promoted: true, ..report() };
        assert!(matches!(told(promoted), (false, text) if text.contains("docker node rm --force n")));
        let ended = NodePhase::Ended { member: None, error: "it was removed".to_owned() };
        assert_eq!(part(&status(ended)).unwrap().detail(), "it was removed");
    }
}
