//! The shim that the tasks of a pod share, where no infra process keeps it.
//!
//! It ends with the last of them, and takes calls until it has. A process that is asked of it meanwhile is left half made: its runtime goes on
//! without it, in a bundle that containerd removes. So the processes of a pod are made and ended one after the other, and where none is left
//! the shim of the last is waited for before the next is made.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use switchyard_core::id::SandboxId;
use switchyard_core::keyed_lock::{KeyedLock, KeyedLockGuard};

use super::TaskEntry;
use super::process::process_ended;
use crate::backend::Inner;

/// How long a shim may take to end once it serves nobody: it does at once, but for a machine that is busy.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The shims of pods, and who makes or ends a process by them.
#[derive(Debug, Default)]
pub(crate) struct PodShims {
    locks: KeyedLock<SandboxId>,
    /// The shim by which a process of each pod was made last.
    last: Mutex<HashMap<SandboxId, OwnedFd>>,
}

// === impl PodShims ===

impl PodShims {
    fn last(&self) -> MutexGuard<'_, HashMap<SandboxId, OwnedFd>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the process that is the shim of a pod, which runs.
    fn note(&self, pod: SandboxId, shim: i32) {
        let Some(shim) = Pid::from_raw(shim) else { return };
        // One that has ended since is waited for by nobody.
        if let Ok(held) = pidfd_open(shim, PidfdFlags::empty()) {
            self.last().insert(pod, held);
        }
    }

    /// Forgets a pod, or that its shim is to be waited for; what was noted.
    pub(crate) fn forget(&self, pod: SandboxId) -> Option<OwnedFd> {
        self.last().remove(&pod)
    }
}

impl Inner {
    /// Waits for a turn at making or ending a process of a task's pod. `None` where an infra process keeps the shim. Cancel-safe.
    pub(super) async fn lock_pod(&self, entry: &TaskEntry) -> Option<KeyedLockGuard> {
        if self.has_infra(entry) { None } else { Some(self.pod_shims.locks.lock(entry.sandbox).await) }
    }

    /// Whether an infra process keeps the shim of a task's pod.
    fn has_infra(&self, entry: &TaskEntry) -> bool {
        self.sandbox(entry.sandbox).is_ok_and(|sandbox| sandbox.pid.is_some())
    }

    /// Waits until the shim of a pod has ended that serves nobody any more, for a bounded time. Whoever calls this has the turn of the pod.
    pub(super) async fn await_last_shim(&self, entry: &TaskEntry) {
        let serves = |other: &TaskEntry| {
            other.sandbox == entry.sandbox && other.id != entry.id && other.may_have_process()
        };
        // One whose start has only begun may have no process, but waits for this turn then, or has given up.
        if self.tasks().values().any(|other| serves(other) && other.main_pid().is_some()) {
            return;
        }
        let Some(shim) = self.pod_shims.forget(entry.sandbox) else { return };
        match tokio::time::timeout(EXIT_TIMEOUT, process_ended(shim)).await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => {
                tracing::debug!(task.id = %entry.id, error = %fault, "the end of a pod's last shim cannot be waited for");
            }
            Err(_) => {
                tracing::debug!(task.id = %entry.id, "the shim of a pod is there {EXIT_TIMEOUT:?} after its last task");
            }
        }
    }

    /// Notes by which shim a task's process was made, by us or a predecessor, where it ends with the last task. Idempotent.
    pub(crate) fn note_shim(&self, entry: &TaskEntry) {
        if let Some(shim) = entry.shim_pid().filter(|_| !self.has_infra(entry)) {
            self.pod_shims.note(entry.sandbox, shim);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn the_end_of_the_shim_that_was_noted_last_can_be_waited_for() {
        let shims = PodShims::default();
        let pod = SandboxId::random();
        let mut processes = [(); 2].map(|()| Command::new("sleep").arg("1000").spawn().unwrap());
        for process in &processes {
            shims.note(pod, i32::try_from(process.id()).unwrap());
        }
        let mut end = Box::pin(process_ended(shims.forget(pod).unwrap()));
        assert!(futures::poll!(&mut end).is_pending());
        processes[0].kill().unwrap();
        processes[0].wait().unwrap();
        assert!(futures::poll!(&mut end).is_pending());
        processes[1].kill().unwrap();
        end.await.unwrap();
        processes[1].wait().unwrap();
        assert!(shims.forget(pod).is_none());
    }
}
