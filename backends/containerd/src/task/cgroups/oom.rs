//! Watches the cgroup of a task for OOM kills.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use switchyard_cgroup::{Kills, OomWatch};
use tokio::io::Interest;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use crate::task::process::{polled, process_ended};

/// The pause between two reads of the counter of the parent cgroup. Events of all cgroups below it are
/// reported there, and none of them is urgent.
const PAUSE: Duration = Duration::from_secs(1);

/// The exit code of a main process that exited by SIGKILL.
const KILLED: i32 = 128 + 9;

/// A watch, and the background tasks that keep it up to date while this exists. The tasks exist on cgroup v2 only, where
/// a reading takes microseconds; so the lock holds up no worker, though on v1 its holder may wait for the kernel.
#[derive(Debug)]
pub(crate) struct OomMonitor {
    watch: Arc<Mutex<OomWatch>>,
    pollers: Vec<AbortHandle>,
}

impl OomMonitor {
    /// Starts the background tasks for a watch; `main` is a pidfd of the main process. Must be called within
    /// a tokio runtime.
    pub(crate) fn new(watch: OomWatch, main: Option<OwnedFd>, tracker: &TaskTracker) -> Self {
        let polled = watch.polled();
        let watch = Arc::new(Mutex::new(watch));
        let mut pollers = Vec::new();
        match polled {
            Ok(Some((own, above))) => {
                let mut spawn = |fd, pause| {
                    pollers.push(
                        tracker
                            .spawn(follow(fd, pause, Arc::clone(&watch)))
                            .abort_handle(),
                    );
                };
                spawn(own, Duration::ZERO);
                if let Some(above) = above {
                    spawn(above, PAUSE);
                }
                if let Some(main) = main {
                    pollers.push(
                        tracker
                            .spawn(read_at_exit(main, Arc::clone(&watch)))
                            .abort_handle(),
                    );
                }
            }
            Ok(None) => {}
            Err(fault) => {
                tracing::warn!(error = %fault, "cannot poll the counter of a cgroup: OOM kills are noticed late, or not at all")
            }
        }
        Self { watch, pollers }
    }

    /// The kills so far; see [`OomWatch::kills`]. Blocks, on cgroup v1 for up to a tenth of a second.
    pub(crate) fn kills(&self) -> switchyard_cgroup::Result<Kills> {
        lock(&self.watch).kills()
    }
}

/// Decides whether a task exited because of an OOM kill. If the counter of its cgroup could not be read a
/// last time, a kill in a sibling cgroup looks the same as one in its own: it counts only if the task's main
/// process exited by SIGKILL, and not by ours. Pure.
pub(crate) const fn oom_killed(kills: Kills, code: i32, by_us: bool) -> bool {
    kills.counted > 0 || (kills.doubtful && code == KILLED && !by_us)
}

impl Drop for OomMonitor {
    fn drop(&mut self) {
        for poller in &self.pollers {
            poller.abort();
        }
    }
}

/// Reads the counters at each event of a file, until they cannot be read any more.
async fn follow(fd: OwnedFd, pause: Duration, watch: Arc<Mutex<OomWatch>>) {
    let file = match polled(fd, Interest::PRIORITY) {
        Ok(file) => file,
        Err(fault) => {
            tracing::warn!(error = %fault, "cannot poll the counter of a cgroup: OOM kills are noticed late, or not at all");
            return;
        }
    };
    loop {
        let Ok(mut ready) = file.ready(Interest::PRIORITY).await else {
            return;
        };
        // Cleared before the read, so that an event during the read is noticed.
        ready.clear_ready();
        if lock(&watch).kills().is_err() {
            return;
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
}

/// Reads the counters as soon as the main process has exited: systemd removes the cgroup a moment later.
async fn read_at_exit(main: OwnedFd, watch: Arc<Mutex<OomWatch>>) {
    let read = match process_ended(main).await {
        Ok(()) => lock(&watch)
            .kills_at_exit()
            .map_err(|fault| fault.to_string()),
        Err(fault) => Err(fault.to_string()),
    };
    if let Err(fault) = read {
        tracing::debug!(
            error = fault,
            "cannot read the OOM kills after the exit of a task"
        );
    }
}

fn lock(watch: &Mutex<OomWatch>) -> MutexGuard<'_, OomWatch> {
    watch.lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_in_a_group_beside_it_is_no_reason_for_a_task_that_was_not_killed() {
        let check = |counted, doubtful, code, by_us, expected| {
            let kills = Kills { counted, doubtful };
            assert_eq!(
                oom_killed(kills, code, by_us),
                expected,
                "{kills:?} {code} {by_us}"
            );
        };
        check(0, false, KILLED, false, false);
        check(0, true, 0, false, false);
        check(0, true, 9, false, false);
        check(0, true, KILLED, false, true);
        check(0, true, KILLED, true, false);
        // A child was killed, and the main process exited by itself.
        check(1, false, 0, false, true);
        check(1, true, 9, false, true);
        check(1, false, KILLED, true, true);
    }
}
