//! Recovery of the ledger: from the records of sandboxes and tasks, and from the stored leases.

use std::sync::Arc;
use std::time::Duration;

use super::DeviceLeases;
use crate::backend::Recovered;
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind};
use crate::ledger::{Lease, LeaseState, StoredLease};

/// The first and the longest pause between attempts to read the stored leases.
const READ_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

impl DeviceLeases {
    /// Records the claims of all recovered objects and the stored leases.
    pub(in crate::gateway) async fn recover(self: &Arc<Self>, recovered: &Recovered) {
        let stored = self.leases.load().await;
        let in_use = self.claims.recover(recovered);
        match stored {
            Ok(stored) => {
                self.add_stored(stored);
                // A task has these leases: a predecessor was killed after it created the task and before it removed
                // them from the store.
                self.remove_stored(&in_use).await;
            }
            Err(error) if is_final(&error) => report_unreadable(&error),
            Err(error) => {
                tracing::warn!(
                    error = error.report(),
                    "cannot read the device leases yet: no device is leased until they can be read"
                );
                let devices = Arc::clone(self);
                self.context.watchers.spawn(async move {
                    let unwatched = devices.context.unwatched.clone();
                    unwatched
                        .run_until_cancelled(devices.read_stored_later())
                        .await;
                });
            }
        }
    }

    /// Reads the stored leases again and again, until they can be read or never will be. A disk may be late while the
    /// node boots, or fail for a moment. Requests are served meanwhile, and no device is leased. Cancel-safe.
    async fn read_stored_later(&self) {
        let mut backoff = Backoff::new(READ_PAUSES.0, READ_PAUSES.1);
        loop {
            backoff.wait().await;
            match self.leases.load().await {
                Ok(stored) => {
                    // Those that tasks have stay in the store until they are released, or until the next recovery: a task
                    // may be removed just now, and its sandbox keep the lease.
                    self.add_stored(stored);
                    tracing::info!(
                        "the device leases can be read again: devices are leased from now on"
                    );
                    return;
                }
                Err(error) if is_final(&error) => return report_unreadable(&error),
                Err(error) => tracing::debug!(
                    error = error.report(),
                    "still cannot read the device leases"
                ),
            }
        }
    }

    /// Adds the stored leases that nobody has; devices can be leased from then on.
    fn add_stored(&self, stored: Vec<StoredLease>) {
        {
            let mut ledger = self.claims.ledger();
            for StoredLease {
                token,
                owner,
                slots,
            } in stored
            {
                let known = ledger.devices.get(token).map(|lease| &lease.state);
                // A remembered token has no slots: the store knows more of it.
                if matches!(known, None | Some(LeaseState::Released { grace: false })) {
                    ledger.devices.record(token, Lease::new(owner, slots));
                }
            }
            ledger.devices.set_recovered();
        }
        self.views.mark_changed();
    }
}

/// Returns whether the stored leases can never be read as they are: see [`LeaseStore::load`].
///
/// [`LeaseStore::load`]: crate::ledger::LeaseStore::load
fn is_final(error: &Error) -> bool {
    error.kind() == ErrorKind::FailedPrecondition
}

fn report_unreadable(error: &Error) {
    tracing::error!(
        error = error.report(),
        "cannot read the device leases: no device is leased until the daemon is restarted"
    );
}
