//! A daemon beside the managers of a swarm, in their network namespace.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use super::SwarmCluster;
use crate::daemon::Daemon;
use crate::root::PrivateRoot;

/// A daemon that can join a swarm. Dropping it ends everything.
#[derive(Debug)]
pub struct SwarmWorker {
    daemon: Daemon,
    // Must be the last field: dropping the root removes the files that the daemon uses.
    root: PrivateRoot,
}

/// A task, as `switchyard ps` shows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerTask {
    /// Its owner.
    pub owner: String,
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its state, in one word.
    pub state: String,
    /// Its main process, while it runs.
    pub pid: Option<u64>,
}

// === impl SwarmWorker ===

impl SwarmWorker {
    /// Starts a daemon with the configuration that `configure` gives for its root.
    ///
    /// # Panics
    /// When it does not become ready.
    #[track_caller]
    #[must_use]
    pub fn start(cluster: &SwarmCluster, configure: impl FnOnce(&PrivateRoot) -> String) -> Self {
        let root = PrivateRoot::new();
        let mut daemon = Daemon::prepare(&root, &configure(&root)).inside(cluster.netns());
        daemon.spawn();
        daemon.wait_ready();
        Self { daemon, root }
    }

    /// The daemon.
    pub const fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// The root.
    #[must_use]
    pub const fn root(&self) -> &PrivateRoot {
        &self.root
    }

    /// Runs a command of the command line of the daemon's binary against it.
    ///
    /// # Panics
    /// If the binary cannot be run.
    #[must_use]
    pub fn call(&self, words: &[&str]) -> Output {
        let mut command = Command::new(self.daemon.program());
        command
            .args(words)
            .arg("--socket")
            .arg(self.root.run().join("admin.sock"));
        command.output().expect("the binary exists")
    }

    /// Returns the output of such a command, which must succeed.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn output(&self, words: &[&str]) -> String {
        let done = self.call(words);
        assert!(
            done.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).expect("it is text")
    }

    /// Returns the standard error of such a command, which must fail with status 1.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn refusal(&self, words: &[&str]) -> String {
        let done = self.call(words);
        assert_eq!(
            done.status.code(),
            Some(1),
            "{words:?}: {}",
            String::from_utf8_lossy(&done.stdout)
        );
        String::from_utf8(done.stderr).expect("it is text")
    }

    /// Writes a token to a file that nobody else can read, and returns its path.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn token_file(&self, token: &str) -> PathBuf {
        let path = self.root.path().join("token");
        fs::write(&path, format!("{token}\n")).expect("the root can be written");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("the file is ours");
        path
    }

    /// Joins a swarm with a token.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn join(&self, cluster: &SwarmCluster, token: &str) {
        let file = self.token_file(token).display().to_string();
        self.output(&["swarm", "join", "--token-file", &file, &cluster.address(0)]);
    }

    /// Returns the tasks of all owners that the daemon lists.
    ///
    /// # Panics
    /// If the list fails.
    #[track_caller]
    #[must_use]
    pub fn tasks(&self) -> Vec<WorkerTask> {
        let list = self.output(&["ps", "--output", "json"]);
        let objects: Value = serde_json::from_str(&list).expect("it is JSON");
        let text = |task: &Value, part: &str| task[part].as_str().expect("it is text").to_owned();
        let task = |task: &Value| WorkerTask {
            owner: text(task, "owner"),
            id: text(task, "id"),
            name: text(task, "display_name"),
            state: text(task, "state"),
            pid: task["pid"].as_u64(),
        };
        objects["tasks"]
            .as_array()
            .expect("there is a list")
            .iter()
            .map(task)
            .collect()
    }

    /// Returns the tasks of the swarm among them.
    ///
    /// # Panics
    /// If the list fails.
    #[track_caller]
    #[must_use]
    pub fn swarm_tasks(&self) -> Vec<WorkerTask> {
        self.tasks()
            .into_iter()
            .filter(|task| task.owner == "swarm")
            .collect()
    }

    /// Returns the membership that the daemon reports, healthy or not.
    ///
    /// # Panics
    /// If it is not reported.
    #[must_use]
    pub fn status(&self) -> Value {
        let done = self.call(&["swarm", "status", "--output", "json"]);
        serde_json::from_slice(&done.stdout).expect("it is JSON")
    }
}
