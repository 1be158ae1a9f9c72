//! Recovery at start-up: what a predecessor left in containerd and on disk is adopted if it is complete,
//! finished if that is possible, and removed otherwise.
//!
//! All of it is found through the container objects and through names that are derived from their ids. A
//! container object that cannot be read is reported and left alone, because a newer version may have written
//! it: what its identity says that it holds is given to nobody.
//!
//! Requests wait until the state of each object is known, and for nothing else. What has to be removed is
//! listed before requests are served, so that nothing that a request creates can be on the list, and is
//! removed afterwards.
//!
//! Recovery fails, and is tried again, only if it cannot find out what runs. What it would remove and cannot, as on a
//! full or read-only disk, is logged and left to the cleanup queue: a node whose disk is full must serve the requests
//! that free space.
//!
//! ```text
//! run          containerd's objects ─► inventory ─► found (records) ─► given_up (two with one name)
//!               ─► process_query (what runs)
//!               └─► decide: the fate of each object, without I/O ─► run: adopted, finished, or on the plan
//! plan         what remains to be done while requests are served: cleanups, logs, garbage
//! starts       a start that a predecessor was killed in
//! garbage      what belongs to no object any more: leases, views, directories, downloads, logs
//! lost_layers  snapshots that a power cut has emptied
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use switchyard_core::id::TaskId;
use switchyard_logkeeper as logkeeper;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cgroups::Cgroups;
use crate::cleanup::CleanupQueue;
use crate::client::Client;
use crate::client::features::ContainerdFeatures;
use crate::client::health::Health;
use crate::context::Context;
use crate::exec::Execs;
use crate::network::Network;
use crate::predecessor_calls::PredecessorCalls;
use crate::processes::Processes;
use crate::sandbox::Sandboxes;
use crate::shims::Shims;
use crate::task::Tasks;
use crate::task::attach::Attachments;
use crate::task::cgroups::TaskCgroups;
use crate::task::checkpoint::Checkpoints;
use crate::task::exit::Exits;
use crate::task::storage::Storage;

mod claims;
mod decide;
mod found;
mod garbage;
mod given_up;
mod inventory;
mod lost_layers;
mod lost_name;
mod outdated;
mod plan;
mod process_query;
mod run;
mod starts;
mod timings;

/// Maximum number of objects that are recovered concurrently.
const CONCURRENCY: usize = 16;

/// Recovers what a predecessor left.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) health: Health,
    pub(crate) features: ContainerdFeatures,
    pub(crate) logkeeper: Arc<logkeeper::Client>,
    pub(crate) network: Arc<Network>,
    pub(crate) cgroups: Arc<Cgroups>,
    pub(crate) shims: Arc<Shims>,
    pub(crate) predecessor_calls: Arc<PredecessorCalls>,
    pub(crate) processes: Arc<Processes>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) task_cgroups: Arc<TaskCgroups>,
    pub(crate) exits: Arc<Exits>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) attachments: Arc<Attachments>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) execs: Arc<Execs>,
    pub(crate) cleanup: Arc<CleanupQueue>,
    pub(crate) tracker: TaskTracker,
    /// Tasks whose exit no predecessor has persisted, from all attempts: one that fails may have persisted some.
    pub(crate) found_exits: Mutex<BTreeSet<TaskId>>,
    /// Cancelled when recovery is done; used as a one-shot signal.
    pub(crate) recovered: CancellationToken,
}
