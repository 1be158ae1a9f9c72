//! The process of a plugin, with its process group.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

/// Time for a killed plugin to exit. One that takes longer hangs in the kernel, and is reaped later.
const REAP_GRACE: Duration = Duration::from_secs(5);

/// A running plugin. Dropping it kills its process group: plugins start others, such as IPAM plugins.
#[derive(Debug)]
pub(super) struct PluginProcess {
    child: Child,
    /// Its process group; `None` once the plugin is reaped: from then on another process may have its id.
    group: Option<Pid>,
}

impl PluginProcess {
    /// Starts a plugin in a process group of its own. Blocks until the program is executed.
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        // A kill of the group reaches the programs that the plugin runs.
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        Ok(Self { child, group })
    }

    /// Our end of its stdin; `None` if it was taken before.
    pub(super) fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Waits until the plugin has exited, and reaps it. Cancel-safe.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.group = None;
        Ok(status)
    }

    /// Kills the plugin with its process group, unless it is reaped, and reaps it.
    pub(super) async fn kill_and_reap(&mut self) {
        self.kill();
        match timeout(REAP_GRACE, self.wait()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot wait for a killed network plugin"),
            Err(_) => tracing::warn!(
                pid = self.child.id(),
                "a killed network plugin hangs in the kernel"
            ),
        }
    }

    /// Its process group, unless it is reaped.
    #[cfg(test)]
    pub(super) fn group(&self) -> Option<Pid> {
        self.group
    }

    fn kill(&self) {
        let Some(group) = self.group else { return };
        match killpg(group, Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => tracing::warn!(%group, %errno, "cannot kill a network plugin"),
        }
    }
}

impl Drop for PluginProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
