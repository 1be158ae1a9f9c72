//! Metrics of the node's part in a Docker swarm.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{IntCounter, IntGauge, IntGaugeVec, Registry};

use super::families::{counter, gauge, gauges, signed, take_over};
use super::table;

/// The node's part in a swarm, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SwarmFigures {
    /// True if the node has joined a swarm and not left it.
    pub is_member: bool,
    /// True if it can be no working member until an operator acts, or the clock or the disk is right again.
    pub is_ended: bool,
    /// True if another machine seems to be the same node.
    pub is_duplicate: bool,
    /// True if it has a session with a manager.
    pub has_session: bool,
    /// Sessions that were opened since the start of the daemon.
    pub sessions: u64,
    /// Sessions that have failed, or could not be opened.
    pub failures: u64,
    /// From when and until when the certificate of a member is valid.
    pub certificate: Option<(SystemTime, SystemTime)>,
}

/// Gauges of the membership, and counters of its sessions.
#[derive(Debug)]
pub(super) struct SwarmMetrics {
    member: IntGauge,
    ended: IntGauge,
    duplicate: IntGauge,
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
            member: gauge(registry, table::SWARM_MEMBER)?,
            ended: gauge(registry, table::SWARM_ENDED)?,
            duplicate: gauge(registry, table::SWARM_DUPLICATE)?,
            session: gauge(registry, table::SWARM_SESSION)?,
            sessions: counter(registry, table::SWARM_SESSIONS)?,
            failures: counter(registry, table::SWARM_FAILURES)?,
            begin: gauges(registry, table::SWARM_BEGIN)?,
            end: gauges(registry, table::SWARM_END)?,
        })
    }

    pub(super) fn set(&self, figures: &SwarmFigures) {
        let SwarmFigures {
            is_member,
            is_ended,
            is_duplicate,
            has_session,
            sessions,
            failures,
            certificate,
        } = *figures;
        self.member.set(i64::from(is_member));
        self.ended.set(i64::from(is_ended));
        self.duplicate.set(i64::from(is_duplicate));
        self.session.set(i64::from(has_session));
        take_over(&self.sessions, sessions);
        take_over(&self.failures, failures);
        for (family, time) in [
            (&self.begin, certificate.map(|(begin, _)| begin)),
            (&self.end, certificate.map(|(_, end)| end)),
        ] {
            family.reset();
            if let Some(time) = time {
                family.with_label_values::<&str>(&[]).set(seconds(time));
            }
        }
    }
}

fn seconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| signed(since.as_secs()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::{Encoder, TextEncoder};

    use super::*;

    #[test]
    fn member_has_a_certificate_and_others_have_none() {
        let registry = Registry::new();
        let metrics = SwarmMetrics::register(&registry).unwrap();
        let shown = |figures: SwarmFigures| {
            metrics.set(&figures);
            let mut text = Vec::new();
            TextEncoder::new()
                .encode(&registry.gather(), &mut text)
                .unwrap();
            String::from_utf8(text).unwrap()
        };
        let none = shown(SwarmFigures {
            failures: 3,
            ..SwarmFigures::default()
        });
        assert!(
            none.contains("\nswitchyard_swarm_member 0\n") && !none.contains("certificate_end"),
            "{none}"
        );
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let certificate = Some((at(5), at(7)));
        let member = SwarmFigures {
            is_member: true,
            is_ended: false,
            is_duplicate: true,
            has_session: true,
            sessions: 2,
            failures: 3,
            certificate,
        };
        let text = shown(member);
        for line in [
            "switchyard_swarm_member 1",
            "switchyard_swarm_ended 0",
            "switchyard_swarm_duplicate 1",
            "switchyard_swarm_session_open 1",
            "switchyard_swarm_sessions_total 2",
            "switchyard_swarm_session_failures_total 3",
            "switchyard_swarm_certificate_begin_timestamp_seconds 5",
            "switchyard_swarm_certificate_end_timestamp_seconds 7",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
        let ended = shown(SwarmFigures {
            is_ended: true,
            has_session: false,
            certificate: None,
            ..member
        });
        assert!(ended.contains("\nswitchyard_swarm_member 1\n"), "{ended}");
        assert!(ended.contains("\nswitchyard_swarm_ended 1\n"), "{ended}");
        assert!(
            ended.contains("\nswitchyard_swarm_session_open 0\n"),
            "{ended}"
        );
        assert!(!ended.contains("certificate_end"), "{ended}");
    }
}
