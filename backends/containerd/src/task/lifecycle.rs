//! The lifecycle of a task as this daemon knows it: one state, changed by one pure function.
//!
//! ```text
//!             Launched                  Started
//!   Created ───────────► Launching ───────────────► Running
//!    │   ▲                │   │                       │
//!    │   └────────────────┘   │ ExitObserved,         │ ExitObserved,
//!    │     ProcessDeleted     │ ExitPersisted,        │ ExitPersisted
//!    │                        │ StartFailed           │
//!    │ StartFailed            ▼                       ▼
//!    └─────────────────────► Exited ◄─────────────────┘
//!                             │  ▲  ExitPersisted, ProcessDeleted, ExitReported
//!                             └──┘
//! ```
//!
//! Recovery enters by the same events: a task that a predecessor may have launched is `Launching`, one that
//! runs has been `Started`, and so on. An event that does not apply to a state leaves it as it is, for
//! example the report of an exit that is persisted already.

use std::fs::File;
use std::sync::Arc;

use switchyard_core::backend::Started;
use switchyard_core::state::Exit;
use tokio::time::Instant;

use super::cgroups::oom::OomMonitor;
use super::process::ProcessHandle;

/// The state of a task, with what is held for it in that state.
#[derive(Debug)]
pub(super) enum TaskLifecycle {
    /// It can be started: containerd has no process of it.
    Created(Unstarted),
    /// A start is under way, of this daemon or of a predecessor: containerd may have a process of it.
    Launching(Launching),
    /// Its program was started, and no exit of it is known.
    Running(Running),
    /// It has exited, or its start has failed.
    Exited(Exited),
}

/// The state of a task before its start has succeeded.
#[derive(Debug, Default)]
pub(super) struct Unstarted {
    /// An earlier process of it has been ended, after which containerd may not have cleaned up yet.
    process_ended: bool,
    /// Both ends of the FIFOs that a client made for the output, held from the recovery of an interrupted
    /// start until the next start has succeeded or failed.
    client_fifos: Vec<File>,
}

/// A start that is under way.
#[derive(Debug)]
pub(super) struct Launching {
    before: Unstarted,
    watched: Watched,
}

/// A task whose program was started.
#[derive(Debug)]
pub(super) struct Running {
    start: KnownStart,
    /// containerd has deleted the process, although no exit of it is known.
    deleted: bool,
    watched: Watched,
}

/// A task that has exited, or whose start has failed.
#[derive(Debug)]
pub(super) struct Exited {
    /// Its start; `None` if that failed or is not known.
    start: Option<KnownStart>,
    /// The exit as it was first observed, or as it is persisted, which takes precedence. The two can differ
    /// if another observer persisted an exit of its own first.
    exit: Exit,
    /// The exit is persisted in the container object.
    persisted: bool,
    /// The cleanup is complete, or left to the background, and callers get the exit.
    reported: bool,
    remains: Remains,
}

/// The remains of the process of a task that has exited.
#[derive(Debug)]
enum Remains {
    /// containerd may have it. With a handle if one was opened.
    Process(Option<Arc<ProcessHandle>>),
    Nothing,
}

/// The monitors of a process that was created and has not exited.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// A handle of the main process; `None` where that is not a process of this node.
    process: Option<Arc<ProcessHandle>>,
    oom: Option<Arc<OomMonitor>>,
    /// This daemon sent it SIGKILL.
    killed: bool,
}

/// A start, and the monotonic time at which this daemon learned of it: the wall clock from which `start.at`
/// was taken may have been set since.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownStart {
    pub(super) start: Started,
    pub(super) since: Instant,
}

/// An event in the life of a task.
#[derive(Debug)]
pub(crate) enum LifecycleEvent {
    /// A start begins: containerd may have a process from now on.
    Launched,
    /// The FIFOs that a client made for the output are held open.
    FifosHeld(Vec<File>),
    /// containerd has created the main process. With a handle if it is one of this node.
    ProcessCreated(Option<ProcessHandle>),
    /// OOM kills in the cgroup are counted.
    OomWatched(OomMonitor),
    /// The program was started.
    Started(Started, Instant),
    /// This daemon sends SIGKILL.
    Killed,
    /// An exit was observed that is not persisted yet.
    ExitObserved(Exit),
    /// This exit is persisted in the container object.
    ExitPersisted(Exit),
    /// containerd has no process any more.
    ProcessDeleted,
    /// Callers get the exit from now on.
    ExitReported,
    /// The start has failed and is undone; the failure is persisted.
    StartFailed(Exit),
}

// === impl TaskLifecycle ===

impl Default for TaskLifecycle {
    fn default() -> Self {
        Self::Created(Unstarted::default())
    }
}

impl TaskLifecycle {
    /// The state after an event. Pure.
    pub(super) fn after(self, event: LifecycleEvent) -> Self {
        match self {
            Self::Created(state) => state.after(event),
            Self::Launching(state) => state.after(event),
            Self::Running(state) => state.after(event),
            Self::Exited(state) => Self::Exited(state.after(event)),
        }
    }

    pub(super) fn start(&self) -> Option<KnownStart> {
        match self {
            Self::Created(_) | Self::Launching(_) => None,
            Self::Running(state) => Some(state.start),
            Self::Exited(state) => state.start,
        }
    }

    /// Returns whether clients may treat it as running: it was started, and its exit is not reported.
    pub(super) fn runs(&self) -> bool {
        match self {
            Self::Created(_) | Self::Launching(_) => false,
            Self::Running(_) => true,
            Self::Exited(state) => state.start.is_some() && !state.reported,
        }
    }

    /// Returns whether containerd may have a process of it, though that may have exited.
    pub(super) fn may_have_process(&self) -> bool {
        match self {
            Self::Created(_) => false,
            Self::Launching(_) => true,
            Self::Running(state) => !state.deleted,
            Self::Exited(state) => matches!(state.remains, Remains::Process(_)),
        }
    }

    /// Returns whether an earlier process of a task that is not started has been ended.
    pub(super) fn process_ended_before(&self) -> bool {
        match self {
            Self::Created(state) => state.process_ended,
            Self::Launching(state) => state.before.process_ended,
            Self::Running(_) | Self::Exited(_) => false,
        }
    }

    /// The handle of its main process, until containerd has deleted that.
    pub(super) fn process(&self) -> Option<Arc<ProcessHandle>> {
        match self {
            Self::Created(_) => None,
            Self::Launching(Launching { watched, .. }) | Self::Running(Running { watched, .. }) => {
                watched.process.clone()
            }
            Self::Exited(state) => match &state.remains {
                Remains::Process(process) => process.clone(),
                Remains::Nothing => None,
            },
        }
    }

    /// The OOM monitor of its process, until an exit is known.
    pub(super) fn oom(&self) -> Option<Arc<OomMonitor>> {
        self.watched()?.oom.clone()
    }

    /// Returns whether this daemon sent SIGKILL to its process, of which no exit is known.
    pub(super) fn was_killed(&self) -> bool {
        self.watched().is_some_and(|watched| watched.killed)
    }

    const fn watched(&self) -> Option<&Watched> {
        match self {
            Self::Launching(Launching { watched, .. }) | Self::Running(Running { watched, .. }) => {
                Some(watched)
            }
            Self::Created(_) | Self::Exited(_) => None,
        }
    }

    /// Its exit: as it is persisted, or else as it was observed.
    pub(super) fn exit(&self) -> Option<&Exit> {
        self.exited().map(|state| &state.exit)
    }

    /// Its exit, if that is persisted.
    pub(super) fn persisted_exit(&self) -> Option<&Exit> {
        self.exited()
            .filter(|state| state.persisted)
            .map(|state| &state.exit)
    }

    /// Its exit, if that is not persisted.
    pub(super) fn unpersisted_exit(&self) -> Option<&Exit> {
        self.exited()
            .filter(|state| !state.persisted)
            .map(|state| &state.exit)
    }

    /// The exit that callers get.
    pub(super) fn reported_exit(&self) -> Option<&Exit> {
        self.exited()
            .filter(|state| state.reported)
            .map(|state| &state.exit)
    }

    const fn exited(&self) -> Option<&Exited> {
        match self {
            Self::Exited(state) => Some(state),
            Self::Created(_) | Self::Launching(_) | Self::Running(_) => None,
        }
    }
}

// === impl Unstarted ===

impl Unstarted {
    fn after(mut self, event: LifecycleEvent) -> TaskLifecycle {
        match event {
            LifecycleEvent::Launched => {
                return TaskLifecycle::Launching(Launching {
                    before: self,
                    watched: Watched::default(),
                });
            }
            LifecycleEvent::StartFailed(exit) => {
                return TaskLifecycle::Exited(Exited::start_failed(exit, Remains::Nothing));
            }
            LifecycleEvent::FifosHeld(fifos) => self.client_fifos = fifos,
            LifecycleEvent::ProcessCreated(_)
            | LifecycleEvent::OomWatched(_)
            | LifecycleEvent::Started(..)
            | LifecycleEvent::Killed
            | LifecycleEvent::ExitObserved(_)
            | LifecycleEvent::ExitPersisted(_)
            | LifecycleEvent::ProcessDeleted
            | LifecycleEvent::ExitReported => {}
        }
        TaskLifecycle::Created(self)
    }
}

// === impl Launching ===

impl Launching {
    fn after(mut self, event: LifecycleEvent) -> TaskLifecycle {
        match event {
            LifecycleEvent::Started(start, since) => {
                // The shim has opened the client's FIFOs by now, so they are not held any longer.
                let start = KnownStart { start, since };
                return TaskLifecycle::Running(Running {
                    start,
                    deleted: false,
                    watched: self.watched,
                });
            }
            LifecycleEvent::ExitObserved(exit) => {
                let remains = Remains::Process(self.watched.process);
                return TaskLifecycle::Exited(Exited::new(None, exit, false, remains));
            }
            LifecycleEvent::ExitPersisted(exit) => {
                let remains = Remains::Process(self.watched.process);
                return TaskLifecycle::Exited(Exited::new(None, exit, true, remains));
            }
            LifecycleEvent::StartFailed(exit) => {
                let remains = Remains::Process(self.watched.process);
                return TaskLifecycle::Exited(Exited::start_failed(exit, remains));
            }
            LifecycleEvent::ProcessDeleted => {
                return TaskLifecycle::Created(Unstarted {
                    process_ended: true,
                    ..self.before
                });
            }
            LifecycleEvent::FifosHeld(fifos) => self.before.client_fifos = fifos,
            LifecycleEvent::ProcessCreated(process) => self.watched.process = process.map(Arc::new),
            LifecycleEvent::OomWatched(monitor) => self.watched.oom = Some(Arc::new(monitor)),
            LifecycleEvent::Killed => self.watched.killed = true,
            LifecycleEvent::Launched | LifecycleEvent::ExitReported => {}
        }
        TaskLifecycle::Launching(self)
    }
}

// === impl Running ===

impl Running {
    fn after(mut self, event: LifecycleEvent) -> TaskLifecycle {
        match event {
            LifecycleEvent::ExitObserved(exit) => {
                return TaskLifecycle::Exited(self.exited(exit, false));
            }
            LifecycleEvent::ExitPersisted(exit) => {
                return TaskLifecycle::Exited(self.exited(exit, true));
            }
            LifecycleEvent::ProcessCreated(process) => self.watched.process = process.map(Arc::new),
            LifecycleEvent::OomWatched(monitor) => self.watched.oom = Some(Arc::new(monitor)),
            LifecycleEvent::Killed => self.watched.killed = true,
            LifecycleEvent::ProcessDeleted => self.deleted = true,
            LifecycleEvent::Launched
            | LifecycleEvent::FifosHeld(_)
            | LifecycleEvent::Started(..)
            | LifecycleEvent::ExitReported
            | LifecycleEvent::StartFailed(_) => {}
        }
        TaskLifecycle::Running(self)
    }

    fn exited(self, exit: Exit, persisted: bool) -> Exited {
        let remains = if self.deleted {
            Remains::Nothing
        } else {
            Remains::Process(self.watched.process)
        };
        Exited::new(Some(self.start), exit, persisted, remains)
    }
}

// === impl Exited ===

impl Exited {
    const fn new(start: Option<KnownStart>, exit: Exit, persisted: bool, remains: Remains) -> Self {
        Self {
            start,
            exit,
            persisted,
            reported: false,
            remains,
        }
    }

    const fn start_failed(exit: Exit, remains: Remains) -> Self {
        Self {
            start: None,
            exit,
            persisted: true,
            reported: true,
            remains,
        }
    }

    fn after(mut self, event: LifecycleEvent) -> Self {
        match event {
            // The exit was seen, and persisted, by another observer before the start was known.
            LifecycleEvent::Started(start, since) => {
                self.start.get_or_insert(KnownStart { start, since });
            }
            LifecycleEvent::ExitPersisted(exit) => {
                self.exit = exit;
                self.persisted = true;
            }
            LifecycleEvent::ProcessDeleted => self.remains = Remains::Nothing,
            LifecycleEvent::ExitReported => self.reported = true,
            LifecycleEvent::StartFailed(exit) => {
                self = Self {
                    start: self.start,
                    ..Self::start_failed(exit, self.remains)
                };
            }
            LifecycleEvent::Launched
            | LifecycleEvent::FifosHeld(_)
            | LifecycleEvent::ProcessCreated(_)
            | LifecycleEvent::OomWatched(_)
            | LifecycleEvent::Killed
            | LifecycleEvent::ExitObserved(_) => {}
        }
        self
    }
}

#[cfg(test)]
mod tests;
