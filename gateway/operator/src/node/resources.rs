//! The disks and the limits of the node, as far as containers and the daemon need them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use switchyard_core::backend::WatchedDisk;
use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::{Error, threads};
use switchyard_linux::FileSystemSpace;
use switchyard_linux::node_limits::{self, NodeLimit};
use switchyard_logkeeper::protocol::Stats;
use tokio::time::Instant;

use super::Node;

/// Time for a look at a disk.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// The interval between two looks at the descriptors of all processes, which take a moment where there are many.
const INOTIFY_INTERVAL: Duration = Duration::from_secs(60);

/// The reading of disks and limits for metrics.
#[derive(Debug)]
pub(super) struct NodeResources {
    /// Threads for file systems with logs, which may hang.
    log_disks: BlockingPool,
    /// The limit of inotify instances, with the time of the latest look.
    inotify: Mutex<Option<(Instant, NodeLimit)>>,
}

// === impl NodeResources ===

impl NodeResources {
    pub(super) fn new() -> Self {
        Self {
            log_disks: BlockingPool::new(threads::LOG_DISK_POOL, LOOK_LIMIT),
            inotify: Mutex::default(),
        }
    }

    /// The limit of inotify instances by the latest look; `None` if another one is due.
    fn current(&self) -> Option<NodeLimit> {
        let (at, limit) = (*self.inotify.lock())?;
        (at.elapsed() < INOTIFY_INTERVAL).then_some(limit)
    }

    /// The disk with the logs below a mount point; `None` if it does not answer. Cancel-safe.
    async fn log_disk(&self, point: &str) -> Option<WatchedDisk> {
        let path = PathBuf::from(point);
        let look = move || {
            FileSystemSpace::of(&path)
                .map_err(|fault| Error::internal("look at its space").with_source(fault))
        };
        match self
            .log_disks
            .run(format!("the logs on {point}"), look)
            .await
        {
            Ok(space) => Some(WatchedDisk { of: "logs", space }),
            Err(error) => {
                tracing::debug!(
                    point,
                    error = error.report(),
                    "a disk with logs cannot be looked at"
                );
                None
            }
        }
    }
}

// === impl Node ===

impl Node {
    /// The disks of logs that the logkeeper reports, as far as they answer. Takes two seconds at most. Cancel-safe.
    pub async fn log_disks(&self, logs: Option<&Stats>) -> Vec<WatchedDisk> {
        let points = logs
            .into_iter()
            .flat_map(|stats| &stats.file_systems)
            // One that hangs is reported as such.
            .filter(|known| known.stall_age_ms == 0);
        let looks = points.map(|known| self.resources.log_disk(&known.mount_point));
        join_all(looks).await.into_iter().flatten().collect()
    }

    /// Limits of the node, as far as they are known. Takes a few seconds at most. Cancel-safe.
    pub async fn limits(&self) -> Vec<NodeLimit> {
        let mut limits = node_limits::counted(|path| fs::read_to_string(path).ok());
        limits.extend(self.limits_of_processes().await);
        limits
    }

    async fn limits_of_processes(&self) -> Vec<NodeLimit> {
        let known = self.resources.current();
        let processes = self.main_processes();
        let look = move || {
            let inotify = known.map_or_else(node_limits::inotify_instances, Ok);
            let group = node_limits::group_processes(&processes);
            inotify
                .map(|inotify| (inotify, group))
                .map_err(|fault| Error::internal("count inotify instances").with_source(fault))
        };
        let looked = self.files.run("the processes of the node".to_owned(), look);
        match looked.await {
            Ok((inotify, group)) => {
                if known.is_none() {
                    *self.resources.inotify.lock() = Some((Instant::now(), inotify));
                }
                std::iter::once(inotify).chain(group).collect()
            }
            Err(error) => {
                tracing::debug!(
                    error = error.report(),
                    "the processes of the node cannot be looked at"
                );
                Vec::new()
            }
        }
    }

    /// The main processes of all containers, with their sandboxes; none before recovery.
    fn main_processes(&self) -> Vec<(SandboxId, u32)> {
        let tasks = Owner::ALL.into_iter().flat_map(|owner| {
            let tasks = self.gateway().scope(owner).tasks().list();
            tasks.unwrap_or_default()
        });
        tasks
            .filter_map(|task| Some((task.sandbox, task.state.pid()?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn disk_with_logs_is_looked_at_if_it_is_there() {
        let resources = NodeResources::new();
        let found = resources.log_disk("/").await.expect("it answers");
        assert_eq!(found.of, "logs");
        assert!(found.space.size_bytes > 0);
        assert_eq!(resources.log_disk("/no/such/directory").await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn inotify_instances_are_counted_once_a_minute() {
        let resources = NodeResources::new();
        assert_eq!(resources.current(), None);
        let limit = NodeLimit {
            name: "inotify_instances",
            used: 1,
            most: 2,
        };
        *resources.inotify.lock() = Some((Instant::now(), limit));
        assert_eq!(resources.current(), Some(limit));
        tokio::time::advance(INOTIFY_INTERVAL).await;
        assert_eq!(resources.current(), None);
    }
}
