//! The in-memory state of a task.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use containerd_client::types::Mount;
use parking_lot::{Mutex, MutexGuard};
use switchyard_core::backend::Started;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::spec::Signal;
use switchyard_core::state::Exit;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::cgroups::oom::OomMonitor;
use super::fifos::keep_open;
use super::inputs::Inputs;
use super::process::{ProcessHandle, Sent};
use crate::base::layout::TaskDirs;
use crate::record::{OutputRecord, TaskRecord};
use crate::shims::direct::ShimAddress;

/// More processes than are ever started at the same time in one task.
pub(super) const MAX_EXEC_PERMITS: u32 = 1 << 20;

/// The in-memory state of one task.
#[derive(Debug)]
pub(crate) struct TaskEntry {
    pub(crate) id: TaskId,
    pub(crate) sandbox: SandboxId,
    pub(crate) dirs: TaskDirs,
    pub(crate) snapshotter: String,
    pub(crate) leaf: bool,
    pub(super) record: Mutex<TaskRecord>,
    /// The mounts of its snapshot as `Prepare` returned them, until they are first used. `None` after that
    /// and after a restart: containerd is then asked for them.
    pub(super) mounts: Mutex<Option<Vec<Mount>>>,
    pub(super) started: Mutex<Option<KnownStart>>,
    /// Keeps the output FIFOs open: the kernel discards the content of a FIFO when its last reader closes it,
    /// and the logkeeper may be down at that moment.
    pub(super) output_fifos: Mutex<Option<switchyard_logkeeper::FifoHold>>,
    /// Both ends of the FIFOs that a client made for the output. Held from the recovery of an interrupted
    /// start until the next start has succeeded or failed.
    pub(super) external_fifos: Mutex<Vec<File>>,
    /// The clients that are attached to its standard input.
    pub(super) inputs: Mutex<Inputs>,
    pub(super) oom: Mutex<Option<OomMonitor>>,
    /// A handle of its main process, from its creation on; `None` where the main process is not one of this
    /// node.
    pub(super) process: Mutex<Option<ProcessHandle>>,
    /// Whether this daemon sent it SIGKILL.
    pub(super) killed: AtomicBool,
    /// Whether the logkeeper has written the rest of its output and closed its FIFOs.
    pub(super) log_finished: AtomicBool,
    /// Starting a process in the task takes one permit; freezing the task for a checkpoint takes all of them.
    pub(super) exec_permits: Arc<Semaphore>,
    /// All permits of `exec_permits`, while the task is frozen for a checkpoint.
    pub(super) freeze_permits: Mutex<Option<OwnedSemaphorePermit>>,
    /// Serializes what starts, cleans up, removes or checkpoints its process, or completes a predecessor's
    /// start of it.
    pub(super) process_lock: Arc<Semaphore>,
    /// Serializes changes of its limits.
    pub(super) limits_lock: Arc<Semaphore>,
    /// The `process` part of its OCI spec, as JSON, from which execs are made; read when it is first needed.
    pub(super) process_spec: OnceCell<Box<str>>,
    /// Whether a start was attempted since the last cleanup, so that containerd may have a process of it.
    pub(super) launched: AtomicBool,
    /// Whether an earlier process of it has been ended.
    pub(super) ended: AtomicBool,
    /// The exit as it was first observed. The persisted exit takes precedence: it can differ if another
    /// observer persisted its own first.
    pub(super) observed_exit: OnceCell<Exit>,
    /// The exit that is persisted in the container object; the cleanup may still be outstanding.
    pub(super) persisted_exit: OnceCell<Exit>,
    /// The exit that callers get: set once the cleanup is complete, or left to the background.
    pub(super) final_exit: OnceCell<Exit>,
}

/// A start, and the monotonic time at which this daemon learned of it: the wall clock from which `start.at`
/// was taken may have been set since.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownStart {
    pub(super) start: Started,
    pub(super) since: Instant,
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
            leaf: record.leaf,
            record: Mutex::new(record),
            mounts: Mutex::default(),
            started: Mutex::default(),
            output_fifos: Mutex::default(),
            external_fifos: Mutex::default(),
            inputs: Mutex::default(),
            oom: Mutex::default(),
            process: Mutex::default(),
            killed: AtomicBool::new(false),
            log_finished: AtomicBool::new(false),
            exec_permits: Arc::new(Semaphore::new(MAX_EXEC_PERMITS as usize)),
            freeze_permits: Mutex::default(),
            process_lock: Arc::new(Semaphore::new(1)),
            limits_lock: Arc::new(Semaphore::new(1)),
            process_spec: OnceCell::new(),
            launched: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            observed_exit: OnceCell::new(),
            persisted_exit: OnceCell::new(),
            final_exit: OnceCell::new(),
        }
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, TaskRecord> {
        self.record.lock()
    }

    pub(crate) fn started(&self) -> Option<Started> {
        self.started.lock().map(|known| known.start)
    }

    /// The exit time `end`, or the start time if that is later because the clock was set back in between: no
    /// exit is earlier than its start.
    pub(crate) fn not_before_start(&self, end: SystemTime) -> SystemTime {
        self.started().map_or(end, |started| end.max(started.at))
    }

    pub(crate) fn set_started(&self, started: Option<Started>) {
        let known = started.map(|start| KnownStart { start, since: Instant::now() });
        if known.is_some() {
            // The shim has opened these FIFOs by now.
            self.external_fifos.lock().clear();
        }
        *self.started.lock() = known;
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

    /// Whether its process runs, as far as this daemon knows.
    pub(super) fn runs(&self) -> bool {
        self.started().is_some() && self.final_exit().is_none()
    }

    /// Records that containerd may have a process of this task from now on.
    pub(crate) fn set_launched(&self) {
        self.launched.store(true, Ordering::Release);
    }

    /// Records that containerd has no process of this task any more.
    pub(crate) fn set_cleared(&self) {
        self.launched.store(false, Ordering::Release);
    }

    /// Records that an earlier process of this task has been ended, after which containerd may not have
    /// cleaned up yet.
    pub(crate) fn set_ended(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether an earlier process of this task has been ended.
    pub(super) fn was_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether containerd may have a process of this task: one was launched and has not been cleaned up,
    /// though it may have exited.
    pub(crate) fn may_have_process(&self) -> bool {
        self.launched.load(Ordering::Acquire)
    }

    /// The text that the cgroup path of each of its processes contains.
    pub(crate) fn cgroup_mark(&self) -> String {
        self.record().cgroup_marker(&self.id.to_string())
    }

    /// Opens a handle of its main process, if `pid` is that of a process of this task.
    pub(super) fn open_process(&self, pid: u32) {
        *self.process.lock() = ProcessHandle::open(pid, &self.cgroup_mark());
    }

    /// A pidfd of its main process, if a handle is held: it becomes readable when the process has exited.
    pub(super) fn main_pidfd(&self) -> Option<OwnedFd> {
        self.process.lock().as_ref()?.pidfd()
    }

    /// The pid of its main process, if a handle is held.
    pub(super) fn main_pid(&self) -> Option<u32> {
        self.process.lock().as_ref().map(ProcessHandle::pid)
    }

    /// The pid of its main process, if a handle is held and the process has not exited: so the pid has not
    /// been reused.
    pub(super) fn running_pid(&self) -> Option<u32> {
        let process = self.process.lock();
        process.as_ref().filter(|process| process.runs()).map(ProcessHandle::pid)
    }

    /// The pid of its shim, if a handle of its main process is held and the process has not exited.
    pub(crate) fn shim_pid(&self) -> Option<i32> {
        let process = self.process.lock();
        let shim = i32::try_from(process.as_ref()?.parent()?).ok()?;
        // The children of a shim that has exited are reparented to pid 1.
        (shim > 1).then_some(shim)
    }

    /// The address of its shim, if a handle of its main process is held and the address can be found.
    pub(crate) fn shim(&self) -> Option<ShimAddress> {
        let process = self.process.lock();
        process.as_ref()?.shim(&self.id.to_string())
    }

    /// Sends a signal to its main process, if a handle is held.
    pub(super) fn signal_process(&self, signal: Signal) -> Sent {
        let process = self.process.lock();
        process.as_ref().map_or(Sent::Refused, |process| process.signal(signal))
    }

    /// Whether its output goes through the logkeeper. A task without a log is started without it, and without
    /// output FIFOs, while the logkeeper is down.
    pub(crate) fn uses_logkeeper(&self) -> bool {
        let record = self.record();
        match record.output {
            OutputRecord::Log(_) => true,
            OutputRecord::Live => self.dirs.stdout().exists(),
            OutputRecord::Discard | OutputRecord::Fifos { .. } => false,
        }
    }

    /// Keeps the readers of the FIFOs that a client made for its output from seeing an end of file, until the
    /// task has been started or its start has failed.
    pub(crate) fn keep_fifos_open(&self) {
        let paths = match &self.record().output {
            OutputRecord::Fifos { stdout, stderr } => [stdout.clone(), stderr.clone()],
            OutputRecord::Discard | OutputRecord::Live | OutputRecord::Log(_) => return,
        };
        *self.external_fifos.lock() = keep_open(&paths);
    }

    /// Drops everything that is held for a running process, which has exited.
    pub(super) fn release_process(&self) {
        self.external_fifos.lock().clear();
        self.oom.lock().take();
        self.process.lock().take();
    }

    /// Sets an exit that is persisted already.
    pub(crate) fn set_final_exit(&self, exit: Exit) {
        // Not set before: this is called by recovery, on a new entry, and after a failed start.
        let _ = self.final_exit.set(exit);
    }

    pub(crate) fn final_exit(&self) -> Option<Exit> {
        self.final_exit.get().cloned()
    }

    /// Whether its exit is persisted, even if the cleanup is outstanding.
    pub(crate) fn is_exit_persisted(&self) -> bool {
        self.persisted_exit.initialized()
            || (self.final_exit.initialized() && !self.observed_exit.initialized())
    }

    /// Whether its exit was observed and is not persisted.
    pub(crate) fn has_unpersisted_exit(&self) -> bool {
        self.observed_exit.initialized() && !self.persisted_exit.initialized()
    }
}
