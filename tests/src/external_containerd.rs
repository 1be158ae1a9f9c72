//! A containerd that neither the daemon nor dockerd manages: a test starts, kills and restarts it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::unistd::Pid;

use crate::host::eventually;
use crate::prereq;
use crate::root::PrivateRoot;

/// Limit for containerd to listen.
const START: Duration = Duration::from_secs(30);

/// A running containerd, whose files are in the directory of a test; in a private root at the paths that a managed one uses. Dropping it
/// kills it.
#[derive(Debug)]
pub struct ExternalContainerd {
    child: Child,
    config: PathBuf,
    log: PathBuf,
    socket: PathBuf,
}

impl ExternalContainerd {
    /// Starts containerd on this socket.
    ///
    /// # Panics
    /// When it is not installed, or does not listen within half a minute.
    #[must_use]
    pub fn start(root: &PrivateRoot, socket: &Path) -> Self {
        Self::start_with(root, socket, "")
    }

    /// Starts containerd on this socket, with more configuration.
    ///
    /// # Panics
    /// As [`ExternalContainerd::start`].
    #[must_use]
    pub fn start_with(root: &PrivateRoot, socket: &Path, extra_toml: &str) -> Self {
        let [state, run] = [root.state(), root.run()].map(|dir| dir.join("containerd"));
        Self::start_in(&state, &run, socket, extra_toml)
    }

    /// The same, with its files in these directories.
    ///
    /// # Panics
    /// As [`ExternalContainerd::start`].
    #[must_use]
    pub(crate) fn start_in(state: &Path, run: &Path, socket: &Path, extra_toml: &str) -> Self {
        fs::create_dir_all(state).expect("the scratch directory can be written");
        fs::create_dir_all(run).expect("the scratch directory can be written");
        // That of a killed one would be taken for its own.
        let _ = fs::remove_file(socket);
        let text = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = {socket:?}\n\
             [plugins.\"io.containerd.internal.v1.restart\"]\ninterval = \"1s\"\n\
             {extra_toml}",
            state.join("root"),
            run.join("state"),
        );
        let config = state.join("config.toml");
        let log = state.join("containerd.log");
        fs::write(&config, text).expect("the scratch directory can be written");
        let child = spawn(&config, &log);
        let started = Self {
            child,
            config,
            log,
            socket: socket.to_owned(),
        };
        started.wait();
        started
    }

    /// The id of its process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("Linux keeps process ids below 2^22"))
    }

    /// Kills it, and waits until its process is gone.
    pub fn kill(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it and starts it again.
    ///
    /// # Panics
    /// As [`ExternalContainerd::start`].
    pub fn restart(&mut self) {
        self.restart_without_waiting();
        self.wait();
    }

    /// Kills it and starts it again, as a service manager would, without waiting until it listens.
    ///
    /// # Panics
    /// When it is not installed.
    pub fn restart_without_waiting(&mut self) {
        self.kill();
        let _ = fs::remove_file(&self.socket);
        self.child = spawn(&self.config, &self.log);
    }

    fn wait(&self) {
        assert!(
            eventually(START, || self.socket.exists()),
            "containerd does not listen after {START:?}"
        );
    }
}

impl Drop for ExternalContainerd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(config: &Path, log: &Path) -> Child {
    let program = prereq::require("containerd", "containerd");
    let log = fs::File::options().create(true).append(true).open(log);
    Command::new(program)
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.expect("the scratch directory can be written"))
        .spawn()
        .expect("containerd can be run")
}
