//! A child process with the programs that it runs, as one process group.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// Time for a killed child to exit. One that takes longer hangs in the kernel, and is reaped later.
const REAP_GRACE: Duration = Duration::from_secs(5);

/// A running child that leads a process group of its own. Dropping it kills the group, unless the child is reaped: a
/// program that the child has started, and left running, is not killed then.
#[derive(Debug)]
pub struct GroupLeader {
    child: Child,
    /// Its process group; `None` once the child is reaped: from then on another process may have its id.
    group: Option<Pid>,
}

impl GroupLeader {
    /// Starts a child in a process group of its own. Blocks until the program is executed.
    ///
    /// # Errors
    /// The program cannot be executed.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        Ok(Self { child, group })
    }

    /// Our end of its stdin; `None` if it has no pipe, or it was taken before.
    pub const fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Our end of its stdout; `None` if it has no pipe, or it was taken before.
    pub const fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Its process id, which is that of its group; `None` once it is reaped.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.group.map(Pid::as_raw)
    }

    /// Waits until it has exited, and reaps it. Cancel-safe.
    ///
    /// # Errors
    /// The kernel does not give its exit status.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.group = None;
        Ok(status)
    }

    /// Kills it with its process group, unless it is reaped, and reaps it.
    pub async fn kill_and_reap(&mut self) {
        self.kill();
        match timeout(REAP_GRACE, self.wait()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot wait for a killed child"),
            Err(_) => tracing::warn!(pid = self.pid(), "a killed child hangs in the kernel"),
        }
    }

    fn kill(&self) {
        let Some(group) = self.group else { return };
        match killpg(group, Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => tracing::warn!(%group, error = %errno, "cannot kill a process group"),
        }
    }
}

impl Drop for GroupLeader {
    fn drop(&mut self) {
        // The field `child` is dropped afterwards, which reaps the child.
        self.kill();
    }
}
