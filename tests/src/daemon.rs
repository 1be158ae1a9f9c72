//! Starts the built `switchyard` on a private root, kills it, restarts it, and shows its log when a test
//! fails.

use std::env;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_crash_points::{CrashPoint, KILL_FILE};

use crate::host::{eventually, inside};
use crate::http;
use crate::root::PrivateRoot;

/// Limit for a start: a machine under test load starts containerd slowly.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Limit for the daemon to stop when asked to.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Limit for it to reach a step where it is to die.
const REACH_LIMIT: Duration = Duration::from_secs(30);
/// Number of lines of the log that a failed test shows.
const TAIL: usize = 80;

/// A running daemon. Dropping it kills it; what it started lives on until its [`PrivateRoot`] is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Option<Child>,
    config: PathBuf,
    log: PathBuf,
    run: PathBuf,
    variables: Vec<(String, String)>,
    /// The network namespace that it runs in; `None`: that of the test.
    netns: Option<PathBuf>,
}

impl Daemon {
    /// Writes the configuration of `root` overlaid with `extra_toml`, starts the daemon and waits until it is
    /// ready.
    ///
    /// # Panics
    /// When it ends or is not ready within a minute; the message holds the end of its log.
    #[track_caller]
    #[must_use]
    pub fn start(root: &PrivateRoot, extra_toml: &str) -> Self {
        Self::start_with(root, extra_toml, &[])
    }

    /// As [`Daemon::start`], with variables added to its environment.
    ///
    /// # Panics
    /// As [`Daemon::start`].
    #[track_caller]
    #[must_use]
    pub fn start_with(root: &PrivateRoot, extra_toml: &str, variables: &[(&str, &str)]) -> Self {
        let mut daemon = Self::prepare(root, extra_toml);
        daemon.variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        daemon.spawn();
        daemon.wait_ready();
        daemon
    }

    /// Writes the configuration of `root` overlaid with `extra_toml`, and starts nothing yet.
    #[must_use]
    pub fn prepare(root: &PrivateRoot, extra_toml: &str) -> Self {
        root.write_config(extra_toml);
        let variables = Vec::new();
        Self {
            child: None,
            config: root.config(),
            log: root.daemon_log(),
            run: root.run(),
            variables,
            netns: None,
        }
    }

    /// Runs it in a network namespace from its next start on.
    #[must_use]
    pub fn inside(mut self, netns: &Path) -> Self {
        self.netns = Some(netns.to_owned());
        self
    }

    /// The id of its process.
    ///
    /// # Panics
    /// When it is not running.
    #[must_use]
    pub fn pid(&self) -> i32 {
        let child = self
            .child
            .as_ref()
            .expect("the daemon was started and not ended");
        i32::try_from(child.id()).expect("Linux keeps process ids below 2^22")
    }

    /// The address of its admin endpoint.
    ///
    /// # Panics
    /// When it has not written one.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.find_admin()
            .expect("a daemon that was ready has written its admin address")
    }

    /// The body of `GET path` on the admin socket, where nothing is withheld, and its status.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn get(&self, path: &str) -> (u16, String) {
        let answer = http::get_unix(&self.run.join("admin.sock"), path)
            .unwrap_or_else(|error| panic!("GET {path}: {error}\n{}", self.tail()));
        (answer.status, answer.text())
    }

    /// The body of `GET path` on the admin address, as an unauthenticated client gets it, and its status.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn get_from_admin_address(&self, path: &str) -> (u16, String) {
        let answer = http::get(self.admin(), path)
            .unwrap_or_else(|error| panic!("GET {path}: {error}\n{}", self.tail()));
        (answer.status, answer.text())
    }

    /// Ends it as a crash does, and waits until its process is gone.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have exited already, which is as intended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Lets it, or what it starts, be killed at these steps, one after the other, each at the n-th time from
    /// then on.
    ///
    /// # Panics
    /// When its binary was built without the feature `faults`.
    #[track_caller]
    pub fn kill_at(&self, kills: &[(CrashPoint, u32)]) {
        assert!(
            has_faults(),
            "{} was built without faults: build it with `cargo build --workspace --all-targets`",
            binary().display()
        );
        let lines: Vec<_> = kills
            .iter()
            .map(|(step, time)| format!("{step:?}:{time}"))
            .collect();
        let new = self.kill_file().with_extension("new");
        fs::write(&new, lines.join("\n")).expect("the root can be written");
        fs::rename(new, self.kill_file()).expect("the root can be written");
    }

    /// The kills that have not happened yet.
    #[must_use]
    pub fn pending_kills(&self) -> Vec<String> {
        let text = fs::read_to_string(self.kill_file()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until it has died of [`Daemon::kill_at`].
    ///
    /// # Panics
    /// When it does not within half a minute: the step was not reached.
    #[track_caller]
    pub fn wait_killed(&mut self) {
        let mut ended = None;
        eventually(REACH_LIMIT, || {
            let child = self
                .child
                .as_mut()
                .expect("only a daemon that was started can die");
            ended = child.try_wait().expect("a child can be waited for");
            ended.is_some()
        });
        let message = format!(
            "{:?} was not reached\n{}",
            self.pending_kills(),
            self.tail()
        );
        let status = ended.unwrap_or_else(|| panic!("{message}"));
        assert_eq!(
            status.signal(),
            Some(Signal::SIGKILL as i32),
            "{status}: {message}"
        );
        self.child = None;
    }

    fn kill_file(&self) -> PathBuf {
        self.config.with_file_name("kill")
    }

    /// Asks it to stop (SIGTERM), and waits.
    ///
    /// # Panics
    /// When it does not within thirty seconds.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        let pid = self.pid();
        kill(Pid::from_raw(pid), Signal::SIGTERM)
            .expect("the daemon was not waited for, so its id is its own");
        let mut child = self
            .child
            .take()
            .expect("the daemon has an id, so it has a process");
        let mut status = None;
        eventually(STOP_LIMIT, || {
            status = child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        status.unwrap_or_else(|| {
            let _ = child.kill();
            let _ = child.wait();
            panic!(
                "the daemon did not stop within {STOP_LIMIT:?} of SIGTERM\n{}",
                self.tail()
            )
        })
    }

    /// Stops it if it runs, starts it with the same configuration, and waits until it is ready.
    ///
    /// # Panics
    /// As [`Daemon::start`] and [`Daemon::terminate`].
    #[track_caller]
    pub fn restart(&mut self) {
        if self.child.is_some() {
            self.terminate();
        }
        self.spawn();
        self.wait_ready();
    }

    /// Starts the process without waiting for it: for tests of what happens before it is ready. It must not
    /// run.
    ///
    /// # Panics
    /// When it runs already, or the binary is not there.
    #[track_caller]
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "the daemon runs already");
        // The address of the last run would be asked for readiness.
        let _ = fs::remove_file(self.run.join("admin.addr"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("the root can be written");
        let errors = log.try_clone().expect("a file can be opened twice");
        let mut command = match &self.netns {
            None => Command::new(self.program()),
            Some(netns) => inside(netns, &self.program()),
        };
        command
            .arg("serve")
            .arg("--config")
            .arg(&self.config)
            .envs(self.variables.iter().cloned());
        command.env(KILL_FILE, self.kill_file());
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.child = Some(command.spawn().expect("the binary exists, so it starts"));
    }

    /// Waits until `/readyz` says yes.
    ///
    /// # Panics
    /// When the daemon ends first, or a minute is over.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        let mut ended = None;
        let ready = eventually(START_LIMIT, || {
            let child = self
                .child
                .as_mut()
                .expect("only a daemon that was started is waited for");
            ended = child.try_wait().expect("a child can be waited for");
            ended.is_some() || self.is_ready()
        });
        assert!(
            ended.is_none(),
            "the daemon ended with {ended:?} before it was ready\n{}",
            self.tail()
        );
        assert!(
            ready,
            "the daemon was not ready within {START_LIMIT:?}: {}\n{}",
            self.readiness(),
            self.tail()
        );
    }

    /// The last lines of its log.
    #[must_use]
    pub fn tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL)..];
        format!(
            "---- the end of {} ----\n{}",
            self.log.display(),
            tail.join("\n")
        )
    }

    /// The file that is run: a copy of the binary beside the configuration, if a test has put one there.
    #[must_use]
    pub fn program(&self) -> PathBuf {
        let copy = self.config.with_file_name("switchyard");
        if copy.exists() { copy } else { binary() }
    }

    fn is_ready(&self) -> bool {
        let Some(admin) = self.find_admin() else {
            return false;
        };
        let answer = match &self.netns {
            None => http::get(admin, "/readyz"),
            Some(_) => http::get_unix(&self.run.join("admin.sock"), "/readyz"),
        };
        answer.is_ok_and(|answer| answer.status == 200)
    }

    fn readiness(&self) -> String {
        match self
            .find_admin()
            .map(|_| http::get_unix(&self.run.join("admin.sock"), "/readyz?verbose"))
        {
            None => "it wrote no admin address".to_owned(),
            Some(Ok(answer)) => format!("/readyz says {}: {}", answer.status, answer.text()),
            Some(Err(error)) => format!("/readyz fails: {error}"),
        }
    }

    fn find_admin(&self) -> Option<SocketAddr> {
        fs::read_to_string(self.run.join("admin.addr"))
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}

impl Drop for Daemon {
    #[expect(
        clippy::print_stderr,
        reason = "the test harness shows this output with the failed test"
    )]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
        self.kill9();
    }
}

/// The built binary: `SWITCHYARD_BIN`, or `switchyard` in the directory of the profile that the tests were
/// built in.
///
/// # Panics
/// When it is not there.
#[track_caller]
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(path) = env::var_os("SWITCHYARD_BIN") {
        return PathBuf::from(path);
    }
    let test = env::current_exe().expect("a running test has a file");
    // target/<profile>/deps/it-<hash>
    let path = test
        .parent()
        .and_then(Path::parent)
        .expect("tests lie below a profile's directory")
        .join("switchyard");
    assert!(
        path.exists(),
        "{} is missing: run `cargo build -p switchyard`, or set SWITCHYARD_BIN",
        path.display()
    );
    path
}

/// Returns whether the binary was built with the feature `faults`. It is searched once: it has 100 MB.
fn has_faults() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let bytes = fs::read(binary()).expect("the binary is there");
        bytes
            .windows(KILL_FILE.len())
            .any(|part| part == KILL_FILE.as_bytes())
    })
}
