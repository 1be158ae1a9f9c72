//! The processes of a node that tests look for and kill.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::TestNode;
use crate::host::processes;

// === impl TestNode ===

impl TestNode {
    /// The shim of a container or of a pod.
    ///
    /// # Panics
    /// When none runs.
    #[track_caller]
    #[must_use]
    pub fn shim(&self, id: &str) -> Pid {
        let all = processes::belonging_to(self.root.path());
        let found = all.iter().find(|process| {
            process.command.contains("containerd-shim") && process.command.contains(id)
        });
        Pid::from_raw(found.expect("a running container has a shim").pid)
    }

    /// Kills a process that the daemon supervises; returns its id.
    ///
    /// # Panics
    /// When the daemon has started none, or it does not run.
    #[track_caller]
    pub fn kill_managed(&self, name: &str) -> Pid {
        let pid = self
            .root
            .managed(name)
            .expect("the daemon writes down whom it started");
        kill(pid, Signal::SIGKILL).expect("it runs");
        pid
    }

    /// Kills a container's shim and its processes with this command line: without a daemon nobody sees the end.
    pub fn kill_unseen(&self, container: &str, command: &str) {
        for process in processes::belonging_to(self.root.path()) {
            let is_shim =
                process.command.contains("containerd-shim") && process.command.contains(container);
            if is_shim || process.command == command {
                // An error means that it has ended with the other.
                let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
        }
    }
}
