//! Shims: finding, calling and terminating them, and what they leave on disk.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;

use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::{ErrorKind, Result};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Response, Status};

use crate::base::trees::Trees;
use crate::cgroups::Cgroups;
use crate::client::contact::Contact;
use crate::client::health::Health;
use crate::client::{Client, call};
use crate::context::Context;
use crate::live::LiveContainers;

pub(crate) mod activity;
pub(crate) mod bundle;
pub(crate) mod creates_in_flight;
pub(crate) mod direct;
mod orphans;
pub(crate) mod pod_shims;
pub(crate) mod predecessor_call_ids;
pub(crate) mod process_scans;
pub(crate) mod processes;
mod scan_schedule;
pub(crate) mod unresponsive;

use creates_in_flight::CreatesInFlight;
use direct::{ShimAddress, ShimClient};
use pod_shims::PodShims;
use predecessor_call_ids::PredecessorCallIds;
use process_scans::{ChildrenLook, SharedScans, ShimScan};
use processes::{ShimProcess, own_shims};
use unresponsive::UnresponsiveShims;

/// The shims of our containerd.
#[derive(Debug)]
pub(crate) struct Shims {
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) health: Health,
    pub(crate) trees: Arc<Trees>,
    pub(crate) cgroups: Arc<Cgroups>,
    pub(crate) live: Arc<dyn LiveContainers>,
    pub(crate) creates_in_flight: CreatesInFlight,
    pub(crate) predecessor_calls: PredecessorCallIds,
    pub(crate) unresponsive: UnresponsiveShims,
    /// Those that the tasks of a pod share.
    pub(crate) pods: PodShims,
    /// Cancelled when recovery is done; used as a one-shot signal.
    pub(crate) recovered: CancellationToken,
    /// The ends of orphan shims that a scan has begun.
    pub(crate) ends: TaskTracker,
    /// The thread that lists the directories of bundles, whose disk may hang.
    pub(crate) files: BlockingPool,
    /// The scans of all processes.
    pub(crate) scans: Arc<SharedScans<ShimScan>>,
    /// The looks at the children of containerd and of the shims.
    pub(crate) looks: SharedScans<Option<ChildrenLook>>,
}

impl Shims {
    /// Calls a task's shim through containerd, with the shim timeout, and records whether it answers.
    pub(crate) async fn call_with_shim_timeout<T>(
        &self,
        id: &str,
        what: &str,
        request: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T> {
        let answer = call(
            what,
            self.context.settings().containerd.shim_timeout(),
            request,
        )
        .await;
        match &answer {
            Ok(_) => self.unresponsive.clear(id),
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
                // If containerd itself hangs, nothing is known of the shim.
                if matches!(self.health.current(), Contact::Up { .. }) {
                    self.unresponsive.note(id);
                }
            }
            Err(_) => {}
        }
        answer
    }

    /// Connects to the shim of the running task `id`; does not wait. `None` if the shim cannot be called
    /// directly, or the logkeeper is down: containerd is to be asked. Cancel-safe.
    pub(crate) async fn connect(&self, id: &str, address: &ShimAddress) -> Option<ShimClient> {
        self.health.check_logkeeper().ok()?;
        match ShimClient::connect(address, self.client.namespace(), &self.context.observer).await {
            Ok(shim) => Some(shim),
            Err(fault) => {
                tracing::debug!(task = %id, error = %fault, "a shim cannot be called directly: containerd is asked");
                None
            }
        }
    }

    /// The shims that serve our containerd and namespace.
    pub(crate) async fn find_shims(&self) -> Result<Vec<ShimProcess>> {
        let scan = self.scan().await?;
        Ok(own_shims(
            &scan.all,
            &scan.root_processes,
            self.client.address(),
            self.client.namespace(),
        ))
    }

    /// The processes of our shims, by a scan that begins after this call. Waits for the pause after the scan before.
    /// Cancel-safe.
    pub(crate) async fn scan(&self) -> Result<Arc<ShimScan>> {
        let address = self.client.address().to_path_buf();
        let namespace = self.client.namespace().to_owned();
        self.scans
            .next(move || ShimScan::take(&address, &namespace))
            .await
    }

    /// The containers for which a process may be being created: by this daemon, or by a predecessor call.
    fn ids_in_progress(&self) -> HashSet<String> {
        let mut busy = self.creates_in_flight.current();
        busy.extend(self.predecessor_calls.current());
        busy
    }
}
