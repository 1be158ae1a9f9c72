//! Host ports.

use std::collections::{BTreeMap, BTreeSet};

use super::refusal::{Holder, Refusal, RefusalReason, Resource};
use crate::id::{Owner, SandboxId};
use crate::spec::{HostPort, HostPorts, Protocol};

/// The host ports of sandboxes.
#[derive(Debug, Default)]
pub struct Ports {
    sandboxes: BTreeMap<SandboxId, PortHolder>,
    by_number: BTreeMap<(Protocol, u16), Vec<(HostPort, SandboxId)>>,
    /// Those whose network is being released, after which they hold nothing.
    ending: BTreeSet<SandboxId>,
}

/// A sandbox that has host ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortHolder {
    /// Its owner.
    pub owner: Owner,
    /// Its name.
    pub name: String,
    /// The ports.
    pub claims: HostPorts,
}

// === impl Ports ===

impl Ports {
    /// Claims ports for a sandbox, all or none. They replace the earlier claim of the same sandbox.
    ///
    /// # Errors
    /// The first port that a sandbox of another group has; nothing has changed then.
    pub fn claim(&mut self, id: SandboxId, holder: PortHolder) -> Result<(), Refusal> {
        for port in &holder.claims.ports {
            if let Some(other) = self.conflict(id, &holder, port) {
                return Err(Refusal {
                    owner: holder.owner,
                    resource: Resource::Port(*port),
                    reason: RefusalReason::Held,
                    holder: Some(Box::new(other)),
                });
            }
        }
        self.record(id, holder);
        Ok(())
    }

    /// Records a claim without checks. It replaces the earlier claim of the same sandbox.
    pub fn record(&mut self, id: SandboxId, holder: PortHolder) {
        self.release(id);
        if holder.claims.ports.is_empty() {
            return;
        }
        for port in &holder.claims.ports {
            self.by_number
                .entry((port.protocol, port.port))
                .or_default()
                .push((*port, id));
        }
        self.sandboxes.insert(id, holder);
    }

    /// Releases the ports of a sandbox.
    pub fn release(&mut self, id: SandboxId) {
        self.ending.remove(&id);
        let Some(holder) = self.sandboxes.remove(&id) else {
            return;
        };
        for port in &holder.claims.ports {
            let key = (port.protocol, port.port);
            if let Some(holders) = self.by_number.get_mut(&key) {
                holders.retain(|(_, holder)| *holder != id);
                if holders.is_empty() {
                    self.by_number.remove(&key);
                }
            }
        }
    }

    /// The sandboxes that have ports, by id.
    pub fn holders(&self) -> impl Iterator<Item = (SandboxId, &PortHolder)> {
        self.sandboxes.iter().map(|(id, holder)| (*id, holder))
    }

    /// Ports that two sandboxes of different groups have, with both holders; found at recovery, created by an
    /// earlier version.
    pub fn conflicts(&self) -> Vec<(HostPort, Holder, Holder)> {
        let all = self.sandboxes.iter().flat_map(|(id, holder)| {
            holder.claims.ports.iter().filter_map(|port| {
                let other = self.conflict(*id, holder, port)?;
                // Report each pair once.
                (Some(*id) < other.sandbox).then(|| (*port, holder.named(*id), other))
            })
        });
        all.collect()
    }

    /// Returns whether no sandbox has this port.
    #[must_use]
    pub fn is_free(&self, port: &HostPort) -> bool {
        let holders = self.by_number.get(&(port.protocol, port.port));
        holders.is_none_or(|holders| holders.iter().all(|(held, _)| !held.overlaps(port)))
    }

    /// Notes that the network of a sandbox is being released, until it is released here or claims ports again. One that holds no port is not
    /// noted.
    pub fn note_ending(&mut self, id: SandboxId) {
        if self.sandboxes.contains_key(&id) {
            self.ending.insert(id);
        }
    }

    /// Returns whether its network is being released.
    #[must_use]
    pub fn is_ending(&self, id: SandboxId) -> bool {
        self.ending.contains(&id)
    }

    /// The other sandboxes of the group of one that asks which have a port in common with it.
    #[must_use]
    pub fn sharing(&self, id: SandboxId, asks: &PortHolder) -> BTreeSet<SandboxId> {
        let ports = asks.claims.ports.iter();
        let others = ports.flat_map(|port| self.others_with(id, *port));
        let sharing = others.filter(|(_, holder)| holder.shares_with(asks));
        sharing.map(|(by, _)| by).collect()
    }

    /// The sandbox of another group that has a requested port.
    fn conflict(&self, id: SandboxId, asks: &PortHolder, port: &HostPort) -> Option<Holder> {
        let mut others = self.others_with(id, *port);
        let (by, holder) = others.find(|(_, holder)| !holder.shares_with(asks))?;
        Some(holder.named(by))
    }

    /// The other sandboxes that have a port which overlaps with this one.
    fn others_with(
        &self,
        id: SandboxId,
        port: HostPort,
    ) -> impl Iterator<Item = (SandboxId, &PortHolder)> {
        let held = self.by_number.get(&(port.protocol, port.port));
        let others = held
            .into_iter()
            .flatten()
            .filter(move |(held, by)| *by != id && held.overlaps(&port));
        others.filter_map(move |(_, by)| Some((*by, self.sandboxes.get(by)?)))
    }
}

// === impl PortHolder ===

impl PortHolder {
    fn shares_with(&self, other: &Self) -> bool {
        self.owner == other.owner && self.claims.shares_with(&other.claims)
    }

    fn named(&self, id: SandboxId) -> Holder {
        Holder {
            owner: self.owner,
            sandbox: Some(id),
            name: self.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn id(number: u8) -> SandboxId {
        SandboxId::from_bytes([number; 32])
    }

    fn port(number: u16, ip: Option<IpAddr>) -> HostPort {
        HostPort {
            protocol: Protocol::Tcp,
            port: number,
            ip,
        }
    }

    fn holder(owner: Owner, group: &str, ports: &[HostPort]) -> PortHolder {
        let claims = HostPorts {
            group: group.to_owned(),
            ports: ports.to_vec(),
        };
        PortHolder {
            owner,
            name: format!("{owner}-{group}"),
            claims,
        }
    }

    #[test]
    fn a_port_is_refused_with_its_holder_and_had_when_that_has_gone() {
        let mut ports = Ports::default();
        let first = holder(Owner::Nomad, "a", &[port(80, None)]);
        ports.claim(id(1), first.clone()).unwrap();
        let second = holder(
            Owner::Kubernetes,
            "b",
            &[port(81, None), port(80, Some([10, 0, 0, 1].into()))],
        );
        let refusal = ports.claim(id(2), second.clone()).unwrap_err();
        assert_eq!(refusal.resource, Resource::Port(second.claims.ports[1]));
        assert_eq!(
            refusal.holder.as_ref().and_then(|holder| holder.sandbox),
            Some(id(1))
        );
        let text = refusal.to_string();
        assert!(
            text.contains("10.0.0.1:80/tcp") && text.contains("nomad-a of nomad"),
            "{text}"
        );
        assert_eq!(
            ports.holders().count(),
            1,
            "nothing is held of what was refused"
        );
        ports.release(id(1));
        ports.claim(id(2), second).unwrap();
        ports.claim(id(1), first).unwrap_err();
    }

    #[test]
    fn those_of_one_group_share_and_each_gives_back_its_own() {
        let mut ports = Ports::default();
        let group = holder(Owner::Nomad, "a", &[port(80, None)]);
        ports.claim(id(1), group.clone()).unwrap();
        ports.claim(id(2), group).unwrap();
        ports.release(id(1));
        ports
            .claim(id(3), holder(Owner::Kubernetes, "a", &[port(80, None)]))
            .unwrap_err();
        ports.release(id(2));
        ports
            .claim(id(3), holder(Owner::Kubernetes, "a", &[port(80, None)]))
            .unwrap();
    }

    #[test]
    fn those_that_share_a_port_are_others_of_the_group_that_have_it() {
        let mut ports = Ports::default();
        let one = Some([10, 0, 0, 1].into());
        let two = Some([10, 0, 0, 2].into());
        ports.record(id(1), holder(Owner::Nomad, "a", &[port(80, None)]));
        ports.record(id(2), holder(Owner::Nomad, "a", &[port(80, one)]));
        ports.record(id(3), holder(Owner::Nomad, "a", &[port(81, None)]));
        ports.record(id(4), holder(Owner::Nomad, "b", &[port(82, None)]));
        ports.record(id(5), holder(Owner::Kubernetes, "a", &[port(83, None)]));
        for (by, asked, expected) in [
            (6, &[port(80, None)][..], &[1, 2][..]),
            (1, &[port(80, None)], &[2]),
            (6, &[port(80, two)], &[1]),
            (6, &[port(80, one), port(81, one)], &[1, 2, 3]),
            (6, &[port(82, None), port(83, None), port(84, None)], &[]),
            (6, &[], &[]),
        ] {
            let sharing = ports.sharing(id(by), &holder(Owner::Nomad, "a", asked));
            let expected: BTreeSet<_> = expected.iter().map(|number| id(*number)).collect();
            assert_eq!(sharing, expected, "{asked:?}");
        }
        let alone = holder(Owner::Nomad, "", &[port(80, None)]);
        assert!(ports.sharing(id(6), &alone).is_empty());
    }

    #[test]
    fn without_a_group_nothing_is_shared() {
        let mut ports = Ports::default();
        ports
            .claim(id(1), holder(Owner::Nomad, "", &[port(80, None)]))
            .unwrap();
        ports
            .claim(id(2), holder(Owner::Nomad, "", &[port(80, None)]))
            .unwrap_err();
    }

    #[test]
    fn two_that_are_found_with_one_port_are_both_shown() {
        let mut ports = Ports::default();
        ports.record(id(1), holder(Owner::Nomad, "a", &[port(80, None)]));
        ports.record(
            id(2),
            holder(Owner::Kubernetes, "b", &[port(80, None), port(81, None)]),
        );
        let conflicts = ports.conflicts();
        assert_eq!(conflicts.len(), 1, "{conflicts:?}");
        assert_eq!(
            (conflicts[0].1.owner, conflicts[0].2.owner),
            (Owner::Nomad, Owner::Kubernetes)
        );
        assert_eq!(ports.holders().count(), 2);
    }

    #[derive(Debug, Clone)]
    enum Op {
        Claim(u8, Owner, u8, Vec<HostPort>),
        Release(u8),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let ip = prop_oneof![
            Just(None),
            Just(Some(IpAddr::from([0, 0, 0, 0]))),
            (1..3_u8).prop_map(|last| Some(IpAddr::from([10, 0, 0, last]))),
            Just(Some("fd00::1".parse().unwrap())),
        ];
        let one = (1..4_u16, ip).prop_map(|(number, ip)| port(number, ip));
        let owner = prop_oneof![Just(Owner::Nomad), Just(Owner::Kubernetes)];
        let claim = (
            0..6_u8,
            owner,
            0..3_u8,
            proptest::collection::vec(one, 0..4),
        )
            .prop_map(|(id, owner, group, ports)| Op::Claim(id, owner, group, ports));
        proptest::collection::vec(
            prop_oneof![3 => claim, 1 => (0..6_u8).prop_map(Op::Release)],
            0..40,
        )
    }

    proptest! {
        /// The model is a list of all claims that is searched linearly.
        #[test]
        fn never_do_two_groups_hold_one_port(ops in ops()) {
            let mut ports = Ports::default();
            let mut model: Vec<(u8, PortHolder)> = Vec::new();
            for op in ops {
                match op {
                    Op::Release(number) => {
                        ports.release(id(number));
                        model.retain(|(held, _)| *held != number);
                    }
                    Op::Claim(number, owner, group, wanted) => {
                        let asks = holder(owner, &group.to_string(), &wanted);
                        let free = model.iter().all(|(by, holder)| {
                            *by == number
                                || (holder.owner == owner && holder.claims.group == asks.claims.group)
                                || !holder.claims.ports.iter().any(|held| wanted.iter().any(|port| held.overlaps(port)))
                        });
                        let claimed = ports.claim(id(number), asks.clone());
                        prop_assert_eq!(claimed.is_ok(), free);
                        match claimed {
                            Ok(()) => {
                                model.retain(|(held, _)| *held != number);
                                if !wanted.is_empty() {
                                    model.push((number, asks));
                                }
                            }
                            Err(refusal) => prop_assert!(refusal.holder.is_some(), "a refusal names who has it"),
                        }
                    }
                }
                let expected = model.iter().map(|(number, holder)| (id(*number), holder)).collect::<BTreeMap<_, _>>();
                prop_assert_eq!(ports.holders().collect::<BTreeMap<_, _>>(), expected);
                prop_assert!(ports.conflicts().is_empty());
            }
            for number in 0..6 {
                ports.release(id(number));
            }
            prop_assert!(ports.by_number.is_empty(), "nothing is left of what was given back");
        }
    }
}
