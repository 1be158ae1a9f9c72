//! Each owner's view of the devices.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use super::DeviceLeases;
use crate::device::{Inventories, Inventory};
use crate::id::Owner;
use crate::ledger::View;

/// Limit for the views of other owners to wait until a new lease is on disk.
const VIEWS_WAIT: Duration = Duration::from_millis(5);

/// The view of the devices of each owner that has a subscriber. The views of others are not built: they copy
/// what other owners hold, and before recovery everything.
#[derive(Debug, Default)]
pub(super) struct DeviceViews {
    /// The number of changes; subscribers wait on it.
    changes: watch::Sender<u64>,
    by_owner: Mutex<BTreeMap<Owner, watch::Sender<Option<Arc<Inventory>>>>>,
}

// === impl DeviceViews ===

impl DeviceViews {
    /// Signals a change, so that views are rebuilt and waiters check again.
    pub(super) fn mark_changed(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Signals a change when `work` has ended, so that no view is rebuilt beside it while its caller waits;
    /// after [`VIEWS_WAIT`] if it takes longer, for example on a disk that hangs.
    pub(super) async fn mark_changed_after<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let ended = timeout(VIEWS_WAIT, &mut work).await;
        self.mark_changed();
        match ended {
            Ok(output) => output,
            Err(_) => work.await,
        }
    }

    /// The changes from now on, for a waiter.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The owners with subscribers. The views of others are dropped.
    fn owners(&self) -> Vec<Owner> {
        let mut views = self.by_owner.lock();
        views.retain(|_, view| view.receiver_count() > 0);
        views.keys().copied().collect()
    }

    pub(super) fn subscribe(&self, owner: Owner) -> Inventories {
        let mut views = self.by_owner.lock();
        // A view that nobody has followed may be old, so it is built again. If one is being published right
        // now, the new follower may see that one first.
        views.retain(|_, view| view.receiver_count() > 0);
        let view = views
            .entry(owner)
            .or_insert_with(|| watch::Sender::new(None))
            .subscribe();
        drop(views);
        self.mark_changed();
        view
    }
}

// === impl DeviceLeases ===

impl DeviceLeases {
    /// Rebuilds the views whenever something has changed. Does not return.
    pub(super) async fn publish_views(&self) {
        let views = &self.views;
        let mut changes = views.changes();
        changes.mark_changed();
        let mut made: BTreeMap<Owner, View> = BTreeMap::new();
        // The sender lives as long as the gateway.
        while changes.changed().await.is_ok() {
            // Views are built from a copy, so that lease requests do not wait for them.
            let outlook = Arc::new(self.claims.ledger().devices.snapshot());
            let owners = views.owners();
            made.retain(|owner, _| owners.contains(owner));
            for owner in owners {
                let view = made.entry(owner).or_default();
                *view = outlook.view(owner, view);
                let now = &view.inventory;
                let views = views.by_owner.lock();
                if let Some(view) = views.get(&owner) {
                    view.send_if_modified(|last| {
                        // An unchanged view is the same `Arc` as before, so comparing the addresses is
                        // enough.
                        let is_new =
                            last.as_ref().map(Arc::as_ptr) != now.as_ref().map(Arc::as_ptr);
                        last.clone_from(now);
                        is_new
                    });
                }
            }
        }
    }
}
