//! Devices that a [`DeviceProvider`] supplies. The provider is called when a task is created, in one place
//! for all orchestrators: its answer need not be known when devices are leased, and no orchestrator has to
//! carry it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::DeviceLeases;
use crate::device::{DeviceProvider, Reservation};
use crate::error::{Error, Result};
use crate::id::{LeaseToken, SlotId};
use crate::spec::TaskSpec;

/// The provider's answer, requested once.
type CachedReservation = Arc<OnceCell<Reservation>>;

/// The provider and its cached answers.
#[derive(Debug, Default)]
pub(super) struct CachedProvider {
    provider: OnceLock<Arc<dyn DeviceProvider>>,
    /// The answers by lease and resource. A second task with the same lease waits for the answer that the
    /// first one requested.
    reservations: Mutex<BTreeMap<(LeaseToken, String), CachedReservation>>,
}

// === impl CachedProvider ===

impl CachedProvider {
    /// Sets the provider, once.
    pub(super) fn set(&self, provider: Arc<dyn DeviceProvider>) {
        // A gateway has one provider for its whole life.
        let _ = self.provider.set(provider);
    }

    pub(super) fn get(&self) -> Option<&Arc<dyn DeviceProvider>> {
        self.provider.get()
    }

    /// The cell of the answer for a lease. Drops the answers of leases that are not in `known`.
    fn cached_reservation(
        &self,
        known: &BTreeSet<LeaseToken>,
        key: (LeaseToken, String),
    ) -> CachedReservation {
        let mut answers = self.reservations.lock();
        answers.retain(|(token, _), _| known.contains(token));
        Arc::clone(answers.entry(key).or_default())
    }
}

// === impl DeviceLeases ===

impl DeviceLeases {
    /// Adds to a task what the provider supplies for the devices of its leases. Entries of the task itself
    /// take precedence. Unknown leases are skipped; `bind` reports them.
    ///
    /// # Errors
    /// Those of the provider; `Unavailable` for a device that is not in the inventory (yet).
    pub(in crate::gateway) async fn add_provided_devices(&self, spec: &mut TaskSpec) -> Result<()> {
        let Some(provider) = self.provider.get() else {
            return Ok(());
        };
        for claim in &spec.leases.clone() {
            let token = claim.token;
            for (resource, devices) in self.provided_leases(&**provider, spec, token)? {
                let known = self
                    .claims
                    .ledger()
                    .devices
                    .leases()
                    .map(|(token, _)| token)
                    .collect();
                let answer = self
                    .provider
                    .cached_reservation(&known, (token, resource.clone()));
                let allocation = answer.get_or_try_init(|| provider.allocate(&resource, &devices));
                let allocation = allocation.await?.clone();
                provider.prepare(&resource, &devices).await?;
                allocation.add_to(spec);
            }
        }
        Ok(())
    }

    /// The provider's devices in a lease of this task's owner, by resource.
    fn provided_leases(
        &self,
        provider: &dyn DeviceProvider,
        spec: &TaskSpec,
        token: LeaseToken,
    ) -> Result<BTreeMap<String, Vec<SlotId>>> {
        let ledger = self.claims.ledger();
        let mut provided: BTreeMap<String, Vec<SlotId>> = BTreeMap::new();
        let lease = ledger
            .devices
            .get(token)
            .filter(|lease| lease.owner == spec.meta.owner);
        for slot in lease.iter().flat_map(|lease| &lease.slots) {
            let resource = ledger.devices.resource_of(slot).ok_or_else(|| {
                Error::unavailable(format!(
                    "device {slot} is not on this node now: if its vendor's plugin has not registered yet, try again when it has"
                ))
            })?;
            if provider.provides(resource) {
                provided
                    .entry(resource.to_owned())
                    .or_default()
                    .push(slot.clone());
            }
        }
        Ok(provided)
    }
}
