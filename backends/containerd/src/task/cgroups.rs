//! Operations on the cgroup of one task: cpusets, OOM scores, block I/O limits, freezing, watching for OOM
//! kills.

use std::sync::Arc;

use switchyard_cgroup as cgroup;
use switchyard_cgroup::Kills;
use switchyard_core::backend::BackendObserver;
use switchyard_core::{Error, Result};
use tokio_util::task::TaskTracker;

use super::TaskEntry;
use crate::base::fs::blocking;

pub(crate) mod leaf;
pub(crate) mod oom;
mod oom_watch;
pub(crate) mod score;
pub(crate) mod throttle;

use oom::oom_killed;

/// The cgroups of tasks.
#[derive(Debug)]
pub(crate) struct TaskCgroups {
    pub(crate) reader: Arc<cgroup::Reader>,
    pub(crate) tracker: TaskTracker,
    pub(crate) observer: Arc<dyn BackendObserver>,
}

impl TaskCgroups {
    /// Returns whether the OOM killer has killed a process of a task that exited with `code`. Cancel-safe.
    pub(crate) async fn was_oom_killed(&self, entry: &TaskEntry, code: i32) -> bool {
        // As it is now: another caller may learn of an exit meanwhile.
        let by_us = entry.was_killed();
        let group = entry.record().group();
        let kills = match (entry.oom_monitor(), group) {
            (Some(watch), _) => blocking(move || watch.kills().map_err(Error::from)).await,
            (None, Some(group)) => {
                let cgroups = Arc::clone(&self.reader);
                let counted =
                    blocking(move || cgroups.oom_kills(&group).map_err(Error::from)).await;
                counted.map(|counted| Kills {
                    counted: counted.unwrap_or(0),
                    doubtful: false,
                })
            }
            (None, None) => Ok(Kills::default()),
        };
        let kills = kills.unwrap_or_else(|error| {
            tracing::warn!(task = %entry.id, error = error.report(), "cannot read the OOM kills of a task: its exit is not reported as an OOM kill");
            Kills::default()
        });
        oom_killed(kills, code, by_us)
    }

    /// Returns whether the cgroup of the task is frozen; `None` if it has none that can be.
    pub(crate) async fn is_frozen(&self, entry: &TaskEntry) -> Result<Option<bool>> {
        let Some(group) = entry.record().group() else {
            return Ok(None);
        };
        let cgroups = Arc::clone(&self.reader);
        blocking(move || cgroups.is_frozen(&group).map_err(Error::from)).await
    }

    /// Kills all processes in the cgroup of the task.
    pub(crate) async fn kill(&self, entry: &TaskEntry) -> Result<()> {
        let Some(group) = entry.record().group() else {
            return Ok(());
        };
        let cgroups = Arc::clone(&self.reader);
        blocking(move || cgroups.kill(&group).map_err(Error::from)).await
    }

    /// Freezes or thaws the cgroup of the task.
    pub(crate) async fn set_frozen(&self, entry: &TaskEntry, frozen: bool) -> Result<()> {
        let Some(group) = entry.record().group() else {
            return Ok(());
        };
        let cgroups = Arc::clone(&self.reader);
        blocking(move || cgroups.freeze(&group, frozen).map_err(Error::from)).await
    }
}
