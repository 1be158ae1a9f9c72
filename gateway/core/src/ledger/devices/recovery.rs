//! Leases that were there before: put down again when a daemon starts.

use std::collections::BTreeSet;

use super::{Devices, Lease, LeaseState};
use crate::id::LeaseToken;

impl Devices {
    /// Puts down a lease that was there before, whoever else has its slots.
    pub fn record(&mut self, token: LeaseToken, lease: Lease) {
        self.end(token);
        let slots: BTreeSet<String> = lease.slots.iter().flat_map(|slot| self.held_slots(slot)).collect();
        self.insert(token, Lease { slots: slots.into_iter().collect(), ..lease });
    }

    /// Remembers a lease whose sandbox had stopped, unless it is known already. It holds nothing; who has its token may have its slots
    /// again if they are free, as before.
    pub fn recall(&mut self, token: LeaseToken, lease: Lease) {
        if !self.leases.contains_key(&token) {
            self.record(token, Lease { state: LeaseState::Released { grace: false }, ..lease });
            self.remember(&[token]);
        }
    }
}
