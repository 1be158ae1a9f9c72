//! Helpers of several tests.

use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_linux::process::ProcessId;

/// The timeout of every wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Our own binary.
pub(crate) fn exe() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_switchyard"))
}

/// Runs our binary to its end, with no configuration from the environment.
pub(crate) fn switchyard(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// The command that does so.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(exe());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SWITCHYARD_") {
            command.env_remove(name);
        }
    }
    command.args(args);
    command
}

/// Kills a process when dropped, and waits until it is gone.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) ProcessId);

impl Drop for Killed {
    fn drop(&mut self) {
        if self.0.is_alive() {
            let _ = kill(Pid::from_raw(self.0.pid), Signal::SIGKILL);
            wait_until("the process is gone", || !self.0.is_alive());
        }
    }
}

/// A child process, which is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct RunningChild(pub(crate) Child);

impl Drop for RunningChild {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls until a condition holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for a future, with the timeout.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(LIMIT, future)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}
