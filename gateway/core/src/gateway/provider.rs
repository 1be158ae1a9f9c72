//! What tasks get that have devices of a provider. It is asked when a task is made, for all orchestrators in one place: what it answers
//! has neither to be foreseen when devices are leased, nor to be carried by an orchestrator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::OnceCell;

use super::{Gateway, Scope};
use crate::device::{DeviceProvider, Reservation};
use crate::error::{Error, Result};
use crate::id::LeaseToken;
use crate::spec::TaskSpec;

/// What the provider answers, once.
type CachedReservation = Arc<OnceCell<Reservation>>;

/// The provider, and what it has answered.
#[derive(Debug, Default)]
pub(super) struct CachedProvider {
    provider: OnceLock<Arc<dyn DeviceProvider>>,
    /// What it has answered, by lease and resource. A second task with a lease waits for the answer that the first has asked for.
    reservations: Mutex<BTreeMap<(LeaseToken, String), CachedReservation>>,
}

// === impl Provided ===

impl CachedProvider {
    /// Where the answer for a lease is, or will be. Those of leases that are over are forgotten: `known` are the others.
    fn cached_reservation(
        &self,
        known: &BTreeSet<LeaseToken>,
        key: (LeaseToken, String),
    ) -> CachedReservation {
        let mut answers = self.reservations.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|(token, _), _| known.contains(token));
        Arc::clone(answers.entry(key).or_default())
    }
}

// === impl Scope ===

impl Scope {
    /// Which `size` of the `available` slots of a resource would do best, by its provider; `None` if there is none, or it does not say.
    /// Ends within a time of the provider's own. Cancel-safe.
    pub async fn prefer(
        &self,
        resource: &str,
        available: &BTreeSet<String>,
        must: &BTreeSet<String>,
        size: usize,
    ) -> Option<Vec<String>> {
        let provider = self.gateway.shared.provider.provider.get()?;
        if provider.provides(resource) {
            provider.prefer(resource, available, must, size).await
        } else {
            None
        }
    }
}

// === impl Gateway ===

impl Gateway {
    /// Has a provider say what tasks get that have devices of its groups. Call it once at most, before recovery.
    pub fn set_device_provider(&self, provider: Arc<dyn DeviceProvider>) {
        // There is one provider in the life of a gateway.
        let _ = self.shared.provider.provider.set(provider);
    }

    /// Adds what the provider gives a task that has devices of its groups. What the task has at the same place by itself stays. Leases that
    /// are not known are left to those who bind them.
    ///
    /// # Errors
    /// Those of the provider; `Unavailable` for a device that nobody knows (yet).
    pub(super) async fn add_provided_devices(&self, spec: &mut TaskSpec) -> Result<()> {
        let Some(provider) = self.shared.provider.provider.get() else { return Ok(()) };
        for claim in &spec.leases.clone() {
            let token = claim.token;
            for (resource, devices) in self.provided_leases(&**provider, spec, token)? {
                let known = self.ledger().devices.leases().map(|(token, _)| token).collect();
                let answer = self.shared.provider.cached_reservation(&known, (token, resource.clone()));
                let asked = answer.get_or_try_init(|| provider.allocate(&resource, &devices));
                let given = asked.await?.clone();
                provider.prepare(&resource, &devices).await?;
                given.add_to(spec);
            }
        }
        Ok(())
    }

    /// The devices of a provider that a lease of this task's owner has, by resource.
    fn provided_leases(
        &self,
        provider: &dyn DeviceProvider,
        spec: &TaskSpec,
        token: LeaseToken,
    ) -> Result<BTreeMap<String, Vec<String>>> {
        let ledger = self.ledger();
        let mut provided: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let lease = ledger.devices.get(token).filter(|lease| lease.owner == spec.meta.owner);
        for slot in lease.iter().flat_map(|lease| &lease.slots) {
            let resource = ledger.devices.resource_of(slot).ok_or_else(|| {
                Error::unavailable(format!(
                    "device {slot} is not on this node now: if its vendor's plugin has not registered yet, try again when it has"
                ))
            })?;
            if provider.provides(resource) {
                provided.entry(resource.to_owned()).or_default().push(slot.clone());
            }
        }
        Ok(provided)
    }
}
