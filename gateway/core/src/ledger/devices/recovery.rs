//! Recording leases of before a restart of the daemon.

use std::collections::BTreeSet;

use super::{Devices, Lease, LeaseState};
use crate::id::{LeaseToken, SlotId};

impl Devices {
    /// Records an existing lease without checks; other leases of its slots are kept.
    pub fn record(&mut self, token: LeaseToken, lease: Lease) {
        self.end(token);
        let slots: BTreeSet<SlotId> = lease
            .slots
            .iter()
            .flat_map(|slot| self.held_slots(slot))
            .collect();
        self.insert(
            token,
            Lease {
                slots: slots.into_iter().collect(),
                ..lease
            },
        );
    }

    /// Remembers a lease whose sandbox has stopped, unless it is known already. It reserves nothing; a
    /// request with its token may get its slots again if they are free.
    pub fn recall(&mut self, token: LeaseToken, lease: Lease) {
        if !self.leases.contains_key(&token) {
            self.record(
                token,
                Lease {
                    state: LeaseState::Released { grace: false },
                    ..lease
                },
            );
            self.remember(&[token]);
        }
    }
}
