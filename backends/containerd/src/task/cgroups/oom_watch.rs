//! Starts the OOM monitor of a task.

use crate::task::cgroups::TaskCgroups;
use crate::task::cgroups::oom::OomMonitor;
use crate::task::{LifecycleEvent, TaskEntry};

impl TaskCgroups {
    /// Starts to watch the counter of OOM kills before the process runs, because the cgroup may be removed
    /// right after the process exits.
    pub(crate) fn watch_oom(&self, entry: &TaskEntry) {
        let Some(group) = entry.record().group() else {
            return;
        };
        match self.reader.watch_oom(&group) {
            Ok(Some(watch)) => {
                let monitor = OomMonitor::new(watch, entry.main_pidfd(), &self.tracker);
                entry.apply(LifecycleEvent::OomWatched(monitor));
            }
            Ok(None) => {}
            Err(fault) => {
                tracing::warn!(task.id = %entry.id, error = %fault, "cannot watch a task for OOM kills")
            }
        }
    }
}
