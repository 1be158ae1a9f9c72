//! The states of sandboxes and tasks, and the only functions that change them.
//!
//! ```text
//! task:     Created ──start──► Starting ──started──► Running ──stop──► Stopping
//!              │                   │                    │                  │
//!              │                   └──failed──► Exited ◄┴────── exited ────┘
//!              └────────────remove────────────────┴───────► Removing ──► (gone)
//!           Removing ──failed──► as before
//!
//! sandbox:  Ready ──stop──► Stopping ──stopped──► Stopped ──remove──► Removing ──► (gone)
//!             └────lost────► Unknown ──stop──┘      ▲ │
//!           Ready ◄──started── Starting ──failed────┘ └──start──► Starting ──stop──► Stopping
//! ```
//!
//! Both functions are pure: no clock, no I/O. What is being done right now is a state (`Starting`, `Stopping`, `Removing`), never
//! a flag beside it.

use std::time::SystemTime;

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Exit code of the main process; 128 plus the signal if a signal ended it.
    pub code: i32,
    /// When it ended.
    pub finished_at: SystemTime,
    /// Why, as far as is known.
    pub cause: ExitCause,
}

/// Why a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitCause {
    /// By itself or by a signal.
    Exited,
    /// The kernel ended it for want of memory.
    OomKilled,
    /// It never ran; the text says why.
    StartFailed(String),
    /// It ended while nobody looked and its exit code is not known.
    Lost,
}

/// The exit code reported for a task that never ran.
pub const START_FAILED_CODE: i32 = 128;

/// The exit code reported where the real one is not known.
pub const LOST_CODE: i32 = 255;

impl Exit {
    /// The end of a task whose start failed.
    #[must_use]
    pub fn start_failed(at: SystemTime, why: impl Into<String>) -> Self {
        Self { code: START_FAILED_CODE, finished_at: at, cause: ExitCause::StartFailed(why.into()) }
    }

    /// The end of a task that nobody saw.
    #[must_use]
    pub const fn lost(at: SystemTime) -> Self {
        Self { code: LOST_CODE, finished_at: at, cause: ExitCause::Lost }
    }
}

/// The state of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskState {
    /// Made, never started.
    Created,
    /// Being started.
    Starting,
    /// Its main process runs.
    Running {
        /// Process id on the host.
        pid: u32,
        /// Since when.
        started_at: SystemTime,
    },
    /// It runs and has been asked to stop.
    Stopping {
        /// Process id on the host.
        pid: u32,
        /// Since when it runs.
        started_at: SystemTime,
    },
    /// It has ended, or could not be started.
    Exited {
        /// When it had started; `None` if it never did.
        started_at: Option<SystemTime>,
        /// How it ended.
        exit: Exit,
    },
    /// Being removed.
    Removing {
        /// When it had started.
        started_at: Option<SystemTime>,
        /// How it had ended, if it ever ran.
        exit: Option<Exit>,
    },
}

/// What may happen to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    /// A start was asked for.
    StartRequested,
    /// The main process runs.
    Started {
        /// Process id on the host.
        pid: u32,
        /// Since when.
        at: SystemTime,
    },
    /// The start failed.
    StartFailed(Exit),
    /// A stop was asked for.
    StopRequested,
    /// The main process has ended.
    Exited(Exit),
    /// Removal was asked for.
    RemoveRequested,
    /// Removal failed and may be tried again.
    RemoveFailed,
}

/// The state of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxState {
    /// Tasks can be made in it.
    Ready,
    /// Being stopped.
    Stopping,
    /// Its tasks have ended and its network is released.
    Stopped,
    /// Being made ready again.
    Starting,
    /// Being removed.
    Removing,
    /// It does not work as it should: stop and remove it.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// What may happen to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxEvent {
    /// A stop was asked for.
    StopRequested,
    /// It is stopped.
    Stopped,
    /// A start was asked for.
    StartRequested,
    /// It is ready again.
    Started,
    /// It is not, and nothing is left of the start.
    StartFailed,
    /// Removal was asked for.
    RemoveRequested,
    /// A stop or removal failed and may be tried again, or contact is lost.
    Lost {
        /// Why.
        reason: String,
    },
}

/// An event that the state does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is {state}: cannot {wanted}")]
pub struct IllegalTransition {
    /// The state, as a word.
    pub state: &'static str,
    /// What was wanted, as a verb.
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
        let illegal = IllegalTransition { state: self.as_str(), wanted: event.as_verb() };
        Ok(match (self, event) {
            (Self::Created, E::StartRequested) => Self::Starting,
            (Self::Starting, E::Started { pid, at }) => Self::Running { pid, started_at: at },
            (Self::Starting, E::StartFailed(exit)) => Self::Exited { started_at: None, exit },
            (Self::Running { pid, started_at } | Self::Stopping { pid, started_at }, E::StopRequested) => {
                Self::Stopping { pid, started_at }
            }
            (Self::Running { started_at, .. } | Self::Stopping { started_at, .. }, E::Exited(exit)) => {
                Self::Exited { started_at: Some(started_at), exit }
            }
            // The first word on how it ended stands; a stop after the end has nothing to do.
            (state @ Self::Exited { .. }, E::Exited(_) | E::StopRequested) => state,
            (Self::Created, E::RemoveRequested) => Self::Removing { started_at: None, exit: None },
            (Self::Exited { started_at, exit }, E::RemoveRequested) => {
                Self::Removing { started_at, exit: Some(exit) }
            }
            (state @ Self::Removing { .. }, E::RemoveRequested | E::StopRequested | E::Exited(_)) => state,
            (Self::Removing { started_at, exit: Some(exit) }, E::RemoveFailed) => {
                Self::Exited { started_at, exit }
            }
            (Self::Removing { exit: None, .. }, E::RemoveFailed) => Self::Created,
            _ => return Err(illegal),
        })
    }

    /// The state as a word, for messages and metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Starting => "starting",
            Self::Running { .. } => "running",
            Self::Stopping { .. } => "stopping",
            Self::Exited { .. } => "exited",
            Self::Removing { .. } => "removing",
        }
    }

    /// Whether its main process runs or did.
    #[must_use]
    pub const fn was_started(&self) -> bool {
        match self {
            Self::Running { .. } | Self::Stopping { .. } | Self::Exited { started_at: Some(_), .. } => true,
            Self::Created
            | Self::Starting
            | Self::Exited { started_at: None, .. }
            | Self::Removing { .. } => false,
        }
    }

    /// The process id while the main process runs.
    #[must_use]
    pub const fn pid(&self) -> Option<u32> {
        match self {
            Self::Running { pid, .. } | Self::Stopping { pid, .. } => Some(*pid),
            Self::Created | Self::Starting | Self::Exited { .. } | Self::Removing { .. } => None,
        }
    }

    /// When the main process had started, as far as is known.
    #[must_use]
    pub const fn started_at(&self) -> Option<SystemTime> {
        match self {
            Self::Running { started_at, .. } | Self::Stopping { started_at, .. } => Some(*started_at),
            Self::Exited { started_at, .. } | Self::Removing { started_at, .. } => *started_at,
            Self::Created | Self::Starting => None,
        }
    }

    /// Whether the main process runs, as far as is known.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    /// Whether the main process runs or may run.
    #[must_use]
    pub const fn may_run(&self) -> bool {
        match self {
            Self::Starting | Self::Running { .. } | Self::Stopping { .. } => true,
            Self::Created | Self::Exited { .. } | Self::Removing { .. } => false,
        }
    }
}

impl TaskEvent {
    const fn as_verb(&self) -> &'static str {
        match self {
            Self::StartRequested => "start",
            Self::Started { .. } => "have started",
            Self::StartFailed(_) => "have failed to start",
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
        let illegal = IllegalTransition { state: self.as_str(), wanted: event.as_verb() };
        Ok(match (self, event) {
            (Self::Ready | Self::Stopping | Self::Starting | Self::Unknown { .. }, E::StopRequested) => {
                Self::Stopping
            }
            (Self::Stopping, E::Stopped) => Self::Stopped,
            (Self::Stopped, E::StartRequested) => Self::Starting,
            (Self::Starting, E::Started) => Self::Ready,
            (Self::Starting, E::StartFailed) => Self::Stopped,
            // A stop that came meanwhile has the last word.
            (Self::Stopping, E::Started | E::StartFailed) => Self::Stopping,
            (Self::Stopped, E::StopRequested | E::Stopped) => Self::Stopped,
            // What is being removed has been stopped.
            (Self::Stopped | Self::Removing, E::RemoveRequested) | (Self::Removing, E::StopRequested) => {
                Self::Removing
            }
            // A failed removal may be tried again from the stopped state; there is nothing left to stop.
            (Self::Removing, E::Lost { .. }) => Self::Stopped,
            (Self::Ready | Self::Stopping | Self::Starting | Self::Unknown { .. }, E::Lost { reason }) => {
                Self::Unknown { reason }
            }
            _ => return Err(illegal),
        })
    }

    /// The state as a word, for messages and metrics.
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

    /// Whether tasks can be made in it.
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
