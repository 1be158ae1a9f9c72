//! Ending unused leases: their orchestrator does not list them any more, their start has failed, or an
//! operator ends them.

use std::collections::BTreeSet;

use super::{Devices, Lease, LeaseState, MISSES};
use crate::id::{LeaseToken, Owner, SlotId};

impl Devices {
    /// Ends the unbound leases of an owner that its orchestrator does not have any more: `listed` are the
    /// slots that its pods have. A listed lease does not age. The tokens of ended leases are remembered,
    /// because some lists leave out containers that are still to be created.
    pub fn end_unlisted(&mut self, owner: Owner, listed: &BTreeSet<SlotId>) -> Vec<LeaseToken> {
        let mut missing = Vec::new();
        for (token, lease) in self
            .leases
            .iter_mut()
            .filter(|(_, lease)| lease.owner == owner)
        {
            let LeaseState::Unbound { contestable } = lease.state else {
                lease.misses = 0;
                continue;
            };
            if lease.slots.iter().all(|slot| listed.contains(slot)) {
                lease.set_state(LeaseState::Unbound { contestable });
                continue;
            }
            lease.misses += 1;
            if lease.misses >= MISSES {
                lease.set_state(LeaseState::Released { grace: false });
                missing.push(*token);
            }
        }
        self.remember(&missing);
        missing
    }

    /// The start for which these leases were requested has failed: unbound ones get the grace period, as
    /// after the stop of a sandbox. Returns these.
    pub fn start_failed(&mut self, owner: Owner, tokens: &[LeaseToken]) -> Vec<LeaseToken> {
        let unused = |lease: &&mut Lease| {
            lease.owner == owner && matches!(lease.state, LeaseState::Unbound { .. })
        };
        let mut given_up = Vec::new();
        for token in tokens {
            if let Some(lease) = self.leases.get_mut(token).filter(unused) {
                lease.set_state(LeaseState::Released { grace: true });
                given_up.push(*token);
            }
        }
        given_up
    }

    /// Unbinds a lease from a sandbox in which nothing runs. Its slots are free, and its token is remembered.
    pub fn unbind_stopped(&mut self, token: LeaseToken) {
        if let Some(lease) = self
            .leases
            .get_mut(&token)
            .filter(|lease| matches!(lease.state, LeaseState::Bound { .. }))
        {
            lease.set_state(LeaseState::Released { grace: false });
            self.remember(&[token]);
        }
    }

    /// Ends a lease that is bound to no sandbox. Returns whether there was one.
    pub fn drop_unused(&mut self, token: LeaseToken) -> bool {
        let unused = self
            .leases
            .get(&token)
            .is_some_and(|lease| !matches!(lease.state, LeaseState::Bound { .. }));
        if unused {
            self.end(token);
        }
        unused
    }
}
