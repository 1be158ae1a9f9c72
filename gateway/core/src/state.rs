//! The states of sandboxes and tasks, and the only functions that change them.
//!
//! ```text
//! task:     Created ──start──► Starting ──started──► Running ──stop──► Stopping
//!              │                   │                    │                  │
//!              │                   └──failed──► Exited ◄┴────── exited ────┘
//!              └────────────remove────────────────┴───────► Removing ──► (gone)
//!           Removing ──failed──► as before
//!           Starting ──callers gone──► Unattended ──► as from Starting
//!
//! sandbox:  Ready ──stop──► Stopping ──stopped──► Stopped ──remove──► Removing ──► (gone)
//!             └────lost────► Unknown ──stop──┘      ▲ │
//!           Ready ◄──started── Starting ──failed────┘ └──start──► Starting ──stop──► Stopping
//! ```
//!
//! Both functions are pure: no clock, no I/O. An operation in progress is a state (`Starting`, `Stopping`,
//! `Removing`), never a separate flag.

use std::time::SystemTime;

/// The exit of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Exit code of the main process; 128 plus the signal if a signal ended it.
    pub code: i32,
    /// Time at which the process exited.
    pub finished_at: SystemTime,
    /// The cause, as far as it is known.
    pub cause: ExitCause,
}

/// The cause of an exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitCause {
    /// The process exited or was killed by a signal.
    Exited,
    /// The kernel killed it because it ran out of memory.
    OomKilled,
    /// The task never ran; the text gives the reason.
    StartFailed(String),
    /// The exit was not observed, and its exit code is not known.
    Lost,
}

/// The exit code reported for a task that never ran.
pub const START_FAILED_CODE: i32 = 128;

/// The exit code reported where the real one is not known.
pub const LOST_CODE: i32 = 255;

impl Exit {
    /// The exit of a task whose start failed.
    #[must_use]
    pub fn start_failed(at: SystemTime, why: impl Into<String>) -> Self {
        Self {
            code: START_FAILED_CODE,
            finished_at: at,
            cause: ExitCause::StartFailed(why.into()),
        }
    }

    /// The exit of a task that was not observed.
    #[must_use]
    pub const fn lost(at: SystemTime) -> Self {
        Self {
            code: LOST_CODE,
            finished_at: at,
            cause: ExitCause::Lost,
        }
    }
}

/// The state of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskState {
    /// Created, never started.
    Created,
    /// Being started.
    Starting,
    /// Being started, and nobody waits for that: the callers have gone away, and the start is being given up;
    /// or a predecessor began it, and its outcome is not known yet.
    Unattended,
    /// Its main process runs.
    Running {
        /// Process id on the host.
        pid: u32,
        /// Since when.
        started_at: SystemTime,
    },
    /// Its main process runs and a stop was requested.
    Stopping {
        /// Process id on the host.
        pid: u32,
        /// Time of its start.
        started_at: SystemTime,
    },
    /// It has exited, or could not be started.
    Exited {
        /// Time of its start; `None` if it never ran.
        started_at: Option<SystemTime>,
        /// Its exit.
        exit: Exit,
    },
    /// Being removed.
    Removing {
        /// Time of its start; `None` if it never ran.
        started_at: Option<SystemTime>,
        /// Its exit; `None` if it was never started.
        exit: Option<Exit>,
    },
}

/// An event in the life of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    /// A start was requested.
    StartRequested,
    /// All callers of the start have gone away.
    StartWithdrawn,
    /// The main process runs.
    Started {
        /// Process id on the host.
        pid: u32,
        /// Time of its start.
        at: SystemTime,
    },
    /// The start failed.
    StartFailed(Exit),
    /// The start was refused before anything was done, or nothing of it is left.
    StartRefused,
    /// A stop was requested.
    StopRequested,
    /// The main process has exited.
    Exited(Exit),
    /// Removal was requested.
    RemoveRequested,
    /// Removal failed and may be retried.
    RemoveFailed,
}

/// The state of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxState {
    /// Tasks can be created in it.
    Ready,
    /// Being stopped.
    Stopping,
    /// Its tasks have exited, and its network is released or about to be.
    Stopped,
    /// Being made ready again.
    Starting,
    /// Being removed.
    Removing,
    /// It does not work any more: stop and remove it.
    Unknown {
        /// The reason.
        reason: String,
    },
}

/// An event in the life of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxEvent {
    /// A stop was requested.
    StopRequested,
    /// It is stopped.
    Stopped,
    /// A start was requested.
    StartRequested,
    /// It is ready again.
    Started,
    /// The start failed and was undone.
    StartFailed,
    /// Removal was requested.
    RemoveRequested,
    /// A stop or removal failed and may be retried, or the sandbox has failed.
    Lost {
        /// The reason.
        reason: String,
    },
}

/// An event that the state does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is {state}: cannot {wanted}")]
pub struct IllegalTransition {
    /// The name of the state.
    pub state: &'static str,
    /// The refused event, as a verb.
    pub wanted: &'static str,
}

// === impl TaskState ===

impl TaskState {
    /// The state after `event`. Repeated stops, exits and removals change nothing.
    ///
    /// # Errors
    /// [`IllegalTransition`] if the event cannot happen in this state.
    pub fn apply(self, event: TaskEvent) -> Result<Self, IllegalTransition> {
        use TaskEvent as E;
        let illegal = IllegalTransition {
            state: self.as_str(),
            wanted: event.as_verb(),
        };
        Ok(match (self, event) {
            (Self::Created, E::StartRequested) => Self::Starting,
            (Self::Starting | Self::Unattended, E::StartWithdrawn) => Self::Unattended,
            (Self::Starting | Self::Unattended, E::Started { pid, at }) => Self::Running {
                pid,
                started_at: at,
            },
            (Self::Starting | Self::Unattended, E::StartFailed(exit)) => Self::Exited {
                started_at: None,
                exit,
            },
            (Self::Starting | Self::Unattended, E::StartRefused) => Self::Created,
            (
                Self::Running { pid, started_at } | Self::Stopping { pid, started_at },
                E::StopRequested,
            ) => Self::Stopping { pid, started_at },
            (
                Self::Running { started_at, .. } | Self::Stopping { started_at, .. },
                E::Exited(exit),
            ) => Self::Exited {
                started_at: Some(started_at),
                exit,
            },
            // The first recorded exit stands; a stop after the exit has no effect.
            (state @ Self::Exited { .. }, E::Exited(_) | E::StopRequested) => state,
            (Self::Created, E::RemoveRequested) => Self::Removing {
                started_at: None,
                exit: None,
            },
            (Self::Exited { started_at, exit }, E::RemoveRequested) => Self::Removing {
                started_at,
                exit: Some(exit),
            },
            (
                state @ Self::Removing { .. },
                E::RemoveRequested | E::StopRequested | E::Exited(_),
            ) => state,
            (
                Self::Removing {
                    started_at,
                    exit: Some(exit),
                },
                E::RemoveFailed,
            ) => Self::Exited { started_at, exit },
            (Self::Removing { exit: None, .. }, E::RemoveFailed) => Self::Created,
            _ => return Err(illegal),
        })
    }

    /// The name of the state, for messages and metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Starting => "starting",
            Self::Unattended => "unattended",
            Self::Running { .. } => "running",
            Self::Stopping { .. } => "stopping",
            Self::Exited { .. } => "exited",
            Self::Removing { .. } => "removing",
        }
    }

    /// Returns whether its main process runs, or has run and exited.
    #[must_use]
    pub const fn was_started(&self) -> bool {
        match self {
            Self::Running { .. }
            | Self::Stopping { .. }
            | Self::Exited {
                started_at: Some(_),
                ..
            } => true,
            Self::Created
            | Self::Starting
            | Self::Unattended
            | Self::Exited {
                started_at: None, ..
            }
            | Self::Removing { .. } => false,
        }
    }

    /// The process id, while the main process runs.
    #[must_use]
    pub const fn pid(&self) -> Option<u32> {
        match self {
            Self::Running { pid, .. } | Self::Stopping { pid, .. } => Some(*pid),
            Self::Created
            | Self::Starting
            | Self::Unattended
            | Self::Exited { .. }
            | Self::Removing { .. } => None,
        }
    }

    /// Returns the time at which the main process was started, if it was.
    #[must_use]
    pub const fn started_at(&self) -> Option<SystemTime> {
        match self {
            Self::Running { started_at, .. } | Self::Stopping { started_at, .. } => {
                Some(*started_at)
            }
            Self::Exited { started_at, .. } | Self::Removing { started_at, .. } => *started_at,
            Self::Created | Self::Starting | Self::Unattended => None,
        }
    }

    /// Returns whether the main process runs, according to the state.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    /// Returns whether the main process runs or may be about to run.
    #[must_use]
    pub const fn may_run(&self) -> bool {
        match self {
            Self::Starting | Self::Unattended | Self::Running { .. } | Self::Stopping { .. } => {
                true
            }
            Self::Created | Self::Exited { .. } | Self::Removing { .. } => false,
        }
    }
}

impl TaskEvent {
    const fn as_verb(&self) -> &'static str {
        match self {
            Self::StartRequested => "start",
            Self::StartWithdrawn => "have its start given up",
            Self::Started { .. } => "have started",
            Self::StartFailed(_) => "have failed to start",
            Self::StartRefused => "have been refused a start",
            Self::StopRequested => "stop",
            Self::Exited(_) => "have exited",
            Self::RemoveRequested => "be removed",
            Self::RemoveFailed => "fail to be removed",
        }
    }
}

// === impl SandboxState ===

impl SandboxState {
    /// The state after `event`. Repeated stops and removals change nothing.
    ///
    /// # Errors
    /// [`IllegalTransition`] if the event cannot happen in this state.
    pub fn apply(self, event: SandboxEvent) -> Result<Self, IllegalTransition> {
        use SandboxEvent as E;
        let illegal = IllegalTransition {
            state: self.as_str(),
            wanted: event.as_verb(),
        };
        Ok(match (self, event) {
            (
                Self::Ready | Self::Stopping | Self::Starting | Self::Unknown { .. },
                E::StopRequested,
            ) => Self::Stopping,
            (Self::Stopping, E::Stopped) => Self::Stopped,
            (Self::Stopped, E::StartRequested) => Self::Starting,
            (Self::Starting, E::Started) => Self::Ready,
            (Self::Starting, E::StartFailed) => Self::Stopped,
            // A stop requested during the start takes precedence.
            (Self::Stopping, E::Started | E::StartFailed) => Self::Stopping,
            (Self::Stopped, E::StopRequested | E::Stopped) => Self::Stopped,
            // A sandbox in removal is stopped already.
            (Self::Stopped | Self::Removing, E::RemoveRequested)
            | (Self::Removing, E::StopRequested) => Self::Removing,
            // A failed removal is retried from the stopped state.
            (Self::Removing, E::Lost { .. }) => Self::Stopped,
            (
                Self::Ready | Self::Stopping | Self::Starting | Self::Unknown { .. },
                E::Lost { reason },
            ) => Self::Unknown { reason },
            _ => return Err(illegal),
        })
    }

    /// The name of the state, for messages and metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Removing => "removing",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// Returns whether tasks can be created in it.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        matches!(self, Self::Ready)
    }
}

impl SandboxEvent {
    const fn as_verb(&self) -> &'static str {
        match self {
            Self::StopRequested => "stop",
            Self::Stopped => "have stopped",
            Self::StartRequested => "start",
            Self::Started => "have started",
            Self::StartFailed => "have failed to start",
            Self::RemoveRequested => "be removed",
            Self::Lost { .. } => "be lost",
        }
    }
}

#[cfg(test)]
mod tests;
