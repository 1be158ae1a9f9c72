//! Starts the OOM monitor of a task.

use std::sync::PoisonError;

use super::TaskEntry;
use super::oom::OomMonitor;
use crate::backend::Inner;

impl Inner {
    /// Starts to watch the counter of OOM kills before the process runs, because the cgroup may be removed
    /// right after the process exits.
    pub(crate) fn watch_oom(&self, entry: &TaskEntry) {
        let Some(group) = self.cgroup_location(&entry.record()) else { return };
        match self.cgroups.watch_oom(&group) {
            Ok(watch) => {
                let main = entry.main_pidfd();
                let oom = watch.map(|watch| OomMonitor::new(watch, main, &self.tracker));
                *entry.oom.lock().unwrap_or_else(PoisonError::into_inner) = oom;
            }
            Err(fault) => {
                tracing::warn!(task.id = %entry.id, error = %fault, "cannot watch a task for OOM kills")
            }
        }
    }
}
