//! Connections that are removed behind the answer, since the kernel looks at all of them for it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use switchyard_linux::report;

use crate::nft::{Conntrack, Flows};

/// How many wait at most until somebody asks for their removal.
const WAITING_MAX: usize = 4096;

/// What is to be removed.
#[derive(Debug, Default)]
pub(super) struct PastFlows {
    /// Held while they are removed, so that whoever waits for it finds them removed.
    waiting: Mutex<Vec<Flows>>,
    is_failure_logged: AtomicBool,
}

impl PastFlows {
    /// Adds some. Too many are removed at once.
    pub(super) fn add(&self, flows: Vec<Flows>) {
        let mut waiting = self.waiting.lock();
        waiting.extend(flows);
        if waiting.len() > WAITING_MAX {
            self.remove_locked(&mut waiting);
        }
    }

    /// Removes all.
    pub(super) fn remove(&self) {
        self.remove_locked(&mut self.waiting.lock());
    }

    /// Removes all, if some lead to one of these addresses, which get a new owner.
    pub(super) fn leave(&self, addresses: &[IpAddr]) {
        let mut waiting = self.waiting.lock();
        if waiting.iter().any(|flows| lead_to(flows, addresses)) {
            self.remove_locked(&mut waiting);
        }
    }

    fn remove_locked(&self, waiting: &mut Vec<Flows>) {
        if waiting.is_empty() {
            return;
        }
        let removed = Conntrack::open().and_then(|mut conntrack| conntrack.remove(waiting));
        waiting.clear();
        if let Err(error) = removed
            && !self.is_failure_logged.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                error = report(&error),
                "connections of UDP and SCTP go on to where their port led before, until they have been silent for some minutes: the kernel does not list connections"
            );
        }
    }
}

fn lead_to(flows: &Flows, addresses: &[IpAddr]) -> bool {
    match flows {
        Flows::To { container, .. } => addresses.contains(&container.ip()),
        Flows::Of(address) => addresses.contains(address),
        Flows::BeforePublished { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::Transport;

    #[test]
    fn only_connections_to_the_address_are_in_the_way_of_its_next_owner() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let to = Flows::To {
            protocol: Transport::Udp,
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
