//! Starts the OOM monitor of a task.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::task::cgroups::TaskCgroups;
use crate::task::cgroups::oom::{KillReporter, OomMonitor};
use crate::task::{LifecycleEvent, TaskEntry};

impl TaskCgroups {
    /// Starts to watch the counter of OOM kills before the process runs, because the cgroup may be removed
    /// right after the process exits.
    pub(crate) fn watch_oom(&self, entry: &TaskEntry) {
        let Some(group) = entry.record().group() else {
            return;
        };
        let owner = entry.record().meta.owner();
        let owner = match owner {
            Ok(owner) => owner,
            Err(error) => {
                tracing::warn!(task = %entry.id, error = error.report(), "cannot watch a task for OOM kills");
                return;
            }
        };
        match self.reader.watch_oom(&group) {
            Ok(Some(watch)) => {
                let reporter = KillReporter {
                    task: entry.id,
                    owner,
                    observer: Arc::clone(&self.observer),
                    is_logged: AtomicBool::new(false),
                };
                let main = entry.main_pidfd();
                let monitor = OomMonitor::new(watch, main, &self.tracker, reporter);
                entry.apply(LifecycleEvent::OomWatched(monitor));
            }
            Ok(None) => {}
            Err(fault) => {
                tracing::warn!(task = %entry.id, error = %fault, "cannot watch a task for OOM kills")
            }
        }
    }
}
