//! Watches the cgroup of a task for OOM kills.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_cgroup::{Kills, OomWatch};
use switchyard_core::backend::BackendObserver;
use switchyard_core::id::{Owner, TaskId};
use tokio::io::Interest;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use crate::base::polled::polled;
use crate::task::process::process_ended;

/// The pause between two reads of the counter of the parent cgroup. Events of all cgroups below it are
/// reported there, and none of them is urgent.
const PAUSE: Duration = Duration::from_secs(1);

/// The exit code of a main process that exited by SIGKILL.
const KILLED: i32 = 128 + 9;

/// A watch, and the background tasks that keep it up to date while this exists. The tasks exist on cgroup v2 only, where
/// a reading takes microseconds; so the lock holds up no worker, though on v1 its holder may wait for the kernel.
#[derive(Debug)]
pub(crate) struct OomMonitor {
    watch: Arc<ReportedWatch>,
    pollers: Vec<AbortHandle>,
}

/// Reports processes that the OOM killer has killed in the cgroup of a task, its main process or others.
#[derive(Debug)]
pub(crate) struct KillReporter {
    pub(crate) task: TaskId,
    pub(crate) owner: Owner,
    pub(crate) observer: Arc<dyn BackendObserver>,
    /// True once the log has a line: of a program that is killed again and again, it has no more.
    pub(crate) is_logged: AtomicBool,
}

/// A watch, of which each kill is reported once.
#[derive(Debug)]
struct ReportedWatch {
    counted: Mutex<CountedWatch>,
    reporter: KillReporter,
}

/// A watch, with the number of kills that were reported.
#[derive(Debug)]
struct CountedWatch {
    watch: OomWatch,
    reported: u64,
}

impl OomMonitor {
    /// Starts the background tasks for a watch; `main` is a pidfd of the main process. Must be called within
    /// a tokio runtime.
    pub(crate) fn new(
        watch: OomWatch,
        main: Option<OwnedFd>,
        tracker: &TaskTracker,
        reporter: KillReporter,
    ) -> Self {
        let polled = watch.polled();
        let watch = Arc::new(ReportedWatch::new(watch, reporter));
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
        self.watch.read(OomWatch::kills)
    }
}

// === impl ReportedWatch ===

impl ReportedWatch {
    /// Makes a watch of which earlier kills are not reported: a predecessor has reported them, or there was no task yet. Those
    /// of the time without a daemon are in no report.
    fn new(watch: OomWatch, reporter: KillReporter) -> Self {
        let reported = watch.counted();
        Self {
            counted: Mutex::new(CountedWatch { watch, reported }),
            reporter,
        }
    }

    /// Reads the count, and reports the kills since the last time.
    fn read(
        &self,
        read: impl FnOnce(&mut OomWatch) -> switchyard_cgroup::Result<Kills>,
    ) -> switchyard_cgroup::Result<Kills> {
        let mut counted = self.counted.lock();
        let kills = read(&mut counted.watch)?;
        let killed = take_new(&mut counted.reported, kills.counted);
        drop(counted);
        if killed > 0 {
            self.reporter.killed(killed);
        }
        Ok(kills)
    }
}

/// Returns by how much a count is above what was reported, and sets it as reported. Pure.
fn take_new(reported: &mut u64, counted: u64) -> u64 {
    let new = counted.saturating_sub(*reported);
    *reported += new;
    new
}

// === impl KillReporter ===

impl KillReporter {
    fn killed(&self, processes: u64) {
        self.observer.oom_killed(self.owner, processes);
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(task = %self.task, processes, "the kernel killed processes of a task that is out of memory: the metric counts further ones");
        }
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
async fn follow(fd: OwnedFd, pause: Duration, watch: Arc<ReportedWatch>) {
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
        if watch.read(OomWatch::kills).is_err() {
            return;
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
}

/// Reads the counters as soon as the main process has exited: systemd removes the cgroup a moment later.
async fn read_at_exit(main: OwnedFd, watch: Arc<ReportedWatch>) {
    let read = match process_ended(main).await {
        Ok(()) => watch
            .read(OomWatch::kills_at_exit)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kill_is_reported_once() {
        // A predecessor has reported three.
        let mut reported = 3;
        let new = [3, 4, 4, 7, 6].map(|counted| take_new(&mut reported, counted));
        assert_eq!((new, reported), ([0, 1, 0, 3, 0], 7));
    }

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
