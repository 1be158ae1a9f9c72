//! Devices for which a provider, not the node's configuration, determines what a task gets.

use std::collections::BTreeSet;
use std::fmt;

use futures::future::BoxFuture;

use super::Reservation;
use crate::error::Result;
use crate::id::SlotId;

/// Determines what a task with devices of some groups gets, at the moment when the task is created. In the
/// inventory, the devices of these groups have neither nodes nor CDI names. A group is identified by its
/// `resource`.
///
/// All calls are bounded by the provider's own timeouts.
pub trait DeviceProvider: fmt::Debug + Send + Sync {
    /// Returns whether it provides the devices of this resource.
    fn provides(&self, resource: &str) -> bool;

    /// Allocates these devices of a resource for a task. Called once per lease, and again after an error and
    /// after a restart of the daemon: the call may have side effects, and repeating it must be harmless.
    ///
    /// # Errors
    /// The reason why no task can be created with them now: `Unavailable`, `DeadlineExceeded` or
    /// `FailedPrecondition`; it may be called again.
    fn allocate<'a>(
        &'a self,
        resource: &'a str,
        devices: &'a [SlotId],
    ) -> BoxFuture<'a, Result<Reservation>>;

    /// Prepares these devices, allocated earlier, for a task that is about to be created. Called for each
    /// task, including one that replaces an exited task.
    ///
    /// # Errors
    /// The reason why the task cannot be created now, as for [`DeviceProvider::allocate`].
    fn prepare<'a>(&'a self, resource: &'a str, devices: &'a [SlotId])
    -> BoxFuture<'a, Result<()>>;

    /// Chooses the best `size` of the `available` devices, including all of `must`; `None` if it has no
    /// preference.
    fn prefer<'a>(
        &'a self,
        resource: &'a str,
        available: &'a BTreeSet<SlotId>,
        must: &'a BTreeSet<SlotId>,
        size: usize,
    ) -> BoxFuture<'a, Option<Vec<SlotId>>>;
}
