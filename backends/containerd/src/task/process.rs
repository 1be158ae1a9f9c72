//! A hold on a task's main process, by which it is signalled without running its runtime for it.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use switchyard_core::id::TaskId;
use switchyard_core::spec::Signal;

/// A process that stays the same one: should it end and its number be given to another, signals do not reach that one.
#[derive(Debug)]
pub(super) struct MainProcess {
    fd: OwnedFd,
}

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is sent, or the process has ended.
    Done,
    /// It cannot be sent this way.
    Refused,
}

impl MainProcess {
    /// Takes hold of a task's process. `None` if the number is not, or not any more, that of a process of the task, which shows in
    /// its cgroup bearing the task's id; so a number from another process namespace is never taken.
    pub(super) fn hold(pid: u32, task: TaskId) -> Option<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let fd = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        // Looked at after taking hold: whoever bore the number then is a process of the task.
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        cgroups.contains(&task.to_string()).then_some(Self { fd })
    }

    pub(super) fn signal(&self, signal: Signal) -> Sent {
        let Some(signal) = rustix::process::Signal::from_named_raw(i32::from(signal.number())) else {
            return Sent::Refused;
        };
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(Errno::SRCH) => Sent::Done,
            Err(_) => Sent::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_not_the_tasks_is_not_held() {
        assert!(MainProcess::hold(std::process::id(), TaskId::random()).is_none());
        assert!(MainProcess::hold(0, TaskId::random()).is_none());
        assert!(MainProcess::hold(u32::MAX, TaskId::random()).is_none());
    }
}
