//! The lock of all image records.
//!
//! A removal reads the names and holders of an image, decides, and deletes or updates records; a pull does the
//! same with each name that it gives. containerd has no such transactions, so these run one after the other:
//! of two owners that let go of an image at once, the second has to see that it is the last. It is one lock
//! for all records, because which image a name belongs to, and which names an image has, is what changes. It
//! is held over calls that only touch containerd's database, never over a download, an unpacking or a garbage
//! collection.
//!
//! A task that is created looks its image up under the shared side of the lock. So a removal sees either the
//! task, or the task does not see the image any more.

use std::sync::Arc;
use std::time::Duration;

use switchyard_core::{Error, Result};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Limit for which the holders of the lock are waited for. Each of their calls has a limit of its own.
const LIMIT: Duration = Duration::from_secs(120);

/// Held while an image is looked up.
pub(super) type LookUpGuard = OwnedRwLockReadGuard<()>;
/// Held while names and holders are changed.
pub(super) type ChangeGuard = OwnedRwLockWriteGuard<()>;

/// The lock. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecordLock(Arc<RwLock<()>>);

impl RecordLock {
    /// Waits until no records are changed. `what` names the purpose, for the error. Cancel-safe.
    ///
    /// # Errors
    /// `DeadlineExceeded` if changes of others take too long.
    pub(super) async fn look_up(&self, what: &str) -> Result<LookUpGuard> {
        within_limit(what, Arc::clone(&self.0).read_owned()).await
    }

    /// Waits until nobody else looks an image up or changes records, in the order of the calls. `what` names
    /// the purpose, for the error. Cancel-safe.
    ///
    /// # Errors
    /// `DeadlineExceeded` if others take too long.
    pub(super) async fn change(&self, what: &str) -> Result<ChangeGuard> {
        within_limit(what, Arc::clone(&self.0).write_owned()).await
    }
}

async fn within_limit<G>(what: &str, guard: impl Future<Output = G>) -> Result<G> {
    let late = |_| {
        Error::deadline(format!(
            "{what}: other changes of images have taken longer than {LIMIT:?}"
        ))
    };
    tokio::time::timeout(LIMIT, guard).await.map_err(late)
}
