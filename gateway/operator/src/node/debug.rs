//! The inside of the daemon: what it does, which locks are held, and its memory.

use std::collections::BTreeMap;
use std::fs;

use switchyard_core::Error;
use switchyard_linux::memory;
use switchyard_operator_api::{AsyncTasksView, DebugView, OperationView, REVISION, VERSION};
use tokio::runtime::Handle;

use super::Node;

/// The sums of the memory of this process.
const ROLLUP: &str = "/proc/self/smaps_rollup";

// === impl Node ===

impl Node {
    /// The facts of the backend, with its version.
    #[must_use]
    pub fn facts(&self) -> BTreeMap<String, String> {
        let status = self.status();
        let mut facts = status.facts;
        facts.insert("backend".to_owned(), status.version);
        facts
    }

    /// The inside of the daemon, with the operations in flight. It must be called within a runtime. Takes two seconds at most.
    /// Cancel-safe.
    pub async fn debug(&self, operations: Vec<OperationView>) -> DebugView {
        DebugView {
            version: VERSION.to_owned(),
            revision: REVISION.to_owned(),
            pid: std::process::id(),
            operations,
            locks: self
                .gateway()
                .locks_in_use()
                .into_iter()
                .map(Into::into)
                .collect(),
            tasks: self.async_tasks(),
            memory: self.memory().await,
        }
    }

    fn async_tasks(&self) -> AsyncTasksView {
        let metrics = Handle::current().metrics();
        let tracked = self.gateway().background_tasks().into_iter();
        AsyncTasksView {
            alive: metrics.num_alive_tasks(),
            queued: metrics.global_queue_depth(),
            tracked: tracked
                .map(|(work, count)| (work.to_owned(), count))
                .collect(),
            busy_seconds: (0..metrics.num_workers())
                .map(|at| metrics.worker_total_busy_duration(at).as_secs_f64())
                .collect(),
        }
    }

    /// The memory of the daemon in bytes, by the kernel's names; empty if it cannot be read in time.
    async fn memory(&self) -> BTreeMap<String, u64> {
        let look = || {
            fs::read_to_string(ROLLUP)
                .map(|text| memory::of_rollup(&text))
                .map_err(|fault| Error::internal(format!("read {ROLLUP}")).with_source(fault))
        };
        let looked = self.files.run("the memory of the daemon".to_owned(), look);
        looked.await.unwrap_or_else(|error| {
            tracing::debug!(
                error = error.report(),
                "the memory of the daemon cannot be read"
            );
            BTreeMap::new()
        })
    }
}
