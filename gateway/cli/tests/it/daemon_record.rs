//! Tests of what a daemon has written down: the logkeeper of its unit and commands read it.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use switchyard_linux::process::ProcessId;
use tempfile::TempDir;

use crate::support::{RunningChild, exe, wait_until};

/// The runtime directory of a unit, with an invalid configuration.
struct Unit {
    dir: TempDir,
}

impl Unit {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.toml"), "[[[\n").unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the record of a daemon.
    fn write_record(&self, process: ProcessId) {
        let record = serde_json::json!({
            "version": 1,
            "process": process.to_string(),
            "admin_socket": self.path("admin.sock"),
            "logkeeper": {
                "socket": self.path("keeper.sock"),
                "state_dir": self.path("keeper"),
                "sandbox": false,
            },
            "later": true,
        });
        fs::write(self.path("daemon.json"), record.to_string()).unwrap();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(exe());
        command
            .args(words)
            .env("RUNTIME_DIRECTORY", self.dir.path())
            .env_remove("SWITCHYARD_ADMIN_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    fn logkeeper(&self) -> Command {
        let config = self.path("config.toml");
        let mut command = self.command(&["logkeeper", "--config"]);
        command.arg(config);
        command
    }
}

fn own() -> ProcessId {
    ProcessId::of(i32::try_from(std::process::id()).unwrap()).unwrap()
}

/// A process that does not run.
fn ended() -> ProcessId {
    ProcessId {
        started: own().started + 1,
        ..own()
    }
}

#[track_caller]
fn assert_serves(unit: &Unit, socket: &Path) {
    let log = fs::File::create(unit.path("log")).unwrap();
    let _running = RunningChild(unit.logkeeper().stderr(log).spawn().unwrap());
    wait_until("the logkeeper serves", || {
        UnixStream::connect(socket).is_ok()
    });
    let log = fs::read_to_string(unit.path("log")).unwrap();
    assert!(
        log.contains("the configuration is invalid") && log.contains("config.toml:1"),
        "{log}"
    );
}

#[test]
fn logkeeper_serves_where_a_daemon_has_written_down_although_the_configuration_is_invalid() {
    let unit = Unit::new();
    for process in [own(), ended()] {
        unit.write_record(process);
        assert_serves(&unit, &unit.path("keeper.sock"));
    }
}

#[test]
fn logkeeper_without_a_record_serves_where_one_has_served_and_else_fails_with_the_error() {
    let unit = Unit::new();
    let failed = unit.logkeeper().output().unwrap();
    let error = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(78), "{error}");
    assert!(error.contains("config.toml:1"), "{error}");
    fs::create_dir_all(unit.path("logkeeper/state")).unwrap();
    assert_serves(&unit, &unit.path("logkeeper/logkeeper.sock"));
}

#[test]
fn commands_use_the_socket_of_the_daemon_that_runs() {
    let unit = Unit::new();
    unit.write_record(own());
    let failed = unit.command(&["status"]).output().unwrap();
    let error = String::from_utf8(failed.stderr).unwrap();
    let socket = unit.path("admin.sock").display().to_string();
    assert!(
        error.contains(&format!("cannot connect to {socket}:")),
        "{error}"
    );
    let failed = unit
        .command(&["status", "--socket", "/none/admin.sock"])
        .output()
        .unwrap();
    let error = String::from_utf8(failed.stderr).unwrap();
    assert!(
        error.contains("cannot connect to /none/admin.sock:"),
        "{error}"
    );
}
