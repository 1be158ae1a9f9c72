//! The node's part in a swarm, as operators see and change it.

use switchyard_core::{Error, ErrorKind, Result};
use switchyard_operator::control::{Reporter, SwarmControl};
use switchyard_operator::metrics::{ReportedFigures, SwarmFigures};
use switchyard_operator::status::{Condition, Part};
use switchyard_operator_api::text::rfc3339;
use switchyard_operator_api::{DepartureView, SwarmJoin, SwarmView, WaitingServiceView};
use switchyard_swarm::{
    AgentReport, Departure, DepartureCause, JOIN_MANAGERS_MAX, JoinRequest, JoinToken, NodePhase,
    NodeStatus, SwarmNode, WaitingService, check_address,
};

use futures::future::BoxFuture;
use switchyard_linux::beginning;

use crate::wiring::proto_availability;

/// The node's part in a swarm, for operators.
#[derive(Debug)]
pub struct SwarmHandle(SwarmNode);

impl SwarmHandle {
    /// Wraps the handle of the node.
    #[must_use]
    pub const fn new(node: SwarmNode) -> Self {
        Self(node)
    }
}

impl Reporter for SwarmHandle {
    fn parts(&self) -> Vec<Part> {
        part(&self.0.status()).into_iter().collect()
    }

    fn count(&self, figures: &mut ReportedFigures) {
        figures.swarm = Some(self::figures(&self.0.status()));
    }
}

impl SwarmControl for SwarmHandle {
    fn view(&self) -> SwarmView {
        view(self.0.status())
    }

    fn join(&self, request: SwarmJoin) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(self.0.join(checked(request)?).await?) })
    }

    fn leave(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(self.0.leave().await?) })
    }
}

/// The request that operators make, checked. No error shows any of it but addresses.
fn checked(request: SwarmJoin) -> Result<JoinRequest> {
    let refused = |why: String| Error::new(ErrorKind::InvalidArgument, why);
    let SwarmJoin {
        token,
        managers,
        availability,
    } = request;
    if managers.is_empty() || managers.len() > JOIN_MANAGERS_MAX {
        let count = managers.len();
        return Err(refused(format!(
            "{count} managers are named: 1 to {JOIN_MANAGERS_MAX} are allowed"
        )));
    }
    for manager in &managers {
        check_address(manager).map_err(|why| {
            let shown = beginning(manager, 100);
            refused(format!(
                "{shown:?} is no HOST or HOST:PORT of a manager: {why}"
            ))
        })?;
    }
    let token: JoinToken = token
        .parse()
        .map_err(|error: switchyard_swarm::Error| refused(error.report()))?;
    Ok(JoinRequest {
        managers,
        token,
        availability: proto_availability(availability),
    })
}

/// The node's part in a swarm, in numbers.
fn figures(status: &NodeStatus) -> SwarmFigures {
    let (is_member, report) = match &status.phase {
        NodePhase::NotJoined { .. } | NodePhase::Joining { .. } => (false, None),
        NodePhase::Leaving(_) | NodePhase::Ended { .. } => (true, None),
        NodePhase::Member(report) => (true, Some(report)),
    };
    SwarmFigures {
        is_member,
        is_ended: matches!(status.phase, NodePhase::Ended { .. }),
        is_duplicate: report.is_some_and(|report| report.is_duplicate),
        has_session: report.is_some_and(|report| report.manager.is_some()),
        sessions: status.sessions,
        failures: status.failures,
        certificate: report.map(|report| (report.certificate_begins, report.certificate_ends)),
    }
}

/// The part; `None` while the node is in no swarm and does not try to join one. It is not needed: other orchestrators
/// do not depend on it.
fn part(status: &NodeStatus) -> Option<Part> {
    let condition = match &status.phase {
        NodePhase::NotJoined { .. } => return None,
        NodePhase::Joining { error: None } => Condition::Down("is joining".to_owned()),
        NodePhase::Joining { error: Some(error) } => {
            Condition::Down(format!("has not joined yet: {error}"))
        }
        NodePhase::Member(report) => of_member(report),
        NodePhase::Leaving(_) => Condition::Down("is leaving".to_owned()),
        NodePhase::Ended { member: _, error } => Condition::Down(error.clone()),
    };
    Some(Part::optional("swarm", condition))
}

/// The node's part in a swarm, for display.
fn view(status: NodeStatus) -> SwarmView {
    let problems = status.problems();
    let NodeStatus {
        phase,
        since,
        sessions,
        failures,
        refusal: _,
        waiting,
    } = status;
    let view = SwarmView {
        since: rfc3339(since),
        sessions,
        session_failures: failures,
        problems,
        waiting: waiting.into_iter().map(waiting_view).collect(),
        ..SwarmView::default()
    };
    let state = |state: &str| state.to_owned();
    let of_member = |state: String, member: Option<switchyard_swarm::MemberName>| {
        let (cluster, node) = member.map(|member| (member.cluster, member.node)).unzip();
        SwarmView {
            state,
            cluster,
            node,
            ..view.clone()
        }
    };
    match phase {
        NodePhase::NotJoined { departure } => SwarmView {
            state: state("not_joined"),
            departure: departure.map(departure_view),
            ..view
        },
        NodePhase::Joining { error: _ } => SwarmView {
            state: state("joining"),
            ..view
        },
        NodePhase::Member(report) => SwarmView {
            state: state("member"),
            cluster: Some(report.cluster),
            node: Some(report.node),
            manager: report.manager,
            session_since: Some(rfc3339(report.since)),
            certificate_begins: Some(rfc3339(report.certificate_begins)),
            certificate_ends: Some(rfc3339(report.certificate_ends)),
            is_duplicate: report.is_duplicate,
            is_promoted: report.is_promoted,
            ..view
        },
        NodePhase::Leaving(member) => of_member(state("leaving"), member),
        NodePhase::Ended { member, error: _ } => of_member(state("ended"), member),
    }
}

fn waiting_view(waiting: WaitingService) -> WaitingServiceView {
    let WaitingService {
        service,
        reason,
        since,
        is_rejected,
    } = waiting;
    WaitingServiceView {
        service,
        reason,
        since: rfc3339(since),
        rejected: is_rejected,
    }
}

fn departure_view(departure: Departure) -> DepartureView {
    let Departure {
        cluster,
        node,
        cause,
    } = departure;
    let cause = match cause {
        DepartureCause::Left => "left",
        DepartureCause::Removed => "removed",
    };
    DepartureView {
        cluster,
        node,
        cause: cause.to_owned(),
    }
}

fn of_member(report: &AgentReport) -> Condition {
    let problems = report.problems().join("; ");
    let since = rfc3339(report.since);
    match &report.manager {
        Some(manager) if problems.is_empty() => Condition::Up(format!(
            "node {} of swarm {}, by manager {manager}",
            report.node, report.cluster
        )),
        Some(_) => Condition::Down(problems),
        None if problems.is_empty() => Condition::Down(format!("no session since {since}")),
        None => Condition::Down(format!("no session since {since}: {problems}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use switchyard_config::JoinAvailability;

    use super::*;

    fn status(phase: NodePhase) -> NodeStatus {
        NodeStatus {
            phase,
            since: SystemTime::UNIX_EPOCH,
            sessions: 1,
            failures: 0,
            refusal: None,
            waiting: Vec::new(),
        }
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
    fn services_that_wait_are_shown_in_each_phase() {
        let waiting = WaitingService {
            service: "web".to_owned(),
            reason: "there is no log driver \"syslog\"".to_owned(),
            since: SystemTime::UNIX_EPOCH,
            is_rejected: true,
        };
        let ended = NodePhase::Ended {
            member: None,
            error: "gone".to_owned(),
        };
        for phase in [NodePhase::Member(report()), ended] {
            let view = view(NodeStatus {
                waiting: vec![waiting.clone()],
                ..status(phase)
            });
            assert_eq!(
                view.waiting[0].in_words(),
                "web is rejected: there is no log driver \"syslog\""
            );
        }
    }

    #[test]
    fn node_in_no_swarm_has_no_such_part() {
        assert_eq!(
            part(&status(NodePhase::NotJoined { departure: None })),
            None
        );
    }

    #[test]
    fn each_condition_of_a_member_is_told_and_blocks_nothing() {
        let told = |report: AgentReport| {
            let part = part(&status(NodePhase::Member(report))).unwrap();
            assert!(!part.blocks_readiness());
            (part.is_up(), part.detail().to_owned())
        };
        assert_eq!(
            told(report()),
            (true, "node n of swarm c, by manager m:2377".to_owned())
        );
        let away = AgentReport {
            manager: None,
            ..report()
        };
        assert_eq!(
            told(away.clone()),
            (
                false,
                "no session since 1970-01-01T00:00:00.000Z".to_owned()
            )
        );
        let failed = AgentReport {
            session_error: Some("m:2377 is gone".to_owned()),
            ..away
        };
        assert!(told(failed).1.ends_with("Z: m:2377 is gone"));
        let promoted = AgentReport {
            is_promoted: true,
            ..report()
        };
        assert!(
            matches!(told(promoted), (false, text) if text.contains("docker node rm --force n"))
        );
        let ended = NodePhase::Ended {
            member: None,
            error: "it was removed".to_owned(),
        };
        assert_eq!(part(&status(ended)).unwrap().detail(), "it was removed");
    }

    #[test]
    fn figures_tell_members_from_others() {
        let of = |phase| figures(&status(phase));
        let none = of(NodePhase::NotJoined { departure: None });
        assert_eq!(
            none,
            SwarmFigures {
                sessions: 1,
                ..SwarmFigures::default()
            }
        );
        let clone = AgentReport {
            is_duplicate: true,
            ..report()
        };
        assert!(of(NodePhase::Member(clone)).is_duplicate);
        let member = of(NodePhase::Member(report()));
        let certificate = Some((SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH));
        assert_eq!(
            member,
            SwarmFigures {
                is_member: true,
                has_session: true,
                certificate,
                ..none
            }
        );
        let ended = of(NodePhase::Ended {
            member: None,
            error: "gone".to_owned(),
        });
        assert_eq!(
            ended,
            SwarmFigures {
                is_member: true,
                is_ended: true,
                ..none
            }
        );
    }

    const TOKEN: &str =
        "SWMTKN-1-00000000000000000000000000000000000000000000000001-0123456789abcdefghijklmno";

    fn join(token: &str, managers: &[&str], availability: JoinAvailability) -> Result<JoinRequest> {
        let managers = managers
            .iter()
            .map(|manager| (*manager).to_owned())
            .collect();
        checked(SwarmJoin {
            token: token.to_owned(),
            managers,
            availability,
        })
    }

    #[test]
    fn request_names_token_managers_and_availability() {
        let request = join(
            &format!("{TOKEN}\n"),
            &["m1", "[::1]:7"],
            JoinAvailability::Active,
        )
        .unwrap();
        assert_eq!(request.managers, ["m1", "[::1]:7"]);
        let drained = join(TOKEN, &["m1"], JoinAvailability::Drain).unwrap();
        assert_eq!(
            drained.availability,
            proto_availability(JoinAvailability::Drain)
        );
    }

    #[test]
    fn requests_that_cannot_be_right_are_refused_without_the_token() {
        let refused = |token: &str, managers: &[&str]| {
            let Err(error) = join(token, managers, JoinAvailability::Active) else {
                panic!("{managers:?}")
            };
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let text = error.report();
            assert!(!text.contains("abcdefgh"), "{text}");
            text
        };
        assert!(refused("abcdefgh", &["m1"]).contains("SWMTKN"));
        for managers in [&[][..], &["m"; 17]] {
            assert!(refused(TOKEN, managers).contains("1 to 16"), "{managers:?}");
        }
        assert!(refused(TOKEN, &["m1", "http://m2"]).contains("http://m2"));
    }
}
