//! Devices of which somebody else than the node's configuration knows what a task gets that has them.

use std::collections::BTreeSet;
use std::fmt;

use async_trait::async_trait;

use super::Reservation;
use crate::error::Result;

/// Says what a task gets that has devices of some groups, at the moment when a task is made with them. Those groups are in the inventory
/// with devices that have neither nodes nor names of the Container Device Interface. A group is named by its `resource`.
///
/// All calls end within a time of the provider's own.
#[async_trait]
pub trait DeviceProvider: fmt::Debug + Send + Sync {
    /// Whether the devices of this resource are its own.
    fn provides(&self, resource: &str) -> bool;

    /// What a task gets that has these devices of a resource. The gateway asks once for each lease, and again after an error and after a
    /// restart of the daemon: the answer may have effects, and those of a second question must do no harm.
    ///
    /// # Errors
    /// Why nothing can be made with them now: `Unavailable`, `DeadlineExceeded` or `FailedPrecondition`, after which it may be asked again.
    async fn allocate(&self, resource: &str, devices: &[String]) -> Result<Reservation>;

    /// A task is about to be made with these devices, which were allocated before: called for each task, also for one in the place of one
    /// that has ended.
    ///
    /// # Errors
    /// Why it cannot be made now, as for [`DeviceProvider::allocate`].
    async fn prepare(&self, resource: &str, devices: &[String]) -> Result<()>;

    /// Which `size` of the `available` devices would do best, `must` among them; `None` if it does not say.
    async fn prefer(
        &self,
        resource: &str,
        available: &BTreeSet<String>,
        must: &BTreeSet<String>,
        size: usize,
    ) -> Option<Vec<String>>;
}
