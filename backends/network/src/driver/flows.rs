//! Connections that are removed behind the answer, since the kernel looks at all of them for it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use switchyard_linux::report;

use super::attachment::PublishedPort;
use crate::nft::{Conntrack, Flows, NftError, NftSubnet, is_lasting};

/// Limit of entries that wait until somebody asks for their removal.
const WAITING_MAX: usize = 4096;

/// Connections that are to be removed.
#[derive(Debug, Default)]
pub(super) struct PastFlows {
    /// Held only while some are added or taken out. Take-overs and repairs add the same ones again and again.
    waiting: Mutex<BTreeSet<Flows>>,
    /// Held while they are removed, so that whoever waits for it finds them removed.
    removing: Mutex<()>,
    is_failure_logged: AtomicBool,
}

impl PastFlows {
    /// Adds some. Too many are removed at once.
    pub(super) fn add(&self, flows: Vec<Flows>) {
        self.add_for_later(flows);
        if self.waiting.lock().len() > WAITING_MAX {
            self.remove();
        }
    }

    /// Adds some, for whoever adds or removes the next ones: without waiting for the kernel. They are no more than the published ports of all
    /// containers for each repair, and for each take-over of what a predecessor has attached; whoever repairs removes them next.
    pub(super) fn add_for_later(&self, flows: Vec<Flows>) {
        self.waiting.lock().extend(flows);
    }

    /// Removes all.
    pub(super) fn remove(&self) {
        let _turn = self.removing.lock();
        self.remove_waiting();
    }

    /// Removes all, if some lead to one of these addresses, or may have begun at one of these ports: both get a new owner.
    pub(super) fn remove_before(&self, addresses: &[IpAddr], ports: &[PublishedPort]) {
        // Those that are being removed are no longer among the waiting ones.
        let _turn = self.removing.lock();
        let is_in_the_way = |flows: &Flows| lead_to(flows, addresses) || may_begin_at(flows, ports);
        let is_needed = self.waiting.lock().iter().any(is_in_the_way);
        if is_needed {
            self.remove_waiting();
        }
    }

    /// Removes those that lead to an address of these subnets which nobody has: a process that was killed behind its answer has left them.
    /// Returns whether that was done.
    pub(super) fn remove_abandoned(
        &self,
        subnets: &[NftSubnet],
        in_use: &BTreeSet<IpAddr>,
    ) -> bool {
        let _turn = self.removing.lock();
        self.remove_by(|conntrack| conntrack.remove_abandoned(subnets, in_use))
    }

    fn remove_waiting(&self) {
        let flows = std::mem::take(&mut *self.waiting.lock());
        if !flows.is_empty() {
            let flows: Vec<Flows> = flows.into_iter().collect();
            // What fails is not tried again: it grows with each attachment, and a kernel that cannot list connections never can.
            let _is_done = self.remove_by(|conntrack| conntrack.remove(&flows));
        }
    }

    /// Returns whether it was done.
    fn remove_by(&self, removal: impl Fn(&mut Conntrack) -> Result<usize, NftError>) -> bool {
        let remove = || Conntrack::open().and_then(|mut conntrack| removal(&mut conntrack));
        // A list that was too long for the socket's buffer, or was interrupted, is read once more.
        let removed = remove().or_else(|_| remove());
        if let Err(error) = &removed
            && !self.is_failure_logged.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                error = report(error),
                "connections of UDP and SCTP go on to where their port led before, until they have been silent for some minutes: the kernel cannot list or remove them"
            );
        }
        removed.is_ok()
    }
}

fn lead_to(flows: &Flows, addresses: &[IpAddr]) -> bool {
    match flows {
        Flows::To { container, .. } => addresses.contains(&container.ip()),
        Flows::Of(address) => addresses.contains(address),
        Flows::BeforePublished { .. } => false,
    }
}

/// Returns whether connections may have begun at one of these ports of the node. Of those of an address it is not known where they did.
fn may_begin_at(flows: &Flows, ports: &[PublishedPort]) -> bool {
    let mut ports = ports.iter().filter(|port| is_lasting(port.protocol));
    match flows {
        Flows::To { protocol, port, .. } => {
            ports.any(|one| one.protocol == *protocol && one.port == *port)
        }
        Flows::Of(_) => ports.next().is_some(),
        Flows::BeforePublished { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::Transport;

    /// As take-overs and repairs add the ports of all containers each time.
    #[test]
    fn equal_ones_wait_once() {
        let before = |port| Flows::BeforePublished {
            protocol: Transport::Udp,
            at: None,
            port,
        };
        let to = |container: &str| Flows::To {
            protocol: Transport::Udp,
            port: 53,
            container: container.parse().unwrap(),
        };
        let of = |address: &str| Flows::Of(address.parse().unwrap());
        for (added, expected) in [
            (vec![before(53), before(53)], 1),
            (vec![before(53), before(54), before(53)], 2),
            (vec![to("10.1.0.2:53"), to("10.1.0.2:53")], 1),
            (vec![to("10.1.0.2:53"), to("10.1.0.3:53"), before(53)], 3),
            (vec![of("10.1.0.2"), of("fd00::2"), of("10.1.0.2")], 2),
        ] {
            let past = PastFlows::default();
            for _ in 0..3 {
                past.add_for_later(added.clone());
            }
            assert_eq!(past.waiting.lock().len(), expected, "{added:?}");
        }
    }

    #[test]
    fn only_connections_of_the_port_are_in_the_way_of_its_next_owner() {
        let of = |protocol| PublishedPort {
            protocol,
            at: None,
            port: 53,
            to_port: 5353,
        };
        let [tcp, udp, sctp] = Transport::ALL.map(of);
        let other = PublishedPort { port: 54, ..udp };
        let to = |protocol| Flows::To {
            protocol,
            port: 53,
            container: "10.1.0.2:53".parse().unwrap(),
        };
        let all = Flows::Of("10.1.0.2".parse().unwrap());
        let before = Flows::BeforePublished {
            protocol: Transport::Udp,
            at: None,
            port: 53,
        };
        for (flows, ports, expected) in [
            (to(Transport::Udp), &[udp][..], true),
            (to(Transport::Udp), &[tcp, udp], true),
            (to(Transport::Sctp), &[other, sctp], true),
            (to(Transport::Udp), &[other], false),
            (to(Transport::Udp), &[sctp], false),
            (to(Transport::Udp), &[tcp], false),
            (to(Transport::Udp), &[], false),
            (all, &[sctp], true),
            (all, &[tcp], false),
            // They never led to a container.
            (before, &[udp], false),
        ] {
            assert_eq!(may_begin_at(&flows, ports), expected, "{flows:?} {ports:?}");
        }
    }

    #[test]
    fn only_connections_to_the_address_are_in_the_way_of_its_next_owner() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let to = Flows::To {
            protocol: Transport::Udp,
            port: 53,
            container: "10.1.0.2:53".parse().unwrap(),
        };
        let before = Flows::BeforePublished {
            protocol: Transport::Udp,
            at: Some(address("10.1.0.2")),
            port: 53,
        };
        for (flows, of, expected) in [
            (to, "10.1.0.2", true),
            (to, "10.1.0.3", false),
            (Flows::Of(address("10.1.0.2")), "10.1.0.2", true),
            (before, "10.1.0.2", false),
        ] {
            assert_eq!(lead_to(&flows, &[address(of)]), expected, "{flows:?} {of}");
        }
        assert!(!lead_to(&to, &[]));
    }
}
