//! Metrics of the node's part in a Docker swarm.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{IntCounter, IntGauge, IntGaugeVec, Registry};
use switchyard_swarm::{NodePhase, NodeStatus};

use super::families::{counter, gauge, gauges, signed};

/// Gauges of the membership, and counters of its sessions.
#[derive(Debug)]
pub(super) struct SwarmMetrics {
    member: IntGauge,
    session: IntGauge,
    sessions: IntCounter,
    failures: IntCounter,
    // Families, so that they have no value without a certificate.
    begin: IntGaugeVec,
    end: IntGaugeVec,
}

impl SwarmMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            member: gauge(
                registry,
                "switchyard_swarm_member",
                "Whether the node has joined a swarm and not left it; 1 also if it was removed from the swarm.",
            )?,
            session: gauge(
                registry,
                "switchyard_swarm_session_open",
                "Whether the node has a session with a manager of its swarm.",
            )?,
            sessions: counter(
                registry,
                "switchyard_swarm_sessions_total",
                "Sessions with managers of a swarm that were opened.",
            )?,
            failures: counter(
                registry,
                "switchyard_swarm_session_failures_total",
                "Sessions with managers of a swarm that have failed, or could not be opened.",
            )?,
            begin: gauges(
                registry,
                "switchyard_swarm_certificate_begin_timestamp_seconds",
                "From when on the node's certificate in its swarm is valid, in seconds since 1970.",
                &[],
            )?,
            end: gauges(
                registry,
                "switchyard_swarm_certificate_end_timestamp_seconds",
                "Until when the node's certificate in its swarm is valid, in seconds since 1970.",
                &[],
            )?,
        })
    }

    pub(super) fn set(&self, status: &NodeStatus) {
        let (is_member, report) = match &status.phase {
            NodePhase::NotJoined { .. } | NodePhase::Joining { .. } => (false, None),
            NodePhase::Leaving(_) | NodePhase::Ended { .. } => (true, None),
            NodePhase::Member(report) => (true, Some(report)),
        };
        self.member.set(i64::from(is_member));
        self.session.set(i64::from(report.is_some_and(|report| report.manager.is_some())));
        // The node counts; these counters only take over its values.
        self.sessions.inc_by(status.sessions.saturating_sub(self.sessions.get()));
        self.failures.inc_by(status.failures.saturating_sub(self.failures.get()));
        for (family, time) in [
            (&self.begin, report.map(|report| report.certificate_begins)),
            (&self.end, report.map(|report| report.certificate_ends)),
        ] {
            family.reset();
            if let Some(time) = time {
                family.with_label_values::<&str>(&[]).set(seconds(time));
            }
        }
    }
}

fn seconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| signed(since.as_secs()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::{Encoder, TextEncoder};
    use switchyard_swarm::AgentReport;

    use super::*;

    #[test]
    fn member_has_a_certificate_and_others_have_none() {
        let registry = Registry::new();
        let metrics = SwarmMetrics::register(&registry).unwrap();
        let shown = |phase: NodePhase, sessions: u64| {
            let since = UNIX_EPOCH;
            metrics.set(&NodeStatus { phase, since, sessions, failures: 3, refusal: None });
            let mut text = Vec::new();
            TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let none = shown(NodePhase::NotJoined { departure: None }, 0);
        assert!(
            none.contains("\nswitchyard_swarm_member 0\n") && !none.contains("certificate_end"),
            "{none}"
        );
        let report = AgentReport {
            cluster: "c".to_owned(),
            node: "n".to_owned(),
            certificate_begins: UNIX_EPOCH + Duration::from_secs(5),
            certificate_ends: UNIX_EPOCH + Duration::from_secs(7),
            manager: Some("m".to_owned()),
            since: UNIX_EPOCH,
            sessions: 2,
            failures: 3,
            session_error: None,
            renewal_error: None,
            is_promoted: false,
            is_duplicate: false,
        };
        let member = shown(NodePhase::Member(report), 2);
        for line in [
            "switchyard_swarm_member 1",
            "switchyard_swarm_session_open 1",
            "switchyard_swarm_sessions_total 2",
            "switchyard_swarm_session_failures_total 3",
            "switchyard_swarm_certificate_begin_timestamp_seconds 5",
            "switchyard_swarm_certificate_end_timestamp_seconds 7",
        ] {
            assert!(member.contains(&format!("\n{line}\n")), "{line}: {member}");
        }
        let ended = shown(NodePhase::Ended { member: None, error: "gone".to_owned() }, 2);
        assert!(ended.contains("\nswitchyard_swarm_member 1\n"), "{ended}");
        assert!(ended.contains("\nswitchyard_swarm_session_open 0\n"), "{ended}");
        assert!(!ended.contains("certificate_end"), "{ended}");
    }
}
