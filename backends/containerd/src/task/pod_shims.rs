//! A task is created only when the last shim of its pod has exited, so that the new shim can listen.

use std::time::Duration;

use switchyard_core::keyed_lock::KeyedLockGuard;

use super::TaskEntry;
use super::process::process_ended;
use crate::task::exit::Exits;

/// Limit for a shim to exit once it serves no container: it exits at once unless the machine is busy.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

impl Exits {
    /// Locks the creation and ending of processes in a task's pod. `None` where an infra process keeps the
    /// shim alive. Cancel-safe.
    pub(super) async fn lock_pod(&self, entry: &TaskEntry) -> Option<KeyedLockGuard> {
        if self.has_infra(entry) {
            None
        } else {
            Some(self.shims.pods.locks.lock(entry.sandbox).await)
        }
    }

    /// Returns whether an infra process keeps the shim of a task's pod alive.
    fn has_infra(&self, entry: &TaskEntry) -> bool {
        self.sandboxes
            .table
            .get(entry.sandbox)
            .is_ok_and(|sandbox| sandbox.infra_pid().is_some())
    }

    /// Waits, for a bounded time, until a pod's shim that serves no container any more has exited. The caller
    /// holds the lock of the pod.
    pub(super) async fn await_last_shim(&self, entry: &TaskEntry) {
        let serves = |other: &TaskEntry| {
            other.sandbox == entry.sandbox && other.id != entry.id && other.may_have_process()
        };
        // A task whose start has only begun may have no process yet: it then waits for the lock of the pod,
        // or has given up.
        if self
            .table
            .lock()
            .values()
            .any(|other| serves(other) && other.main_pid().is_some())
        {
            return;
        }
        let Some(shim) = self.shims.pods.forget(entry.sandbox) else {
            return;
        };
        match tokio::time::timeout(EXIT_TIMEOUT, process_ended(shim)).await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => {
                tracing::debug!(task = %entry.id, error = %fault, "cannot wait for the exit of a pod's last shim");
            }
            Err(_) => {
                tracing::debug!(task = %entry.id, "the shim of a pod still runs {EXIT_TIMEOUT:?} after its last task");
            }
        }
    }

    /// Remembers the shim under which a task's process was created, by this daemon or a predecessor, if that
    /// shim exits with its last task. Idempotent.
    pub(crate) fn note_shim(&self, entry: &TaskEntry) {
        if let Some(shim) = entry.shim_pid().filter(|_| !self.has_infra(entry)) {
            self.shims.pods.note(entry.sandbox, shim);
        }
    }
}
