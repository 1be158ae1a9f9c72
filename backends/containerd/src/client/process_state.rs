//! The state of the main process of a container.

use std::time::SystemTime;

use containerd_client::types::v1 as process;

/// The exit of a process, as its shim reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessExit {
    /// Exit code.
    pub(crate) code: i32,
    /// Time of the exit; `None` if the shim does not report it.
    pub(crate) at: Option<SystemTime>,
}

/// The state of the main process of a container, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessState {
    /// There is no process.
    None,
    /// Created, not started.
    Created,
    /// It runs (or is paused).
    Running {
        /// Process id on the host.
        pid: u32,
    },
    /// It has exited and was not deleted yet.
    Stopped(ProcessExit),
    /// Its shim did not answer: the process may run.
    Unanswered {
        /// Process id on the host, as far as it is known; 0 if it is not.
        pid: u32,
    },
}

/// The state of a main process as a shim reports it through containerd.
pub(crate) fn process_state_of(task: &process::Process) -> ProcessState {
    use process::Status as S;
    match task.status() {
        S::Created => ProcessState::Created,
        S::Running | S::Paused | S::Pausing => ProcessState::Running { pid: task.pid },
        S::Stopped => ProcessState::Stopped(ProcessExit {
            code: i32::try_from(task.exit_status).unwrap_or(i32::MAX),
            at: task.exited_at.and_then(|at| SystemTime::try_from(at).ok()),
        }),
        S::Unknown => ProcessState::Unanswered { pid: task.pid },
    }
}
