//! The cgroups of sandboxes and tasks: who has claimed which, and the removal of those that are not needed
//! any more.

use std::sync::{Arc, Weak};

use switchyard_cgroup as cgroup;
use tokio_util::task::TaskTracker;

use crate::cleanup::CleanupQueue;
use crate::context::Context;
use crate::live::LiveContainers;

pub(crate) mod busy;
pub(crate) mod pod_cgroups;
mod removal;

use busy::BusyCgroups;
use pod_cgroups::PodCgroups;

/// The cgroups of sandboxes and tasks.
#[derive(Debug)]
pub(crate) struct Cgroups {
    /// This object, for cleanups that outlive the call that queues them.
    pub(crate) weak: Weak<Self>,
    pub(crate) context: Arc<Context>,
    pub(crate) reader: Arc<cgroup::Reader>,
    pub(crate) moves: Arc<cgroup::Moves>,
    /// Those that had processes when their objects were removed.
    pub(crate) busy: BusyCgroups,
    /// The parent cgroups that sandboxes claim.
    pub(crate) pods: Arc<PodCgroups>,
    pub(crate) live: Arc<dyn LiveContainers>,
    pub(crate) cleanup: Arc<CleanupQueue>,
    pub(crate) tracker: TaskTracker,
}

impl Cgroups {
    /// Keeps the kernel ready for moving a process into a cgroup, as a runtime is about to do, until the
    /// returned guard is dropped; see [`cgroup::Moves`].
    pub(crate) fn expect_move(&self) -> cgroup::ExpectedMove {
        let expected = self.moves.expect();
        let moves = Arc::clone(&self.moves);
        self.tracker.spawn_blocking(move || moves.keep_ready());
        expected
    }
}
