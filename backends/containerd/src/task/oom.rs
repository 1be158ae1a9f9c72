//! Watching a task's control group for kills for want of memory.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use switchyard_cgroup::{Kills, OomWatch};
use tokio::io::Interest;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use super::TaskEntry;
use super::process::{polled, process_ended};
use crate::backend::Inner;

/// Between two looks at the group above. It has the news of all groups in it, none of which is urgent.
const PAUSE: Duration = Duration::from_secs(1);

/// The exit code of a main process that SIGKILL has ended.
const KILLED: i32 = 128 + 9;

/// A watch, and what keeps it up to date as long as this lives.
#[derive(Debug)]
pub(crate) struct OomMonitor {
    watch: Arc<Mutex<OomWatch>>,
    pollers: Vec<AbortHandle>,
}

impl OomMonitor {
    /// Takes a watch into care; `main` can be read once the main process has ended. Must be called within a tokio runtime.
    fn new(watch: OomWatch, main: Option<OwnedFd>, tracker: &TaskTracker) -> Self {
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
                if let Some(main) = main {
                    pollers.push(tracker.spawn(read_at_exit(main, Arc::clone(&watch))).abort_handle());
                }
            }
            Ok(None) => {}
            Err(fault) => tracing::warn!(error = %fault, "OOM kills are seen late, or not at all"),
        }
        Self { watch, pollers }
    }

    /// The kills so far; see [`OomWatch::kills`].
    pub(super) fn kills(&self) -> switchyard_cgroup::Result<Kills> {
        lock(&self.watch).kills()
    }
}

/// Decides whether a task has ended for want of memory. Where its counter went unread, a kill in a group beside its own looks the same
/// as one in its own: it counts only if the task's main process was killed as well, and not by us. Pure.
pub(super) const fn oom_killed(kills: Kills, code: i32, by_us: bool) -> bool {
    kills.counted > 0 || (kills.doubtful && code == KILLED && !by_us)
}

impl Drop for OomMonitor {
    fn drop(&mut self) {
        for poller in &self.pollers {
            poller.abort();
        }
    }
}

/// Reads the counts at each news of a file, until that cannot be read any more.
async fn follow(fd: OwnedFd, pause: Duration, watch: Arc<Mutex<OomWatch>>) {
    let file = match polled(fd, Interest::PRIORITY) {
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

/// Reads the counts as soon as the main process has ended: a moment later systemd takes the group away.
async fn read_at_exit(main: OwnedFd, watch: Arc<Mutex<OomWatch>>) {
    let read = match process_ended(main).await {
        Ok(()) => lock(&watch).kills_at_exit().map_err(|fault| fault.to_string()),
        Err(fault) => Err(fault.to_string()),
    };
    if let Err(fault) = read {
        tracing::debug!(error = fault, "OOM kills are not known to the end");
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
                let main = entry.main_pidfd();
                let oom = watch.map(|watch| OomMonitor::new(watch, main, &self.tracker));
                *entry.oom.lock().unwrap_or_else(PoisonError::into_inner) = oom;
            }
            Err(fault) => {
                tracing::warn!(task.id = %entry.id, error = %fault, "OOM kills of a task are not watched")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_in_a_group_beside_it_is_no_reason_for_a_task_that_was_not_killed() {
        let check = |counted, doubtful, code, by_us, expected| {
            let kills = Kills { counted, doubtful };
            assert_eq!(oom_killed(kills, code, by_us), expected, "{kills:?} {code} {by_us}");
        };
        check(0, false, KILLED, false, false);
        check(0, true, 0, false, false);
        check(0, true, 9, false, false);
        check(0, true, KILLED, false, true);
        check(0, true, KILLED, true, false);
        // A child was killed, and the main process ended as it liked.
        check(1, false, 0, false, true);
        check(1, true, 9, false, true);
        check(1, false, KILLED, true, true);
    }
}
