//! A process that is stopped for a while.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{eventually, processes};

/// Time until a signal that was sent has stopped all threads of a process.
const STOP_LIMIT: Duration = Duration::from_secs(40);

/// A process that is stopped (SIGSTOP) until this is dropped.
#[derive(Debug)]
pub struct SuspendedProcess(pub Pid);

impl SuspendedProcess {
    /// Stops a process, and waits until it is stopped.
    ///
    /// # Panics
    /// When it does not run, or is not stopped in time.
    #[track_caller]
    #[must_use]
    pub fn new(pid: i32) -> Self {
        let pid = Pid::from_raw(pid);
        kill(pid, Signal::SIGSTOP).expect("it runs");
        let stopped = Self(pid);
        // The signal is sent; a busy machine may run its threads a while longer.
        assert!(
            eventually(STOP_LIMIT, || processes::is_stopped(pid.as_raw())),
            "{pid} is not stopped"
        );
        stopped
    }
}

impl Drop for SuspendedProcess {
    fn drop(&mut self) {
        // The process may have been killed meanwhile.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}
