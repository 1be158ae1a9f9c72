//! Starts the OOM monitor of a task.

use crate::task::TaskEntry;
use crate::task::cgroups::TaskCgroups;
use crate::task::cgroups::oom::OomMonitor;

impl TaskCgroups {
    /// Starts to watch the counter of OOM kills before the process runs, because the cgroup may be removed
    /// right after the process exits.
    pub(crate) fn watch_oom(&self, entry: &TaskEntry) {
        let Some(group) = entry.record().group() else { return };
        match self.reader.watch_oom(&group) {
            Ok(watch) => {
                let main = entry.main_pidfd();
                let oom = watch.map(|watch| OomMonitor::new(watch, main, &self.tracker));
                *entry.oom.lock() = oom;
            }
            Err(fault) => {
                tracing::warn!(task.id = %entry.id, error = %fault, "cannot watch a task for OOM kills")
            }
        }
    }
}
