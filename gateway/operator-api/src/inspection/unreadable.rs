//! The view of an object that cannot be read: what is known of it without its record.

use switchyard_core::backend::{HeldClaims, Unreadable};
use switchyard_core::spec::Reserved;

use super::{InspectionView, LeaseView, NetworkView, ReservationView};

impl InspectionView {
    /// The view of an object that cannot be read.
    #[must_use]
    pub fn of_unreadable(held: &Unreadable) -> Self {
        let Unreadable {
            id,
            kind,
            owner,
            name,
            sandbox,
            reason,
            claims,
            facts: _,
        } = held;
        let HeldClaims {
            host_ports,
            leases,
            exclusive_cpus,
            reserved,
            // `/v1/images` has the tasks that use an image.
            images: _,
            is_complete,
        } = claims;
        let cpus = exclusive_cpus
            .as_ref()
            .map(|cpus| ("cpuset_cpus".to_owned(), cpus.to_string()));
        let reservation = ReservationView {
            cpu_milli: reserved.cpu_milli,
            memory_bytes: reserved.memory_bytes,
            exclusive_cpus: cpus.is_some(),
        };
        let is_reserved = *reserved != Reserved::default() || reservation.exclusive_cpus;
        Self {
            kind: kind.as_str().to_owned(),
            id: id.clone(),
            owner: owner.map(|owner| owner.to_string()).unwrap_or_default(),
            name: name.clone(),
            display_name: name.clone(),
            state: "unreadable".to_owned(),
            reason: Some(reason.clone()),
            sandbox: sandbox.map(|sandbox| sandbox.to_string()),
            resources: cpus.into_iter().collect(),
            reserved: is_reserved.then_some(reservation),
            network: NetworkView {
                host_ports: host_ports.ports.iter().map(ToString::to_string).collect(),
                ..NetworkView::default()
            },
            leases: leases.iter().map(LeaseView::of).collect(),
            remedy: Some(Unreadable::REMEDY.to_owned()),
            may_hold_more: !is_complete,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::backend::{ObjectFacts, UnreadableKind};
    use switchyard_core::id::{Owner, SandboxId};

    use super::*;

    #[test]
    fn object_that_cannot_be_read_is_shown_with_its_claims_and_the_remedy() {
        let held = Unreadable {
            id: "of another form".to_owned(),
            kind: UnreadableKind::Task,
            owner: Some(Owner::Nomad),
            name: "a/web/1".to_owned(),
            sandbox: Some(SandboxId::from_bytes([1; 32])),
            reason: "of version 9".to_owned(),
            claims: HeldClaims {
                exclusive_cpus: Some("2-3".parse().unwrap()),
                reserved: Reserved {
                    cpu_milli: 2000,
                    memory_bytes: 1,
                },
                ..HeldClaims::default()
            },
            facts: ObjectFacts::default(),
        };
        let view = InspectionView::of_unreadable(&held);
        assert_eq!(
            (view.owner.as_str(), view.state.as_str()),
            ("nomad", "unreadable")
        );
        assert_eq!(view.reason.as_deref(), Some("of version 9"));
        assert_eq!(view.resources["cpuset_cpus"], "2-3");
        assert!(
            view.reserved
                .is_some_and(|reserved| reserved.exclusive_cpus)
        );
        assert!(view.may_hold_more, "the claims are not complete");
        assert!(
            view.remedy
                .is_some_and(|text| text.contains("docs/alerts.md"))
        );
        // A sandbox that is known to hold nothing more, of an owner of a later version.
        let held = Unreadable {
            kind: UnreadableKind::Sandbox,
            owner: None,
            claims: HeldClaims {
                is_complete: true,
                ..HeldClaims::default()
            },
            ..held
        };
        let view = InspectionView::of_unreadable(&held);
        assert!(!view.may_hold_more && view.reserved.is_none());
        assert_eq!((view.kind.as_str(), view.owner.as_str()), ("sandbox", ""));
    }
}
