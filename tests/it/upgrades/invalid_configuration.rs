//! A configuration that becomes invalid stops no container and no log: whatever ends comes back, but the daemon, which
//! refuses it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde_json::{Value, json};
use switchyard_proto::cri::v1::Mount;
use switchyard_proto::nomad::drivers::proto::fingerprint_response::HealthState;
use switchyard_tests::daemon::binary;
use switchyard_tests::host::eventually;
use switchyard_tests::node::{TestNode, TestPod, log_content};
use switchyard_tests::nomad::Agent;
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;

/// Limit for something to come back on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Prints numbered lines of a KiB, about a MiB of them each second, until it is to end; then it notes the last number.
const WRITE: &str = "n=0; while [ ! -e /host/end ]; do i=0; while [ $i -lt 16 ]; do i=$((i+1)); n=$((n+1)); \
                     printf '%d %01016d\\n' $n 0; done; sleep 0.01; done; echo $n > /host/last";

/// A logkeeper that is started as its unit starts it, each time that it has ended.
struct LogkeeperUnit {
    child: Arc<Mutex<Child>>,
    is_stopping: Arc<AtomicBool>,
    systemd: Option<JoinHandle<()>>,
    socket: PathBuf,
}

/// A container that writes without a pause.
struct Writer<'n> {
    node: &'n TestNode,
    pod: TestPod<'n>,
    id: String,
    dir: PathBuf,
}

/// An invalid file, until it is dropped.
struct InvalidFile {
    path: PathBuf,
    before: Option<String>,
}

// === impl LogkeeperUnit ===

impl LogkeeperUnit {
    fn start(root: &PrivateRoot) -> Self {
        fs::create_dir_all(root.unit_dir()).expect("the root can be written");
        let config = root.config();
        let dir = root.unit_dir();
        let log = root.path().join("logkeeper.log");
        let start = move || {
            let log = File::options().create(true).append(true).open(&log);
            let mut command = Command::new(binary());
            command
                .arg("logkeeper")
                .arg("--config")
                .arg(&config)
                .env("RUNTIME_DIRECTORY", &dir)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log.expect("the root can be written"));
            command.spawn().expect("the binary exists, so it starts")
        };
        let child = Arc::new(Mutex::new(start()));
        let is_stopping = Arc::new(AtomicBool::new(false));
        let systemd = {
            let child = Arc::clone(&child);
            let is_stopping = Arc::clone(&is_stopping);
            thread::spawn(move || {
                while !is_stopping.load(Ordering::Acquire) {
                    let ended = child.lock().try_wait().expect("a child can be waited for");
                    if ended.is_some() {
                        // The pause of the unit, RestartSec.
                        thread::sleep(Duration::from_millis(100));
                        *child.lock() = start();
                    }
                    thread::sleep(Duration::from_millis(10));
                }
            })
        };
        Self {
            child,
            is_stopping,
            systemd: Some(systemd),
            socket: logkeeper_dir(root).join("keeper.sock"),
        }
    }

    fn pid(&self) -> Pid {
        let id = self.child.lock().id();
        Pid::from_raw(i32::try_from(id).expect("Linux keeps process ids below 2^22"))
    }

    /// Kills it, and waits for the next one to serve.
    #[track_caller]
    fn kill(&self) {
        let before = self.pid();
        kill(before, Signal::SIGKILL).expect("it runs");
        let serves = || self.pid() != before && UnixStream::connect(&self.socket).is_ok();
        assert!(eventually(LIMIT, serves), "the logkeeper does not return");
    }
}

impl Drop for LogkeeperUnit {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Release);
        if let Some(systemd) = self.systemd.take() {
            // It has reported its panic.
            let _ = systemd.join();
        }
        let mut child = self.child.lock();
        // It may have exited already, which is as intended.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The directory of the logkeeper, which is not the default one.
fn logkeeper_dir(root: &PrivateRoot) -> PathBuf {
    root.path().join("keeper")
}

/// A node with both as their units start them.
fn node_with_units() -> (TestNode, LogkeeperUnit) {
    let mut unit = None;
    let node = TestNode::start_in_unit(|root| {
        let dir = logkeeper_dir(root);
        fs::create_dir(&dir).expect("the root can be written");
        let conf = format!(
            "[logkeeper]\nmode = \"external\"\nsocket = {:?}\n",
            dir.join("keeper.sock")
        );
        root.write_config(&conf);
        unit = Some(LogkeeperUnit::start(root));
        conf
    });
    (node, unit.expect("the node has prepared its root"))
}

// === impl Writer ===

impl<'n> Writer<'n> {
    fn start(node: &'n TestNode) -> Self {
        let dir = node.root().path().join("host");
        fs::create_dir(&dir).expect("the root can be written");
        let pod = node.pod("writing");
        let id = pod.start_shell_with("writing", WRITE, |config| {
            config.mounts = vec![Mount {
                host_path: dir.to_str().expect("the path is ASCII").to_owned(),
                container_path: "/host".to_owned(),
                ..Default::default()
            }];
        });
        Self { node, pod, id, dir }
    }

    /// Waits until its log is a MiB longer.
    #[track_caller]
    fn assert_goes_on(&self, when: &str) {
        let length = || fs::metadata(self.pod.log_path("writing")).map_or(0, |log| log.len());
        let before = length();
        let is_longer = || length() > before + (1 << 20);
        assert!(
            eventually(LIMIT, is_longer),
            "{when}: its log does not grow"
        );
    }

    /// Ends it: no line is missing, doubled or torn.
    #[track_caller]
    fn end(self) {
        fs::write(self.dir.join("end"), "").expect("the root can be written");
        assert_eq!(self.node.cri().wait_exit(&self.id).exit_code, 0);
        let last = fs::read_to_string(self.dir.join("last")).expect("it has written its end");
        let last: usize = last.trim().parse().expect("it is a number");
        let mut found = Ok(0);
        // A wrong line ends the wait.
        eventually(LIMIT, || {
            found = counted(&self.pod.log_path("writing"));
            !matches!(&found, Ok(count) if *count < last)
        });
        assert_eq!(found, Ok(last));
    }
}

/// The number of lines in a log, which are numbered.
///
/// # Errors
/// The first line that is not the next one.
fn counted(log: &Path) -> Result<usize, String> {
    let log = BufReader::new(File::open(log).expect("the log is there"));
    let mut count = 0;
    for line in log.lines() {
        let line = line.expect("a log is text");
        count += 1;
        if log_content(&line) != format!("{count} {:01016}", 0) {
            let shown: String = line.chars().take(80).collect();
            return Err(format!("instead of line {count} there is {shown:?}"));
        }
    }
    Ok(count)
}

// === impl InvalidFile ===

impl InvalidFile {
    fn write(path: PathBuf, text: &str) -> Self {
        let before = fs::read_to_string(&path).ok();
        let dir = path.parent().expect("it is in a directory");
        fs::create_dir_all(dir).expect("the root can be written");
        fs::write(&path, text).expect("the root can be written");
        Self { path, before }
    }
}

impl Drop for InvalidFile {
    fn drop(&mut self) {
        let mended = match &self.before {
            Some(before) => fs::write(&self.path, before),
            None => fs::remove_file(&self.path),
        };
        mended.expect("the root can be written");
    }
}

/// Runs a command as in a unit, for at most a minute.
fn in_unit(node: &TestNode, words: &[&str]) -> Output {
    let mut command = Command::new(prereq::require("timeout", "coreutils"));
    command
        .arg("60")
        .arg(binary())
        .args(words)
        .env("RUNTIME_DIRECTORY", node.root().unit_dir());
    command.output().expect("the binary exists, so it starts")
}

/// Kills the managed containerd, and waits for the next one to serve.
#[track_caller]
fn kill_containerd(node: &TestNode) {
    let before = node.kill_managed("containerd");
    let serves = || {
        node.root()
            .managed("containerd")
            .is_some_and(|now| now != before)
            && node.daemon().get("/readyz").0 == 200
    };
    assert!(eventually(LIMIT, serves), "{}", node.daemon().tail());
}

/// Kills the launcher of an agent, which starts the next one.
#[track_caller]
fn kill_launcher(agent: &Agent) {
    let mut plugin = agent.plugin();
    let pid = i32::try_from(plugin.pid()).expect("Linux keeps process ids below 2^22");
    // It may have ended with the daemon.
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    plugin.exit(LIMIT).expect("it is killed");
    drop(plugin);
    let mut fingerprints = agent.dispense().fingerprint().expect("it is opened");
    let is_healthy = || {
        let next = fingerprints.next(LIMIT).expect("it does not end");
        next.expect("it is no error").health() == HealthState::Healthy
    };
    assert!(eventually(LIMIT, is_healthy), "the launcher serves no task");
}

/// The commands of a bad hour work, and say what is wrong with this file.
#[track_caller]
fn assert_commands_work(node: &TestNode, file: &str) {
    let status = in_unit(node, &["status"]);
    assert!(status.status.success(), "{status:?}");
    let dump = in_unit(node, &["config", "dump", "--running"]);
    assert!(dump.status.success(), "{dump:?}");
    let refused = in_unit(node, &["config", "reload"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains(file), "{why}");
    let doctor = in_unit(node, &["doctor", "--output", "json"]);
    let report: Value = serde_json::from_slice(&doctor.stdout).expect("it is JSON");
    assert_eq!(report["daemon"], true, "{report}");
    let findings = report["findings"].as_array().expect("it has findings");
    let mut invalid = findings.iter().filter(|found| found["code"] == "SY804");
    let found = invalid.next().expect("it is found")["found"].to_string();
    assert!(found.contains(file), "{found}");
}

#[test]
fn whatever_ends_under_an_invalid_configuration_comes_back_and_no_line_is_lost() {
    let (node, unit) = node_with_units();
    let agent = Agent::start(node.root(), &json!({}));
    let writer = Writer::start(&node);
    writer.assert_goes_on("before");
    let drop_in = node.root().path().join("config.d/50-later.toml");
    for (path, text) in [
        (drop_in, "version = 1\n[admin]\nof_a_later_version = 1\n"),
        (node.root().config(), "[[[\n"),
    ] {
        let name = path.file_name().expect("it has one").to_string_lossy();
        let name = name.into_owned();
        let invalid = InvalidFile::write(path, text);
        unit.kill();
        writer.assert_goes_on("after a kill of the logkeeper");
        kill_containerd(&node);
        kill_launcher(&agent);
        assert_commands_work(&node, &name);
        writer.assert_goes_on("after kills of all but the daemon");

        node.daemon().kill9();
        let config = node.root().config();
        let config = config.to_str().expect("the path is ASCII");
        let refused = in_unit(&node, &["serve", "--config", config]);
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(78), "{why}");
        assert!(why.contains(&name), "{why}");
        unit.kill();
        writer.assert_goes_on("without a daemon");
        drop(invalid);
        node.daemon().restart();
        writer.assert_goes_on("after the correction");
    }
    kill_launcher(&agent);
    writer.end();
    drop(agent);
    drop(unit);
}
