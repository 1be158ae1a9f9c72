//! Tests of the real daemon: our binary with a managed containerd, killed and stopped.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use switchyard_daemon::detach::read_pid_file;
use switchyard_linux::process::ProcessId;
use switchyard_socket::channel;
use tempfile::TempDir;

use crate::support::{Killed, exe, soon, wait_until};

struct DaemonBinary {
    dir: TempDir,
}

impl DaemonBinary {
    fn new() -> Self {
        assert!(
            Path::new("/usr/bin/containerd").exists(),
            "containerd is missing: apt-get install containerd"
        );
        let dir = tempfile::tempdir().unwrap();
        let node = Self { dir };
        let text = format!(
            "version = 1\n[paths]\nstate = {:?}\nrun = {:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [network.bridge]\ndriver = \"cni\"\n",
            node.path("state"),
            node.path("run")
        );
        fs::write(node.path("config.toml"), text).unwrap();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn serve(&self) -> Daemon {
        let mut command = Command::new(exe());
        command
            .arg("serve")
            .arg("--config")
            .arg(self.path("config.toml"));
        Daemon(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    async fn ready(&self) {
        let socket = self.path("run/admin.sock");
        let ready = async {
            while !matches!(channel::get(&socket, "/readyz").await, Ok((status, _)) if status == 200)
            {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        soon("the daemon to be ready", ready).await;
    }

    fn managed(&self) -> [ProcessId; 2] {
        [
            "run/containerd/containerd.pid",
            "run/logkeeper/logkeeper.pid",
        ]
        .map(|file| read_pid_file(&self.path(file)).unwrap().unwrap())
    }
}

impl Drop for DaemonBinary {
    fn drop(&mut self) {
        for file in [
            "run/containerd/containerd.pid",
            "run/logkeeper/logkeeper.pid",
        ] {
            if let Ok(Some(process)) = read_pid_file(&self.path(file)) {
                drop(Killed(process));
            }
        }
    }
}

/// The daemon's process; killed when dropped.
struct Daemon(Child);

impl Daemon {
    fn end(&mut self, signal: Signal) -> Option<i32> {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), signal).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn managed_processes_survive_daemon_kill_and_shutdown() {
    let node = DaemonBinary::new();
    let mut killed = node.serve();
    node.ready().await;
    let managed = node.managed();
    assert_eq!(killed.end(Signal::SIGKILL), None);
    assert!(
        node.path("run/cri.sock").exists(),
        "a killed daemon cannot clean up"
    );

    let mut daemon = node.serve();
    node.ready().await;
    assert_eq!(node.managed(), managed);
    kill(Pid::from_raw(managed[0].pid), Signal::SIGKILL).unwrap();
    wait_until("containerd is started again", || {
        node.managed()[0] != managed[0] && node.path("run/containerd/containerd.sock").exists()
    });
    node.ready().await;

    let managed = node.managed();
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    assert!(
        managed.iter().all(ProcessId::is_alive),
        "what it manages must keep running"
    );
    assert!(!node.path("run/admin.addr").exists(), "it is left");
}

/// Runs a command to its end, with a kernel that does not have a call: a filter of the thread that starts it answers so.
fn run_without(call: i64, mut command: Command) -> Output {
    let no_such_call = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let filter = SeccompFilter::new(
        BTreeMap::from([(call, Vec::new())]),
        SeccompAction::Allow,
        no_such_call,
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    let confined = move || {
        apply_filter(&program).unwrap();
        command.output().unwrap()
    };
    thread::spawn(confined).join().unwrap()
}

#[test]
fn daemon_does_not_start_on_a_kernel_that_lacks_what_it_needs() {
    let node = DaemonBinary::new();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut command = Command::new(exe());
    command
        .arg("serve")
        .arg("--config")
        .arg(node.path("config.toml"));
    let output = run_without(libc::SYS_openat2, command);
    let text = String::from_utf8_lossy(&output.stderr);
    // What no later start mends.
    assert_eq!(output.status.code(), Some(78), "{text}");
    for part in ["openat2", release.trim(), "Linux 5.6 or later"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!node.path("state").exists() && !node.path("run").exists());

    let mut check = Command::new(exe());
    check
        .args(["doctor", "--output", "json"])
        .arg("--config")
        .arg(node.path("config.toml"));
    let text = run_without(libc::SYS_openat2, check).stdout;
    let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["code"] == "SY126");
    let found = found.expect("the doctor says so too");
    assert!(
        found["found"].as_str().unwrap().contains("Linux 5.6"),
        "{found}"
    );
}

#[test]
fn doctor_says_what_a_user_namespace_takes_away() {
    let node = DaemonBinary::new();
    for (namespaces, is_found) in [
        (&["--mount"][..], false),
        (&["--user", "--map-root-user"], true),
        (&["--user", "--map-root-user", "--mount"], true),
        (&["--pid", "--fork"], false),
    ] {
        let output = Command::new("unshare")
            .args(namespaces)
            .arg(exe())
            .args(["doctor", "--output", "json"])
            .arg("--config")
            .arg(node.path("config.toml"))
            .output()
            .expect("unshare is missing: install the Debian package util-linux");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let found = findings.iter().any(|finding| finding["code"] == "SY128");
        assert_eq!(found, is_found, "{namespaces:?}: {report:#}");
    }
}

/// Does not test containerd there: whether it works depends on the cgroups and file systems that such a container is given.
#[tokio::test]
async fn daemon_in_a_user_namespace_tells_it_and_demands_no_better_score() {
    let node = DaemonBinary::new();
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount"])
        .arg(exe())
        .arg("serve")
        .arg("--config")
        .arg(node.path("config.toml"));
    // `unshare` becomes the daemon.
    let mut daemon = Daemon(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare is missing: install the Debian package util-linux"),
    );
    let socket = node.path("run/admin.sock");
    let answered = async {
        loop {
            if let Ok((status, body)) = channel::get(&socket, "/statusz").await
                && status == 200
            {
                return body;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let body = soon("the daemon to answer", answered).await;
    let report: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let features = report["features"].as_array().unwrap();
    let fault_of = |name: &str| {
        let found = features.iter().find(|feature| feature["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {report:#}"))["fault"].as_str()
    };
    assert_eq!(fault_of("openat2"), None);
    assert_eq!(fault_of("mount_setattr"), None);
    assert!(fault_of("initial_user_namespace").is_some());
    let generated = node.path("state/containerd/config.toml");
    wait_until("the configuration of containerd", || generated.exists());
    let text = fs::read_to_string(&generated).unwrap();
    assert!(!text.contains("oom_score"), "{text}");
    daemon.end(Signal::SIGTERM);
}
