//! The in-memory state of a task.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use containerd_client::types::Mount;
use parking_lot::{Mutex, MutexGuard};
use switchyard_core::backend::Started;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::keyed_lock::LockInUse;
use switchyard_core::spec::Signal;
use switchyard_core::state::Exit;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::cgroups::oom::OomMonitor;
use super::fifos::keep_open;
use super::freeze::ExecPermits;
use super::inputs::Inputs;
use super::lifecycle::{KnownStart, LifecycleEvent, TaskLifecycle};
use super::process::{ProcessHandle, Sent};
use crate::base::layout::TaskDirs;
use crate::record::{OutputRecord, TaskRecord};
use crate::shims::direct::ShimAddress;

/// The in-memory state of one task.
#[derive(Debug)]
pub(crate) struct TaskEntry {
    pub(crate) id: TaskId,
    pub(crate) sandbox: SandboxId,
    pub(crate) dirs: TaskDirs,
    pub(crate) snapshotter: String,
    record: Mutex<TaskRecord>,
    lifecycle: Mutex<TaskLifecycle>,
    pub(super) exit_locks: ExitLocks,
    /// The mounts of its snapshot as `Prepare` returned them, until they are first used. `None` after that
    /// and after a restart: containerd is then asked for them.
    pub(super) mounts: Mutex<Option<Vec<Mount>>>,
    output: Mutex<OutputState>,
    /// The clients that are attached to its standard input.
    pub(super) inputs: Mutex<Inputs>,
    pub(crate) exec_permits: ExecPermits,
    /// Serializes what starts, cleans up, removes or checkpoints its process, or completes a predecessor's
    /// start of it.
    process_lock: Arc<Semaphore>,
    /// Serializes changes of its limits.
    limits_lock: Arc<Semaphore>,
    /// The `process` part of its OCI spec, as JSON, from which execs are made; read when it is first needed.
    pub(super) process_spec: OnceCell<Box<str>>,
}

/// Locks under which the calls that share one wait follow each other: the first call does the work, and the
/// later ones find the result in the lifecycle. If a call is cancelled, the next one does the work.
#[derive(Debug, Default)]
pub(super) struct ExitLocks {
    /// Waits until the exit is observed.
    pub(super) observe: tokio::sync::Mutex<()>,
    /// Persists the exit.
    pub(super) persist: tokio::sync::Mutex<()>,
    /// Observes and persists the exit, cleans up, and reports it.
    pub(super) report: tokio::sync::Mutex<()>,
}

/// The part of a task's output that the logkeeper still has to write.
#[derive(Debug)]
enum OutputState {
    /// It may have to write more. The output FIFOs are held open: the kernel discards the content of a FIFO
    /// when its last reader closes it, and the logkeeper may be down at that moment.
    Open {
        _hold: Option<switchyard_logkeeper::FifoHold>,
    },
    /// It has written all of it, or has given it up, and has closed the FIFOs.
    Finished,
}

impl TaskEntry {
    pub(crate) fn new(
        id: TaskId,
        sandbox: SandboxId,
        dirs: TaskDirs,
        snapshotter: &str,
        record: TaskRecord,
    ) -> Self {
        Self {
            id,
            sandbox,
            dirs,
            snapshotter: snapshotter.to_owned(),
            record: Mutex::new(record),
            lifecycle: Mutex::default(),
            exit_locks: ExitLocks::default(),
            mounts: Mutex::default(),
            output: Mutex::new(OutputState::Open { _hold: None }),
            inputs: Mutex::default(),
            exec_permits: ExecPermits::new(id),
            process_lock: Arc::new(Semaphore::new(1)),
            limits_lock: Arc::new(Semaphore::new(1)),
            process_spec: OnceCell::new(),
        }
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, TaskRecord> {
        self.record.lock()
    }

    /// Changes its lifecycle by an event.
    pub(crate) fn apply(&self, event: LifecycleEvent) {
        let mut lifecycle = self.lifecycle.lock();
        *lifecycle = std::mem::take(&mut *lifecycle).after(event);
    }

    /// Its program was started.
    pub(crate) fn set_started(&self, started: Started) {
        self.apply(LifecycleEvent::Started(started, Instant::now()));
    }

    pub(crate) fn started(&self) -> Option<Started> {
        self.known_start().map(|known| known.start)
    }

    pub(super) fn known_start(&self) -> Option<KnownStart> {
        self.lifecycle.lock().start()
    }

    /// The exit time `end`, or the start time if that is later because the clock was set back in between: no
    /// exit is earlier than its start.
    pub(crate) fn not_before_start(&self, end: SystemTime) -> SystemTime {
        self.started().map_or(end, |started| end.max(started.at))
    }

    /// Returns whether clients may treat it as running: it was started, and its exit is not reported yet.
    pub(crate) fn runs(&self) -> bool {
        self.lifecycle.lock().runs()
    }

    /// Its start, while it runs in the sense of [`TaskEntry::runs`].
    pub(crate) fn running_start(&self) -> Option<Started> {
        let lifecycle = self.lifecycle.lock();
        lifecycle
            .start()
            .filter(|_| lifecycle.runs())
            .map(|known| known.start)
    }

    /// Returns whether containerd may have a process of this task: one was launched and has not been cleaned
    /// up, though it may have exited.
    pub(crate) fn may_have_process(&self) -> bool {
        self.lifecycle.lock().may_have_process()
    }

    /// Returns whether an earlier process of this task, which is not started, has been ended.
    pub(super) fn process_ended_before(&self) -> bool {
        self.lifecycle.lock().process_ended_before()
    }

    /// Its exit: as it is persisted, or else as it was observed.
    pub(super) fn exit(&self) -> Option<Exit> {
        self.lifecycle.lock().exit().cloned()
    }

    /// Its exit, if that is persisted, even if the cleanup is outstanding.
    pub(super) fn persisted_exit(&self) -> Option<Exit> {
        self.lifecycle.lock().persisted_exit().cloned()
    }

    /// Its exit, if that was observed and is not persisted.
    pub(crate) fn unpersisted_exit(&self) -> Option<Exit> {
        self.lifecycle.lock().unpersisted_exit().cloned()
    }

    /// The exit that callers get: known once the cleanup is complete, or left to the background.
    pub(crate) fn reported_exit(&self) -> Option<Exit> {
        self.lifecycle.lock().reported_exit().cloned()
    }

    /// The OOM monitor of its process, until an exit is known.
    pub(super) fn oom_monitor(&self) -> Option<Arc<OomMonitor>> {
        self.lifecycle.lock().oom()
    }

    /// Returns whether this daemon sent SIGKILL to its process, of which no exit is known.
    pub(super) fn was_killed(&self) -> bool {
        self.lifecycle.lock().was_killed()
    }

    /// Locks its process. Waiters are served in the order of their calls, and dropping the permit unlocks it.
    /// Cancel-safe.
    pub(crate) async fn lock_process(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.process_lock).acquire_owned().await.ok()
    }

    /// Locks its limits, in the same way.
    pub(super) async fn lock_limits(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.limits_lock).acquire_owned().await.ok()
    }

    /// Its locks that are held at this moment.
    pub(super) fn locks_in_use(&self) -> impl Iterator<Item = LockInUse> {
        let process = LockInUse::of_semaphore("process_lock", &self.id, &self.process_lock);
        let limits = LockInUse::of_semaphore("limits_lock", &self.id, &self.limits_lock);
        process.into_iter().chain(limits)
    }

    /// The text that the cgroup path of each of its processes contains.
    pub(crate) fn cgroup_mark(&self) -> String {
        self.record().cgroup_marker(&self.id.to_string())
    }

    /// Records that containerd has created its main process, and opens a handle of it if `pid` is that of a
    /// process of this task.
    pub(super) fn open_process(&self, pid: u32) {
        self.apply(LifecycleEvent::ProcessCreated(ProcessHandle::open(
            pid,
            &self.cgroup_mark(),
        )));
    }

    /// The handle of its main process, if one is held. Nothing is read from the kernel under the lock of the
    /// lifecycle.
    pub(super) fn process(&self) -> Option<Arc<ProcessHandle>> {
        self.lifecycle.lock().process()
    }

    /// A pidfd of its main process, if a handle is held: it becomes readable when the process has exited.
    pub(super) fn main_pidfd(&self) -> Option<OwnedFd> {
        self.process()?.pidfd()
    }

    /// The pid of its main process, if a handle is held.
    pub(super) fn main_pid(&self) -> Option<u32> {
        Some(self.process()?.pid())
    }

    /// The pid of its main process, if a handle is held and the process has not exited: so the pid has not
    /// been reused.
    pub(super) fn running_pid(&self) -> Option<u32> {
        self.process()
            .filter(|process| process.runs())
            .map(|process| process.pid())
    }

    /// The pid of its shim, if a handle of its main process is held and the process has not exited.
    pub(crate) fn shim_pid(&self) -> Option<i32> {
        let shim = i32::try_from(self.process()?.parent()?).ok()?;
        // The children of a shim that has exited are reparented to pid 1.
        (shim > 1).then_some(shim)
    }

    /// The address of its shim, if a handle of its main process is held and the address can be found.
    pub(crate) fn shim(&self) -> Option<ShimAddress> {
        self.process()?.shim(&self.id.to_string())
    }

    /// Sends a signal to its main process, if a handle is held.
    pub(super) fn signal_process(&self, signal: Signal) -> Sent {
        self.process()
            .map_or(Sent::Refused, |process| process.signal(signal))
    }

    /// Returns whether its output goes through the logkeeper. A task without a log is started without it, and
    /// without output FIFOs, while the logkeeper is down.
    pub(crate) fn uses_logkeeper(&self) -> bool {
        let is_live = match self.record().output {
            OutputRecord::Log(_) => return true,
            OutputRecord::Live => true,
            OutputRecord::Discard | OutputRecord::Fifos { .. } => false,
        };
        is_live && self.dirs.stdout().exists()
    }

    /// Keeps the readers of the FIFOs that a client made for its output from seeing an end of file, until the
    /// task has been started or its start has failed.
    pub(crate) fn keep_fifos_open(&self) {
        let paths = match &self.record().output {
            OutputRecord::Fifos { stdout, stderr } => [stdout.clone(), stderr.clone()],
            OutputRecord::Discard | OutputRecord::Live | OutputRecord::Log(_) => return,
        };
        self.apply(LifecycleEvent::FifosHeld(keep_open(&paths)));
    }

    /// Holds its output FIFOs open: the logkeeper may have to write output of it from now on.
    pub(super) fn hold_output(&self, hold: switchyard_logkeeper::FifoHold) {
        *self.output.lock() = OutputState::Open { _hold: Some(hold) };
    }

    /// Returns whether its output FIFOs are held open: a start has come so far, and the logkeeper may have
    /// its log open.
    pub(super) fn holds_output(&self) -> bool {
        matches!(*self.output.lock(), OutputState::Open { _hold: Some(_) })
    }

    /// Records that the logkeeper has written the rest of its output, and lets go of the FIFOs.
    pub(super) fn set_output_finished(&self) {
        *self.output.lock() = OutputState::Finished;
    }

    /// Returns whether the logkeeper has written the rest of its output, or has given it up, and has closed
    /// its FIFOs.
    pub(super) fn is_output_finished(&self) -> bool {
        matches!(*self.output.lock(), OutputState::Finished)
    }
}
