//! Tasks: made, started, ended and removed.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use containerd_client::types::Mount;
use switchyard_core::backend::Started;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::spec::Signal;
use switchyard_core::state::Exit;
use switchyard_core::{Error, Result};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::backend::Inner;
use crate::layout::TaskDirs;
use crate::record::{OutputRecord, TaskRecord};
use crate::shim::ShimAddress;

mod attach;
mod checkpoint;
mod create;
mod exit;
mod fifos;
mod freeze;
mod hung;
pub(crate) mod leaf;
mod oom;
mod pod_shim;
mod process;
mod quota;
mod remove;
mod score;
mod signalable;
pub(crate) mod stage;
mod start;
mod throttle;
mod unread;
mod update;
mod volumes;

pub(crate) use fifos::keep_open;
pub(crate) use freeze::ExecPermit;
use freeze::MAX_EXEC_PERMITS;
pub(crate) use hung::UnresponsiveShims;
pub(crate) use pod_shim::PodShims;
pub(crate) use process::{ProcessHandle, process_ended};
pub(crate) use start::{log_spec, make_fifos, mark_started, open_output_fifos};

/// A task as the backend knows it.
#[derive(Debug)]
pub(crate) struct TaskEntry {
    pub(crate) id: TaskId,
    pub(crate) sandbox: SandboxId,
    pub(crate) dirs: TaskDirs,
    pub(crate) snapshotter: String,
    pub(crate) leaf: bool,
    record: Mutex<TaskRecord>,
    /// What its snapshot is mounted by; `None` after a restart, until it is asked for.
    mounts: Mutex<Option<Vec<Mount>>>,
    started: Mutex<Option<KnownStart>>,
    /// Holds the output FIFOs, whose content would be gone with their last reader should the logkeeper be away just then.
    output_fifos: Mutex<Option<switchyard_logkeeper::FifoHold>>,
    /// Both ends of somebody else's FIFOs, from a start that was cut off to the end of the next one.
    external_fifos: Mutex<Vec<File>>,
    /// Who is attached to its standard input.
    inputs: Mutex<attach::Inputs>,
    oom: Mutex<Option<oom::OomMonitor>>,
    /// Its main process, from its making on, where that is a process of this node.
    process: Mutex<Option<ProcessHandle>>,
    /// Whether it was sent SIGKILL by us.
    killed: AtomicBool,
    /// Whether the logkeeper has let go of it.
    log_finished: AtomicBool,
    /// Whoever makes a process in it has a place here; who has it stand still has all.
    exec_permits: Arc<Semaphore>,
    /// All places, while it stands still for a checkpoint.
    freeze_permits: Mutex<Option<OwnedSemaphorePermit>>,
    /// What starts, settles, clears, removes or makes a checkpoint of its process comes one after the other.
    process_lock: Arc<Semaphore>,
    /// What changes its limits comes one after the other.
    limits_lock: Arc<Semaphore>,
    /// The part of its spec that says how a process is made in it, as JSON; read when it is first needed.
    process_spec: OnceCell<Box<str>>,
    /// Whether a start was tried, so that containerd may have a process of it.
    launched: AtomicBool,
    /// Whether an earlier process of it was ended.
    ended: AtomicBool,
    /// Its end as it was told to who waits for it; another may be on record, by who has seen it before.
    observed_exit: OnceCell<Exit>,
    /// Its end, once it is on record; clearing up may still be due.
    persisted_exit: OnceCell<Exit>,
    /// Its end, once all is cleared up, or left to be.
    final_exit: OnceCell<Exit>,
}

/// A start, and since when this daemon knows of it: the clock that the start was told by may have been set since.
#[derive(Debug, Clone, Copy)]
struct KnownStart {
    start: Started,
    since: Instant,
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
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn started(&self) -> Option<Started> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).map(|known| known.start)
    }

    /// The time of an end, or of the start where the clock was set back in between: nothing ends before it began.
    pub(crate) fn not_before_start(&self, end: SystemTime) -> SystemTime {
        self.started().map_or(end, |started| end.max(started.at))
    }

    pub(crate) fn set_started(&self, started: Option<Started>) {
        let known = started.map(|start| KnownStart { start, since: Instant::now() });
        if known.is_some() {
            // Its shim has them by now.
            self.external_fifos.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// Waits for a turn at its process, in the order of asking; the turn ends when it is dropped. Cancel-safe.
    pub(crate) async fn lock_process(&self) -> Option<OwnedSemaphorePermit> {
        // Nobody closes it.
        Arc::clone(&self.process_lock).acquire_owned().await.ok()
    }

    /// The same, for its limits.
    async fn lock_limits(&self) -> Option<OwnedSemaphorePermit> {
        // Nobody closes it.
        Arc::clone(&self.limits_lock).acquire_owned().await.ok()
    }

    /// Whether its process runs, as far as has been told.
    fn runs(&self) -> bool {
        self.started().is_some() && self.final_exit().is_none()
    }

    /// Notes that containerd may have a process of this task from now on.
    pub(crate) fn set_launched(&self) {
        self.launched.store(true, Ordering::Release);
    }

    /// Notes that containerd has no process of this task any more.
    pub(crate) fn set_cleared(&self) {
        self.launched.store(false, Ordering::Release);
    }

    /// Notes that an earlier process of this task was ended, which containerd may not have cleared up after.
    pub(crate) fn set_ended(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether an earlier process of this task was ended.
    fn was_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether containerd may have a process of this task: one was launched, and it has not been cleared up after, though it may have ended.
    pub(crate) fn may_have_process(&self) -> bool {
        self.launched.load(Ordering::Acquire)
    }

    /// What the path of the cgroup of each of its processes bears.
    pub(crate) fn cgroup_mark(&self) -> String {
        self.record().cgroup_marker(&self.id.to_string())
    }

    /// Takes hold of its main process, if the number is that of one.
    fn open_process(&self, pid: u32) {
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) =
            ProcessHandle::open(pid, &self.cgroup_mark());
    }

    /// What can be read once its main process has ended, if that is held.
    fn main_pidfd(&self) -> Option<OwnedFd> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.pidfd()
    }

    /// The number of its main process, if that is held.
    fn main_pid(&self) -> Option<u32> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(ProcessHandle::pid)
    }

    /// The number of its main process, if that is held and has not ended: so the number is its own.
    fn running_pid(&self) -> Option<u32> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.as_ref().filter(|process| process.runs()).map(ProcessHandle::pid)
    }

    /// The process id of its shim, if its main process is held and has not ended.
    pub(crate) fn shim_pid(&self) -> Option<i32> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let shim = i32::try_from(process.as_ref()?.parent()?).ok()?;
        // The children of a shim that has gone are the first process's.
        (shim > 1).then_some(shim)
    }

    /// Where its shim listens, if its main process is held and that can be found.
    pub(crate) fn shim(&self) -> Option<ShimAddress> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.as_ref()?.shim(&self.id.to_string())
    }

    /// Sends a signal to its main process, if that is held.
    fn signal_process(&self, signal: Signal) -> process::Sent {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.as_ref().map_or(process::Sent::Refused, |process| process.signal(signal))
    }

    /// Whether the logkeeper has its output. It does without while there is no logkeeper, if it has no log.
    pub(crate) fn uses_logkeeper(&self) -> bool {
        let record = self.record();
        match record.output {
            OutputRecord::Log(_) => true,
            OutputRecord::Live => self.dirs.stdout().exists(),
            OutputRecord::Discard | OutputRecord::Fifos { .. } => false,
        }
    }

    /// Keeps the FIFOs of somebody else that its output goes into from seeing an end, until it has been started or that has failed.
    pub(crate) fn keep_fifos_open(&self) {
        let paths = match &self.record().output {
            OutputRecord::Fifos { stdout, stderr } => [stdout.clone(), stderr.clone()],
            OutputRecord::Discard | OutputRecord::Live | OutputRecord::Log(_) => return,
        };
        *self.external_fifos.lock().unwrap_or_else(PoisonError::into_inner) = keep_open(&paths);
    }

    /// Lets go of what is held for a process that runs, which it does no more.
    fn release_process(&self) {
        self.external_fifos.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.oom.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.process.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Sets an exit that is on record already.
    pub(crate) fn set_final_exit(&self, exit: Exit) {
        // Recovery does this on a new entry, and a start that failed.
        let _ = self.final_exit.set(exit);
    }

    pub(crate) fn final_exit(&self) -> Option<Exit> {
        self.final_exit.get().cloned()
    }

    /// Whether its end is on record, even if it is not cleared up after.
    pub(crate) fn is_exit_persisted(&self) -> bool {
        self.persisted_exit.initialized()
            || (self.final_exit.initialized() && !self.observed_exit.initialized())
    }

    /// Whether its end was seen and is not on record.
    pub(crate) fn has_unpersisted_exit(&self) -> bool {
        self.observed_exit.initialized() && !self.persisted_exit.initialized()
    }
}

impl Inner {
    pub(crate) fn task(&self, id: TaskId) -> Result<Arc<TaskEntry>> {
        let found = self.tasks().get(&id).cloned();
        found.ok_or_else(|| Error::not_found(format!("task {id} does not exist")))
    }
}
