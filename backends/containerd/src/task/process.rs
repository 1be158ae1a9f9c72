//! A handle of a container's process, mostly its main one, through which it is watched and signalled without
//! running the runtime or calling the shim.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::{fs, io};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use switchyard_core::spec::Signal;
use tokio::io::Interest;

use crate::base::polled::polled;
use crate::shims::direct::ShimAddress;

/// A pidfd and what belongs to it. It refers to one process for ever: if that exits and its pid is reused,
/// signals do not reach the new process.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pid: u32,
    fd: OwnedFd,
    /// The address of its shim, once that has been searched for.
    shim: OnceLock<Option<ShimAddress>>,
}

/// The outcome of sending a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// It was sent, or the process has exited.
    Done,
    /// It cannot be sent this way.
    Refused,
}

impl ProcessHandle {
    /// Opens a handle of a container's process. `None` if `pid` is not, or not any more, that of a process of
    /// the container. The container is recognized by `mark`, mostly its id, in the path of the process's
    /// cgroup; so a pid from another process namespace is never accepted.
    pub(crate) fn open(pid: u32, mark: &str) -> Option<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let fd = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        // Read after the pidfd was opened: while that process runs, nothing else has its pid.
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        cgroups.contains(mark).then_some(Self {
            pid,
            fd,
            shim: OnceLock::new(),
        })
    }

    /// Returns whether it runs. A zombie, whose exit its parent has not collected yet, does not run.
    pub(crate) fn runs(&self) -> bool {
        let mut ended = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        // If it cannot be polled, it is not known to run. A call that is interrupted has found nothing.
        matches!(
            poll(&mut ended, PollTimeout::ZERO),
            Ok(0) | Err(nix::errno::Errno::EINTR)
        )
    }

    /// Its `/proc/<pid>/status`, or that of another process which has its pid once it has exited.
    pub(super) fn status(&self) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()
    }

    /// Its pid, which can be reused once the process has exited and its parent has reaped it.
    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// The address of its shim, which is its parent. `None` if it cannot be found.
    pub(super) fn shim(&self, id: &str) -> Option<ShimAddress> {
        self.shim
            .get_or_init(|| ShimAddress::find(self.parent()?, id))
            .clone()
    }

    /// The pid of its parent, which is its shim, while it runs.
    pub(super) fn parent(&self) -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let parent = switchyard_linux::process::stat_fields(&stat)
            .get(1)?
            .parse()
            .ok()?;
        // Checked after the read: while it runs, its pid is not reused.
        self.runs().then_some(parent)
    }

    /// A descriptor for [`process_ended`].
    pub(crate) fn pidfd(&self) -> Option<OwnedFd> {
        self.fd.try_clone().ok()
    }

    pub(super) fn signal(&self, signal: Signal) -> Sent {
        let Some(signal) = rustix::process::Signal::from_named_raw(i32::from(signal.number()))
        else {
            return Sent::Refused;
        };
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(Errno::SRCH) => Sent::Done,
            Err(_) => Sent::Refused,
        }
    }
}

/// Waits until the process of a pidfd has exited. Cancel-safe. Must be called within a tokio runtime.
pub(crate) async fn process_ended(process: OwnedFd) -> io::Result<()> {
    polled(process, Interest::READABLE)?
        .ready(Interest::READABLE)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_is_not_the_tasks_is_not_held() {
        let id = switchyard_core::id::TaskId::random().to_string();
        assert!(ProcessHandle::open(std::process::id(), &id).is_none());
        assert!(ProcessHandle::open(0, &id).is_none());
        assert!(ProcessHandle::open(u32::MAX, &id).is_none());
    }

    #[test]
    fn a_process_that_has_ended_runs_no_more_although_nobody_has_taken_note() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        // Every cgroup path contains a slash.
        let held = ProcessHandle::open(child.id(), "/").unwrap();
        assert!(held.runs());
        child.kill().unwrap();
        let ended = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            !held.runs()
        });
        assert!(ended);
        child.wait().unwrap();
        assert!(!held.runs());
    }
}
