//! Device leases: granted, bound to sandboxes, and ended.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use super::claims::Claims;
use super::context::Context;
use crate::device::{DeviceProvider, DynamicDevice, Inventories, Reservation};
use crate::error::{Error, Result};
use crate::id::{LeaseToken, Owner, SandboxId, SlotId};
use crate::keyed_lock::{KeyedLock, LockInUse};
use crate::ledger::{LeaseState, LeaseStore, StoredLease};
use crate::operation::{Caller, OperationKind, Subject};
use crate::state::TaskState;

mod bind;
mod expiry;
mod provider;
mod recovery;
mod resource_use;
mod scoped;
mod views;

pub(super) use bind::BoundClaims;
pub use resource_use::ResourceUse;
pub use scoped::ScopedDevices;

use provider::CachedProvider;
use views::DeviceViews;

/// A granted lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Leased {
    /// The token with which a task is created: see [`TaskSpec::leases`](crate::spec::TaskSpec::leases).
    pub token: LeaseToken,
    /// The environment, nodes and mounts that a task created with it gets.
    pub reservation: Reservation,
}

/// The leases of devices, and what owners see of the devices.
pub struct DeviceLeases {
    context: Arc<Context>,
    claims: Arc<Claims>,
    /// Persistent store of the leases that no sandbox uses yet.
    leases: Arc<dyn LeaseStore>,
    /// Serialises the lease requests of one owner: a repeated request is answered only after the first lease
    /// is on disk.
    lease_locks: KeyedLock<Owner>,
    views: DeviceViews,
    provider: CachedProvider,
    /// Devices that an orchestrator's containers have beside those of the ledger.
    dynamic: watch::Sender<Arc<[DynamicDevice]>>,
}

impl fmt::Debug for DeviceLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceLeases")
            .field("claims", &self.claims)
            .finish_non_exhaustive()
    }
}

// === impl DeviceLeases ===

impl DeviceLeases {
    /// Without leases.
    pub(super) fn new(
        context: Arc<Context>,
        claims: Arc<Claims>,
        leases: Arc<dyn LeaseStore>,
    ) -> Self {
        Self {
            context,
            claims,
            leases,
            lease_locks: KeyedLock::default(),
            views: DeviceViews::default(),
            provider: CachedProvider::default(),
            dynamic: watch::Sender::new(Arc::default()),
        }
    }

    /// The devices that an orchestrator's containers have by dynamic resource allocation, as it has reported them last.
    #[must_use]
    pub fn dynamic(&self) -> Arc<[DynamicDevice]> {
        Arc::clone(&self.dynamic.borrow())
    }

    /// The owners whose requests for leases are served at this moment.
    pub(super) fn locks_in_use(&self) -> Vec<LockInUse> {
        self.lease_locks.in_use("lease_locks")
    }

    /// Returns whether the leases of before the restart are known, so that devices can be leased.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.claims.ledger().devices.is_recovered()
    }

    /// Returns whether no device is given out because an object that cannot be read may hold any.
    #[must_use]
    pub fn is_withheld(&self) -> bool {
        self.claims.ledger().devices.is_withheld()
    }

    /// Sets the provider of devices. Call it at most once, before recovery.
    pub fn set_provider(&self, provider: Arc<dyn DeviceProvider>) {
        self.provider.set(provider);
    }

    /// Follows the inventory `hardware` and updates each owner's view, until the gateway shuts down. Call it
    /// once. No view has a healthy device before recovery.
    pub fn watch(self: &Arc<Self>, mut hardware: Inventories) {
        let devices = Arc::clone(self);
        self.context.watchers.spawn(async move {
            devices
                .context
                .unwatched
                .run_until_cancelled(devices.publish_views())
                .await;
        });
        let devices = Arc::clone(self);
        self.context.watchers.spawn(async move {
            let context = &devices.context;
            loop {
                let seen = hardware.borrow_and_update().clone();
                if let Some(seen) = seen {
                    devices.claims.ledger().devices.set_inventory(&seen);
                    devices.views.mark_changed();
                }
                tokio::select! {
                    changed = hardware.changed() => if changed.is_err() { return },
                    () = context.unwatched.cancelled() => return,
                }
            }
        });
    }

    /// Ends a lease at an operator's request. Possible if no sandbox has the lease, or if all tasks of the
    /// sandbox that has it have exited.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if a sandbox with a task that has not exited has it.
    pub async fn release_lease(&self, token: LeaseToken) -> Result<()> {
        let subject = Subject::argument(&token.to_string());
        let registry = &self.context.registry;
        let operation = registry.begin(
            OperationKind::ReleaseLease,
            None,
            Caller::current(),
            subject,
        );
        operation.run(self.release_unused_lease(token)).await
    }

    async fn release_unused_lease(&self, token: LeaseToken) -> Result<()> {
        {
            let mut ledger = self.claims.ledger();
            let lease = ledger
                .devices
                .get(token)
                .ok_or_else(|| Error::not_found(format!("lease {token} does not exist")))?;
            match &lease.state {
                LeaseState::Bound { sandbox, name } if !self.has_ended(*sandbox) => {
                    let text = format!(
                        "lease {token} is in use by {name} of {}: it ends with that",
                        lease.owner
                    );
                    return Err(Error::failed_precondition(text));
                }
                LeaseState::Bound { .. } => ledger.devices.unbind_stopped(token),
                LeaseState::Unbound { .. } | LeaseState::Released { .. } => {
                    ledger.devices.drop_unused(token);
                }
            }
        }
        tracing::info!(lease = %token, "an operator ended a device lease");
        self.views.mark_changed();
        self.remove_stored(&[token]).await;
        Ok(())
    }

    /// Returns whether a sandbox has tasks and all of them have exited: while its orchestrator is
    /// unavailable, nothing stops such a sandbox.
    fn has_ended(&self, sandbox: SandboxId) -> bool {
        let tasks = self.context.table.tasks_of(sandbox);
        !tasks.is_empty()
            && tasks
                .iter()
                .all(|task| matches!(task.state, TaskState::Exited { .. }))
    }

    async fn lease(&self, owner: Owner, slots: &[SlotId]) -> Result<Leased> {
        self.context.ready()?;
        let _guard = self.lease_locks.lock(owner).await;
        let granted = self
            .claims
            .ledger()
            .devices
            .lease(owner, slots, LeaseToken::random());
        let granted = granted.map_err(|refusal| self.claims.record_refusal(refusal))?;
        let token = granted.token;
        let stored = StoredLease {
            token,
            owner,
            slots: granted.lease.slots,
        };
        let store = async {
            // Removed before the new lease is written, so that overlapping leases cannot both come back after
            // a power failure.
            self.remove_stored(&granted.ended).await;
            // An existing lease is written as well: it may have been unbound from a task, and then it is not
            // on disk.
            self.leases.put(&stored).await
        };
        if let Err(error) = self.views.mark_changed_after(store).await {
            if granted.is_new {
                self.claims.ledger().devices.drop_unused(token);
                self.views.mark_changed();
                self.remove_stored(&[token]).await;
            }
            return Err(error.context(format!("lease devices {slots:?}")));
        }
        Ok(Leased {
            token,
            reservation: granted.reservation,
        })
    }

    /// Releases everything that a stopped sandbox holds.
    pub(super) async fn release(&self, id: SandboxId) {
        let released = self.claims.release_sandbox(id);
        if !released.is_empty() {
            self.views.mark_changed();
            self.remove_stored(&released).await;
        }
    }

    async fn remove_stored(&self, tokens: &[LeaseToken]) {
        if tokens.is_empty() {
            return;
        }
        if let Err(error) = self.leases.remove(tokens).await {
            tracing::warn!(
                error = error.report(),
                "cannot remove ended leases from disk: the next recovery does"
            );
        }
    }
}
