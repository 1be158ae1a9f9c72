//! Devices, as seen by one owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::resource_use::resources_in_use;
use super::{DeviceLeases, Leased, ResourceUse};
use crate::device::{DynamicDevice, Inventories, Reservation};
use crate::error::{Error, Result};
use crate::gateway::access::OwnerAccess;
use crate::id::{LeaseToken, SlotId};
use crate::ledger::LeaseState;
use crate::operation::{OperationKind, Subject};
use crate::spec::LeaseClaim;

/// One owner's devices and leases.
#[derive(Debug, Clone, Copy)]
pub struct ScopedDevices<'s> {
    access: &'s OwnerAccess,
    devices: &'s Arc<DeviceLeases>,
}

// === impl ScopedDevices ===

impl<'s> ScopedDevices<'s> {
    pub(in crate::gateway) const fn new(
        access: &'s OwnerAccess,
        devices: &'s Arc<DeviceLeases>,
    ) -> Self {
        Self { access, devices }
    }

    /// This owner's view of the devices, kept up to date: each slot as a device of its own, unhealthy while
    /// another owner holds it. `None` until the hardware was scanned.
    pub fn subscribe(self) -> Inventories {
        self.devices.views.subscribe(self.access.owner())
    }

    /// Returns once the hardware was scanned. Cancel-safe.
    pub async fn scanned(self) {
        let mut changes = self.devices.views.changes();
        while !self.devices.claims.ledger().devices.is_scanned() {
            // The sender lives as long as the gateway.
            let _ = changes.changed().await;
        }
    }

    /// Leases slots of devices to this owner; the lease is on disk when this returns. A request for the same
    /// slots as an unused lease returns that lease. Cancel-safe: the work continues, and a repeated request
    /// returns the same lease.
    ///
    /// # Errors
    /// `InvalidArgument` if `slots` is empty or too long; `NotFound` for an unknown slot;
    /// `FailedPrecondition`, naming the holder if there is one, for a slot that another owner holds, that is
    /// unhealthy, or that exceeds the quota; `Unavailable` before recovery.
    pub async fn lease(self, slots: &[SlotId]) -> Result<Leased> {
        let devices = Arc::clone(self.devices);
        let owner = self.access.owner();
        let slots = slots.to_vec();
        let what = format!("lease of devices to {owner}");
        let operation = self.access.begin(
            OperationKind::LeaseDevices,
            Subject::argument(&some_of(&slots)),
        );
        let work = operation.run(async move { devices.lease(owner, &slots).await });
        self.access.context().run_detached(what, work).await
    }

    /// Returns the reservation of a task with this lease, with the devices as they are now; `None` if the
    /// token is not (or no longer) a lease of this owner. For an orchestrator that has lost the answer of
    /// [`ScopedDevices::lease`] but still has the token.
    ///
    /// # Errors
    /// `Unavailable` before recovery and before the hardware was scanned; `FailedPrecondition` for a device
    /// that is gone or unhealthy.
    pub fn reservation(self, token: LeaseToken) -> Result<Option<Reservation>> {
        self.access.ready()?;
        let ledger = self.devices.claims.ledger();
        let lease = ledger
            .devices
            .get(token)
            .filter(|lease| lease.owner == self.access.owner());
        lease
            .map(|lease| ledger.devices.reserve(&lease.slots))
            .transpose()
    }

    /// Waits until no sandbox holds any of these slots that a newer lease of this owner is waiting for.
    /// Cancel-safe.
    ///
    /// # Errors
    /// `DeadlineExceeded` if that takes longer than `patience`: try again.
    pub async fn wait_until_free(self, slots: &[SlotId], patience: Duration) -> Result<()> {
        let mut changes = self.devices.views.changes();
        let vacated = async {
            while self
                .devices
                .claims
                .ledger()
                .devices
                .has_slot_awaiting_release(self.access.owner(), slots)
            {
                // The sender lives as long as the gateway.
                let _ = changes.changed().await;
            }
        };
        timeout(patience, vacated).await.map_err(|_| {
            let text = format!(
                "what had devices {slots:?} before still runs: try again when it has ended"
            );
            Error::deadline(text)
        })
    }

    /// Reports the slots that the orchestrator's pods have, from its own list: an unused lease that is
    /// missing from several consecutive lists is ended.
    pub async fn reconcile_listed(self, listed: &BTreeSet<SlotId>) {
        let ended = self
            .devices
            .claims
            .ledger()
            .devices
            .end_unlisted(self.access.owner(), listed);
        if !ended.is_empty() {
            tracing::info!(owner = %self.access.owner(), leases = ended.len(), "unused leases ended: their orchestrator does not list them any more");
            self.devices.views.mark_changed();
            self.devices.remove_stored(&ended).await;
        }
    }

    /// Reports the devices that the orchestrator's containers have by dynamic resource allocation, for operators. No
    /// ledger counts them.
    pub fn set_dynamic(self, devices: Vec<DynamicDevice>) {
        self.devices.dynamic.send_if_modified(|known| {
            let is_new = **known != devices[..];
            if is_new {
                *known = devices.into();
            }
            is_new
        });
    }

    /// Reports that the start for which these leases were requested has failed. Those that no sandbox uses
    /// stay reserved for this owner only as long as after the stop of a sandbox (the time for a restart), not
    /// as long as before a first start. They stay on disk during that time.
    pub fn start_failed(self, leases: &[LeaseClaim]) {
        let tokens: Vec<LeaseToken> = leases.iter().map(|claim| claim.token).collect();
        if !self
            .devices
            .claims
            .ledger()
            .devices
            .start_failed(self.access.owner(), &tokens)
            .is_empty()
        {
            self.devices.views.mark_changed();
        }
    }

    /// This owner's unused leases although all of their slots are in the orchestrator's list.
    #[must_use]
    pub fn unused(self, listed: &BTreeSet<SlotId>) -> BTreeSet<LeaseToken> {
        let ledger = self.devices.claims.ledger();
        let own = ledger.devices.leases().filter(|(_, lease)| {
            lease.owner == self.access.owner() && matches!(lease.state, LeaseState::Unbound { .. })
        });
        own.filter(|(_, lease)| lease.slots.iter().all(|slot| listed.contains(slot)))
            .map(|(token, _)| token)
            .collect()
    }

    /// Chooses `size` of the `available` slots of a resource as its provider prefers; `None` if there is no
    /// provider or it has no preference. Bounded by the provider's own timeout. Cancel-safe.
    pub async fn prefer(
        self,
        resource: &str,
        available: &BTreeSet<SlotId>,
        must: &BTreeSet<SlotId>,
        size: usize,
    ) -> Option<Vec<SlotId>> {
        let provider = self.devices.provider.get()?;
        if provider.provides(resource) {
            provider.prefer(resource, available, must, size).await
        } else {
            None
        }
    }

    /// The resources of which tasks of this owner may have devices, each with its use: according to the
    /// leases that still reserve slots, and to the records of its tasks, including those of stopped
    /// sandboxes.
    ///
    /// Tasks in the sandboxes of one group are attempts of one task if they have the same value of
    /// `task_label`. A task without the label is the only attempt.
    #[must_use]
    pub fn resources_in_use(self, task_label: &str) -> BTreeMap<String, ResourceUse> {
        let table = &self.access.context().table;
        let tasks = table.tasks(self.access.owner());
        let sandboxes = table.sandboxes(self.access.owner());
        let ledger = self.devices.claims.ledger();
        resources_in_use(
            &ledger.devices,
            self.access.owner(),
            (&tasks, &sandboxes),
            task_label,
        )
    }
}

/// The first of these slots, for people.
fn some_of(slots: &[SlotId]) -> String {
    const SHOWN: usize = 4;
    let mut text = slots
        .iter()
        .take(SHOWN)
        .map(SlotId::as_str)
        .collect::<Vec<_>>()
        .join(" ");
    if slots.len() > SHOWN {
        text.push_str(&format!(" and {} more", slots.len() - SHOWN));
    }
    text
}
