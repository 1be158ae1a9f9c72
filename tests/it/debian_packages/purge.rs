//! Which processes a purge of the package takes for those of its node.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use switchyard_tests::host::{eventually, processes};
use switchyard_tests::scratch::Scratch;

use super::repository;

/// Long enough for what should happen.
const LIMIT: Duration = Duration::from_secs(40);

/// The user and the group `nobody`.
const NOBODY: u32 = 65534;

/// Directories as those of the package, and what the scripts find there.
struct Node {
    scratch: Scratch,
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program is there"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// A line that it prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let output = self.0.stdout.as_mut().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("it prints a line");
        line.trim().to_owned()
    }
}

impl Node {
    fn new() -> Self {
        let node = Self { scratch: Scratch::new() };
        for dir in ["run", "state"] {
            fs::create_dir(node.dir(dir)).expect("the scratch directory can be written");
        }
        node
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// What a function of the scripts prints, sorted.
    fn told(&self, function: &str) -> Vec<String> {
        let script = format!(
            "set -e; . {}/deploy/debian/common.sh; run={1}/run state={1}/state; {function}",
            repository().display(),
            self.scratch.path().display()
        );
        let output = Command::new("sh").args(["-c", &script]).output().expect("every system has a shell");
        assert!(output.status.success() && output.stderr.is_empty(), "{function}: {output:?}");
        let mut lines: Vec<String> =
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// The command line of a logkeeper that the daemon manages.
    fn logkeeper(&self) -> String {
        format!("/usr/bin/switchyard logkeeper --socket {}/logkeeper.sock", self.dir("run").display())
    }

    /// A shim of the managed containerd, and the main process of its container.
    fn shim(&self) -> (Running, String) {
        let address = self.dir("run").join("containerd/containerd.sock");
        let mut command = Command::new("bash");
        command
            .arg0(format!("containerd-shim-runc-v2 -namespace n -id i -address {}", address.display()))
            .args(["-c", "setpriv --pdeathsig KILL sleep 1000 & echo $!; wait"]);
        let mut shim = Running::start(&mut command);
        let main = shim.line();
        (shim, main)
    }
}

/// A process of the node that has this command line and waits for its input.
fn waiting(command_line: &str) -> Command {
    let mut command = Command::new("cat");
    command.arg0(command_line);
    command
}

/// The same in namespaces of its own, as a nested node has them.
fn nested(namespaces: &[&str], script: &str, command_line: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(namespaces).args(["bash", "-c", script, command_line]);
    command
}

#[test]
fn purge_finds_processes_of_the_nodes_own_root_alone() {
    let node = Node::new();
    let line = node.logkeeper();
    let own = Running::start(&mut waiting(&line));
    let in_own_mounts = Running::start(&mut nested(&["--mount"], "exec -a \"$0\" cat", &line));
    let of_user = Running::start(waiting(&line).uid(NOBODY).gid(NOBODY));
    let in_own_pids =
        Running::start(&mut nested(&["--pid", "--fork", "--kill-child"], "exec -a \"$0\" cat", &line));
    let root = node.dir("root");
    fs::create_dir(&root).expect("the scratch directory can be written");
    let other_root = format!(
        "mount -t tmpfs none {0} && cd {0} && mkdir usr && mount --rbind /usr usr &&
         ln -s usr/bin usr/lib usr/lib64 . && exec chroot . bash -c 'exec -a \"$0\" cat' \"$0\"",
        root.display()
    );
    let in_own_root = Running::start(&mut nested(&["--mount"], &other_root, &line));

    let all_run = || processes::all().iter().filter(|process| process.command == line).count() == 5;
    assert!(eventually(LIMIT, all_run), "{:?}", processes::all());
    let mut expected = [own.pid(), in_own_mounts.pid()];
    expected.sort();
    assert_eq!(node.told("managed"), expected);
    drop((of_user, in_own_pids, in_own_root));
}

/// A user's process that is called like a shim is none, nor are its children containers.
#[test]
fn purge_takes_no_users_process_for_a_shim() {
    let node = Node::new();
    let (shim, main) = node.shim();
    assert_eq!((node.told("shims"), node.told("running_pids")), (vec![shim.pid()], vec![main]));
    let address = node.dir("run").join("containerd/containerd.sock");
    let mut command = Command::new("bash");
    command
        .arg0(format!("containerd-shim -address {}", address.display()))
        .args(["-c", "sleep 1000 & echo $!; read -r _; kill $!"])
        .uid(NOBODY)
        .gid(NOBODY);
    let mut of_user = Running::start(&mut command);
    of_user.line();
    drop(shim);
    assert_eq!((node.told("shims"), node.told("running_pids")), (Vec::new(), Vec::new()));
    drop(of_user.0.stdin.take());
    of_user.0.wait().expect("it ends with its input");
}
