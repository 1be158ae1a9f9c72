//! Controls the calls of one backend object: logs them, injects faults, and holds calls.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::spec::Signal;
use switchyard_core::{Error, Result};
use tokio::sync::watch;

/// A method of the backend or of its image store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// [`Backend::recover`](switchyard_core::backend::Backend::recover).
    Recover,
    /// [`SandboxBackend::create_sandbox`](switchyard_core::backend::SandboxBackend::create_sandbox).
    CreateSandbox,
    /// [`SandboxBackend::find_listener`](switchyard_core::backend::SandboxBackend::find_listener).
    FindListener,
    /// [`SandboxBackend::wait_network_released`](switchyard_core::backend::SandboxBackend::wait_network_released).
    NetworkReleased,
    /// [`SandboxBackend::stop_sandbox`](switchyard_core::backend::SandboxBackend::stop_sandbox).
    StopSandbox,
    /// [`SandboxBackend::amend_sandbox`](switchyard_core::backend::SandboxBackend::amend_sandbox).
    AmendSandbox,
    /// [`SandboxBackend::start_sandbox`](switchyard_core::backend::SandboxBackend::start_sandbox).
    StartSandbox,
    /// [`VolumeBackend::remove_volume`](switchyard_core::backend::VolumeBackend::remove_volume).
    RemoveVolume,
    /// [`SandboxBackend::set_ranges`](switchyard_core::backend::SandboxBackend::set_ranges).
    SetRanges,
    /// [`SandboxBackend::begin_removal`](switchyard_core::backend::SandboxBackend::begin_removal).
    BeginRemoval,
    /// [`SandboxBackend::remove_sandbox`](switchyard_core::backend::SandboxBackend::remove_sandbox).
    RemoveSandbox,
    /// [`TaskBackend::create_task`](switchyard_core::backend::TaskBackend::create_task).
    CreateTask,
    /// [`TaskBackend::start_task`](switchyard_core::backend::TaskBackend::start_task).
    StartTask,
    /// [`TaskBackend::resolve_start`](switchyard_core::backend::TaskBackend::resolve_start).
    ResolveStart,
    /// [`TaskBackend::signal_task`](switchyard_core::backend::TaskBackend::signal_task).
    SignalTask,
    /// [`TaskBackend::wait_task`](switchyard_core::backend::TaskBackend::wait_task).
    WaitTask,
    /// [`TaskBackend::remove_task`](switchyard_core::backend::TaskBackend::remove_task).
    RemoveTask,
    /// [`TaskBackend::update_task`](switchyard_core::backend::TaskBackend::update_task).
    UpdateTask,
    /// [`CheckpointBackend::checkpoint_task`](switchyard_core::backend::CheckpointBackend::checkpoint_task).
    CheckpointTask,
    /// [`ExecBackend::exec`](switchyard_core::backend::ExecBackend::exec).
    Exec,
    /// [`ExecControl::resize`](switchyard_core::backend::ExecControl::resize); its object is `TASK WIDTHxHEIGHT`.
    ResizeExec,
    /// [`TaskBackend::attach`](switchyard_core::backend::TaskBackend::attach).
    Attach,
    /// [`TaskBackend::resize_task`](switchyard_core::backend::TaskBackend::resize_task).
    ResizeTask,
    /// [`SandboxBackend::dial`](switchyard_core::backend::SandboxBackend::dial).
    Dial,
    /// [`TaskBackend::reopen_log`](switchyard_core::backend::TaskBackend::reopen_log).
    ReopenLog,
    /// [`StatsBackend::task_stats`](switchyard_core::backend::StatsBackend::task_stats).
    TaskStats,
    /// [`StatsBackend::task_metrics`](switchyard_core::backend::StatsBackend::task_metrics).
    TaskMetrics,
    /// [`StatsBackend::sandbox_traffic`](switchyard_core::backend::StatsBackend::sandbox_traffic).
    SandboxTraffic,
    /// [`StatsBackend::sandbox_stats`](switchyard_core::backend::StatsBackend::sandbox_stats).
    SandboxStats,
    /// [`StatsBackend::inspect_task`](switchyard_core::backend::StatsBackend::inspect_task).
    InspectTask,
    /// [`StatsBackend::inspect_sandbox`](switchyard_core::backend::StatsBackend::inspect_sandbox).
    InspectSandbox,
    /// [`StatsBackend::task_blockers`](switchyard_core::backend::StatsBackend::task_blockers).
    TaskBlockers,
    /// [`ImageStore::pull`](switchyard_core::image::ImageStore::pull); one entry per download, however many
    /// callers share it.
    Pull,
    /// [`ImageStore::load`](switchyard_core::image::ImageStore::load).
    Load,
    /// [`ImageStore::get`](switchyard_core::image::ImageStore::get).
    GetImage,
    /// [`ImageStore::list`](switchyard_core::image::ImageStore::list).
    ListImages,
    /// [`ImageStore::remove`](switchyard_core::image::ImageStore::remove).
    RemoveImage,
    /// [`ImageStore::usage`](switchyard_core::image::ImageStore::usage).
    ImageUsage,
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// The id or reference of its object; empty if it has none.
    pub object: String,
    /// The signal that it sends.
    pub signal: Option<Signal>,
}

/// Blocks calls of one method until it is dropped.
#[derive(Debug)]
pub struct Hold {
    gate: Arc<Gate>,
}

/// The point at which a call is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// Before it takes effect.
    Entry,
    /// After it has taken effect, and before it returns.
    Answer,
}

#[derive(Debug)]
struct Gate {
    method: Method,
    point: Point,
    /// The number of calls that it holds, after which others pass.
    most: usize,
    waiting: watch::Sender<usize>,
    open: watch::Sender<bool>,
}

/// The calls of one backend object, from its creation until it is killed.
pub(crate) struct Session {
    alive: watch::Sender<bool>,
    recovered: AtomicBool,
    latency: Duration,
    log: Mutex<CallLog>,
    breaches: Arc<Mutex<Vec<String>>>,
}

#[derive(Default)]
struct CallLog {
    calls: Vec<Call>,
    faults: HashMap<Method, VecDeque<Error>>,
    gates: Vec<Arc<Gate>>,
    changing: HashMap<String, Method>,
}

/// A call in progress.
pub(crate) struct CallGuard<'a> {
    session: &'a Session,
    call: Call,
    done: bool,
}

impl Method {
    /// Returns whether it changes an object, so that the gateway must not call it concurrently for one
    /// object, nor drop it.
    const fn changes(self) -> bool {
        match self {
            Self::CreateSandbox
            | Self::StopSandbox
            | Self::AmendSandbox
            | Self::StartSandbox
            | Self::RemoveVolume
            | Self::BeginRemoval
            | Self::RemoveSandbox
            | Self::CreateTask
            | Self::StartTask
            | Self::RemoveTask
            | Self::UpdateTask
            | Self::CheckpointTask => true,
            Self::Recover
            | Self::SetRanges
            | Self::ResolveStart
            | Self::SignalTask
            | Self::WaitTask
            | Self::Exec
            | Self::ResizeExec
            | Self::Attach
            | Self::ResizeTask
            | Self::Dial
            | Self::ReopenLog
            | Self::TaskStats
            | Self::TaskMetrics
            | Self::SandboxTraffic
            | Self::SandboxStats
            | Self::InspectTask
            | Self::InspectSandbox
            | Self::TaskBlockers
            | Self::Pull
            | Self::Load
            | Self::GetImage
            | Self::ListImages
            | Self::RemoveImage
            | Self::ImageUsage
            | Self::FindListener
            | Self::NetworkReleased => false,
        }
    }

    /// Returns whether it may be called before `recover`.
    const fn needs_no_recovery(self) -> bool {
        matches!(
            self,
            Self::Recover
                | Self::Pull
                | Self::Load
                | Self::GetImage
                | Self::ListImages
                | Self::RemoveImage
                | Self::ImageUsage
        )
    }
}

// === impl Hold ===

impl Hold {
    /// Waits until this many calls in total have been held, including those that were released again.
    /// Cancel-safe.
    pub async fn arrived(&self, calls: usize) {
        let mut waiting = self.gate.waiting.subscribe();
        waiting
            .wait_for(|count| *count >= calls)
            .await
            .expect("the gate holds the sender");
    }

    /// Releases all calls, including later ones. Dropping does the same.
    pub fn release(self) {
        drop(self);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.gate.open.send_replace(true);
    }
}

// === impl Session ===

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("calls", &self.log().calls.len())
            .finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(breaches: Arc<Mutex<Vec<String>>>, latency: Duration) -> Self {
        Self {
            alive: watch::Sender::new(true),
            recovered: AtomicBool::new(false),
            latency,
            log: Mutex::default(),
            breaches,
        }
    }

    fn log(&self) -> MutexGuard<'_, CallLog> {
        self.log.lock()
    }

    /// From now on no call returns or takes effect any more: the process that made the calls is dead.
    pub(crate) fn kill(&self) {
        self.alive.send_replace(false);
    }

    pub(crate) fn is_killed(&self) -> bool {
        !*self.alive.borrow()
    }

    pub(crate) const fn latency(&self) -> Duration {
        self.latency
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.log().calls.clone()
    }

    pub(crate) fn fail_next(&self, method: Method, error: Error) {
        self.log()
            .faults
            .entry(method)
            .or_default()
            .push_back(error);
    }

    /// Holds calls of `method`, at most so many.
    pub(crate) fn hold(&self, method: Method, point: Point, most: usize) -> Hold {
        let gate = Arc::new(Gate {
            method,
            point,
            most,
            waiting: watch::Sender::new(0),
            open: watch::Sender::new(false),
        });
        self.log().gates.push(Arc::clone(&gate));
        Hold { gate }
    }

    pub(crate) fn breach(&self, what: String) {
        self.breaches.lock().push(what);
    }

    /// Never returns if the session was killed.
    pub(crate) async fn hang_if_killed(&self) {
        if !*self.alive.borrow() {
            std::future::pending::<()>().await;
        }
    }

    /// The result of `work`; never returns if the session is killed first.
    pub(crate) async fn unless_killed<T>(&self, work: impl Future<Output = T>) -> T {
        let mut alive = self.alive.subscribe();
        let dead = async { alive.wait_for(|alive| !alive).await.map(drop) };
        tokio::select! {
            biased;
            _ = dead => std::future::pending().await,
            given = work => given,
        }
    }

    /// Logs a call, and holds it as long as a test requires.
    pub(crate) async fn enter(
        &self,
        method: Method,
        object: impl fmt::Display,
        signal: Option<Signal>,
    ) -> CallGuard<'_> {
        let call = Call {
            method,
            object: object.to_string(),
            signal,
        };
        {
            let mut log = self.log();
            log.calls.push(call.clone());
            if method.changes()
                && let Some(other) = log.changing.insert(call.object.clone(), method)
            {
                self.breach(format!(
                    "{method:?} of {} began while {other:?} was under way",
                    call.object
                ));
            }
        }
        if method == Method::Recover {
            self.recovered.store(true, Ordering::Release);
        } else if !method.needs_no_recovery() && !self.recovered.load(Ordering::Acquire) {
            self.breach(format!(
                "{method:?} of {} was called before recover",
                call.object
            ));
        }
        let entered = CallGuard {
            session: self,
            call,
            done: false,
        };
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        self.wait_gate(method, Point::Entry).await;
        entered
    }

    async fn wait_gate(&self, method: Method, point: Point) {
        let gates: Vec<_> = {
            let mut log = self.log();
            log.gates.retain(|gate| !*gate.open.borrow());
            log.gates
                .iter()
                .filter(|gate| gate.method == method && gate.point == point)
                .filter(|gate| *gate.waiting.borrow() < gate.most)
                .map(Arc::clone)
                .collect()
        };
        for gate in gates {
            gate.waiting.send_modify(|count| *count += 1);
            let mut open = gate.open.subscribe();
            self.unless_killed(async { open.wait_for(|open| *open).await.map(drop) })
                .await
                .expect("the gate holds the sender");
        }
        self.hang_if_killed().await;
    }

    /// A complete call with an immediate effect: fails with the injected error, if any, or runs `effect`.
    pub(crate) async fn act<T: Send>(
        &self,
        method: Method,
        object: impl fmt::Display + Send,
        effect: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        let entered = self.enter(method, object, None).await;
        let result = match entered.fault() {
            Some(error) => Err(error),
            None => effect(),
        };
        entered.leave().await;
        result
    }
}

// === impl CallGuard ===

impl CallGuard<'_> {
    /// The error that a test has injected into this call.
    pub(crate) fn fault(&self) -> Option<Error> {
        self.session
            .log()
            .faults
            .get_mut(&self.call.method)?
            .pop_front()
    }

    /// Completes the call, once the test releases it.
    pub(crate) async fn leave(mut self) {
        self.session
            .wait_gate(self.call.method, Point::Answer)
            .await;
        self.done = true;
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if self.call.method.changes() {
            self.session.log().changing.remove(&self.call.object);
            if !self.done && *self.session.alive.borrow() && !std::thread::panicking() {
                self.session.breach(format!(
                    "{:?} of {} was dropped",
                    self.call.method, self.call.object
                ));
            }
        }
    }
}
