//! The shim that the tasks of a pod share, in pods without an infra process that keeps it alive.
//!
//! Such a shim exits with its last task, and accepts calls until it has exited. A process that it is asked to
//! create meanwhile stays half created: the runtime continues without the shim, in a bundle that containerd
//! deletes. So the processes of a pod are created and ended one at a time, and if a pod has no process left,
//! the exit of its last shim is awaited before the next process is created.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use switchyard_core::id::SandboxId;
use switchyard_core::keyed_lock::KeyedLock;

/// The shims of pods, and the locks under which processes of a pod are created and ended.
#[derive(Debug, Default)]
pub(crate) struct PodShims {
    pub(crate) locks: KeyedLock<SandboxId>,
    /// By pod: a pidfd of the shim under which its latest process was created.
    last: Mutex<HashMap<SandboxId, OwnedFd>>,
}

// === impl PodShims ===

impl PodShims {
    fn last(&self) -> MutexGuard<'_, HashMap<SandboxId, OwnedFd>> {
        self.last.lock()
    }

    /// Remembers the running process that is the shim of a pod.
    pub(crate) fn note(&self, pod: SandboxId, shim: i32) {
        let Some(shim) = Pid::from_raw(shim) else {
            return;
        };
        // A shim that has exited since needs no wait.
        if let Ok(held) = pidfd_open(shim, PidfdFlags::empty()) {
            self.last().insert(pod, held);
        }
    }

    /// Forgets the shim of a pod; returns its pidfd, on which its exit can be awaited.
    pub(crate) fn forget(&self, pod: SandboxId) -> Option<OwnedFd> {
        self.last().remove(&pod)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::task::process_ended;

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
