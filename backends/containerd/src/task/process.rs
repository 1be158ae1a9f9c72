//! A hold on a container's process, mostly its main one, by which it is seen and signalled without running its runtime or asking its shim.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use switchyard_core::spec::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::shim::ShimAddress;

/// A process that stays the same one: should it end and its number be given to another, signals do not reach that one.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pid: u32,
    fd: OwnedFd,
    /// Where its shim listens, once that has been looked for.
    shim: OnceLock<Option<ShimAddress>>,
}

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is sent, or the process has ended.
    Done,
    /// It cannot be sent this way.
    Refused,
}

impl ProcessHandle {
    /// Takes hold of a container's process. `None` if the number is not, or not any more, that of a process of the container, which
    /// shows in its cgroup bearing the container's mark, mostly its id; so a number from another process namespace is never taken.
    pub(crate) fn open(pid: u32, mark: &str) -> Option<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let fd = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        // Looked at after taking hold: whoever bore the number then is a process of the container.
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        cgroups.contains(mark).then_some(Self { pid, fd, shim: OnceLock::new() })
    }

    /// Whether it runs: it has not ended, even if nobody has taken note of its end yet.
    pub(crate) fn runs(&self) -> bool {
        let mut ended = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        // What cannot be looked at is not known to run.
        poll(&mut ended, PollTimeout::ZERO).is_ok_and(|ready| ready == 0)
    }

    /// What the kernel tells of it, or of another that bears its number once it has ended.
    pub(super) fn status(&self) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()
    }

    /// Its number, which may be another's once it has ended and its parent has taken note of that.
    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Where its shim, which is its parent, listens. `None` if that cannot be found.
    pub(super) fn shim(&self, id: &str) -> Option<ShimAddress> {
        self.shim.get_or_init(|| ShimAddress::find(self.parent()?, id)).clone()
    }

    /// Its shim, while it runs.
    pub(super) fn parent(&self) -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let parent = switchyard_process::stat_fields(&stat).get(1)?.parse().ok()?;
        // Looked at after reading: whose number it is has not changed while it runs.
        self.runs().then_some(parent)
    }

    /// A descriptor for [`ended`].
    pub(crate) fn pidfd(&self) -> Option<OwnedFd> {
        self.fd.try_clone().ok()
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

/// Waits until a process has ended. Cancel-safe. Must be called within a tokio runtime.
pub(crate) async fn process_ended(process: OwnedFd) -> io::Result<()> {
    polled(process, Interest::READABLE)?.ready(Interest::READABLE).await.map(drop)
}

/// A descriptor that is waited for with the others of the runtime.
#[expect(
    deprecated,
    reason = "the other way is not safe code, and an OwnedFd is what this one needs to be sound"
)]
pub(super) fn polled(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
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
        // Whatever its cgroup is called, there is a slash in it.
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
