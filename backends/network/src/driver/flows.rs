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
    /// Held only while some are added or taken out.
    waiting: Mutex<Vec<Flows>>,
    /// Held while they are removed, so that whoever waits for it finds them removed.
    removing: Mutex<()>,
    is_failure_logged: AtomicBool,
}

impl PastFlows {
    /// Adds some. Too many are removed at once.
    pub(super) fn add(&self, flows: Vec<Flows>) {
        let too_many = {
            let mut waiting = self.waiting.lock();
            waiting.extend(flows);
            waiting.len() > WAITING_MAX
        };
        if too_many {
            self.remove();
        }
    }

    /// Removes all.
    pub(super) fn remove(&self) {
        let _turn = self.removing.lock();
        self.remove_waiting();
    }

    /// Removes all, if some lead to one of these addresses, which get a new owner.
    pub(super) fn remove_before(&self, addresses: &[IpAddr]) {
        // Those that are being removed are no longer among the waiting ones.
        let _turn = self.removing.lock();
        let lead_there = |flows: &Flows| lead_to(flows, addresses);
        let is_needed = self.waiting.lock().iter().any(lead_there);
        if is_needed {
            self.remove_waiting();
        }
    }

    fn remove_waiting(&self) {
        let flows = std::mem::take(&mut *self.waiting.lock());
        if flows.is_empty() {
            return;
        }
        let remove = || Conntrack::open().and_then(|mut conntrack| conntrack.remove(&flows));
        // A list that was too long for the socket's buffer, or was interrupted, is read once more.
        let removed = remove().or_else(|_| remove());
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
