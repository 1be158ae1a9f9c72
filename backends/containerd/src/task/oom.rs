//! Watching a task's control group for kills for want of memory.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use switchyard_cgroup::OomWatch;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use super::TaskEntry;
use crate::backend::Inner;

/// Between two looks at the group above. It has the news of all groups in it, none of which is urgent.
const PAUSE: Duration = Duration::from_secs(1);

/// A watch, and what keeps it up to date as long as this lives.
#[derive(Debug)]
pub(crate) struct Oom {
    watch: Arc<Mutex<OomWatch>>,
    pollers: Vec<AbortHandle>,
}

impl Oom {
    /// Takes a watch into care. Must be called within a tokio runtime.
    fn new(watch: OomWatch, tracker: &TaskTracker) -> Self {
        let polled = watch.polled();
        let watch = Arc::new(Mutex::new(watch));
        let mut pollers = Vec::new();
        match polled {
            Ok(Some((own, above))) => {
                let mut spawn = |fd, pause| {
                    pollers.push(tracker.spawn(follow(fd, pause, Arc::clone(&watch))).abort_handle());
                };
                spawn(own, Duration::ZERO);
                if let Some(above) = above {
                    spawn(above, PAUSE);
                }
            }
            Ok(None) => {}
            Err(fault) => tracing::warn!(error = %fault, "OOM kills are seen late, or not at all"),
        }
        Self { watch, pollers }
    }

    /// How many kills there were so far; see [`OomWatch::kills`].
    pub(super) fn kills(&self) -> switchyard_cgroup::Result<u64> {
        lock(&self.watch).kills()
    }
}

impl Drop for Oom {
    fn drop(&mut self) {
        for poller in &self.pollers {
            poller.abort();
        }
    }
}

/// Reads the counts at each news of a file, until that cannot be read any more.
#[expect(
    deprecated,
    reason = "the other way is not safe code, and an OwnedFd is what this one needs to be sound"
)]
async fn follow(fd: OwnedFd, pause: Duration, watch: Arc<Mutex<OomWatch>>) {
    let file = match AsyncFd::with_interest(fd, Interest::PRIORITY) {
        Ok(file) => file,
        Err(fault) => {
            tracing::warn!(error = %fault, "OOM kills are seen late, or not at all");
            return;
        }
    };
    loop {
        let Ok(mut ready) = file.ready(Interest::PRIORITY).await else { return };
        // Before the file is read: what comes meanwhile is news again.
        ready.clear_ready();
        if lock(&watch).kills().is_err() {
            return;
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
}

fn lock(watch: &Mutex<OomWatch>) -> MutexGuard<'_, OomWatch> {
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// Opens the way to the counter of OOM kills before the process runs, because it may be gone right after the process is.
    pub(crate) fn watch_oom(&self, entry: &TaskEntry) {
        let Some(group) = self.cgroup_location(&entry.record()) else { return };
        match self.cgroups.watch_oom(&group) {
            Ok(watch) => {
                let oom = watch.map(|watch| Oom::new(watch, &self.tracker));
                *entry.oom.lock().unwrap_or_else(PoisonError::into_inner) = oom;
            }
            Err(fault) => {
                tracing::warn!(task.id = %entry.id, error = %fault, "OOM kills of a task are not watched")
            }
        }
    }
}
