//! Each owner's view of the devices.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::device::{Inventories, Inventory};
use crate::id::Owner;

/// How long the views of other owners wait for a new lease to be on disk.
const VIEWS_WAIT: Duration = Duration::from_millis(5);

/// The view of the devices of each owner that has a subscriber. The views of others are not built: they copy
/// what other owners hold, and before recovery everything.
#[derive(Debug, Default)]
pub(super) struct DeviceViews {
    /// The number of changes; subscribers wait on it.
    pub(super) changes: watch::Sender<u64>,
    pub(super) by_owner: Mutex<BTreeMap<Owner, watch::Sender<Option<Arc<Inventory>>>>>,
}

// === impl DeviceViews ===

impl DeviceViews {
    /// Signals a change, so that views are rebuilt and waiters check again.
    pub(super) fn mark_changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
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

    /// The owners with subscribers. The views of others are dropped.
    pub(super) fn owners(&self) -> Vec<Owner> {
        let mut views = self.by_owner.lock();
        views.retain(|_, view| view.receiver_count() > 0);
        views.keys().copied().collect()
    }

    pub(super) fn subscribe(&self, owner: Owner) -> Inventories {
        let mut views = self.by_owner.lock();
        // A view that nobody has followed may be old, so it is built anew. If one is being published right
        // now, the new follower may see that one first.
        views.retain(|_, view| view.receiver_count() > 0);
        let view = views.entry(owner).or_insert_with(|| watch::Sender::new(None)).subscribe();
        drop(views);
        self.mark_changed();
        view
    }
}
