//! Real managers of a Docker swarm, Debian's dockerd, in a network namespace of their own: one of their ports cannot
//! be changed. In an emulated guest, which has them too, they are ten times slower.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::external_containerd::ExternalContainerd;
use crate::host::{eventually, inside, pin_network_namespace, run, within};
use crate::prereq;
use crate::scratch::{Scratch, cgroup_name};

pub mod agent;
pub mod node;
pub mod worker;

/// Limit for dockerd to start or to end.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Limit for managers to agree on something.
pub const AGREE_LIMIT: Duration = Duration::from_secs(120);

/// The socket at which a dockerd looks for a containerd of the machine.
const MACHINE_CONTAINERD: &str = "/run/containerd/containerd.sock";

/// The options of a dockerd that makes neither a bridge nor rules.
const WITHOUT_BRIDGE: [&str; 3] = ["--iptables=false", "--ip-masq=false", "--bridge=none"];

/// The options of one that makes both. Its control groups are made in the same way on each machine, and its layers on each file system.
const WITH_BRIDGE: [&str; 3] = [
    "--iptables=true",
    "--storage-driver=vfs",
    "--exec-opt=native.cgroupdriver=cgroupfs",
];

/// A swarm of one or more managers, or without any the place for a dockerd that is in no swarm. Dropping it ends them and removes everything.
#[derive(Debug)]
pub struct SwarmCluster {
    /// The managers, and then the workers that are dockerds, and those that are in no swarm.
    members: Vec<Dockerd>,
    netns: PathBuf,
    // Must be the last field: dropping the directory unmounts the namespace and removes the files.
    scratch: Scratch,
}

/// One dockerd.
#[derive(Debug)]
struct Dockerd {
    dir: PathBuf,
    child: Option<Child>,
    /// True if it makes the bridge docker0 and its rules, and runs containers.
    has_bridge: bool,
    /// The containerd of one that runs containers, or that would take that of the machine for its own; else it starts one itself.
    containerd: Option<ExternalContainerd>,
}

// === impl SwarmCluster ===

impl SwarmCluster {
    /// A swarm with one manager.
    ///
    /// # Panics
    /// When docker is not installed or does not start.
    #[track_caller]
    #[must_use]
    pub fn new() -> Self {
        Self::with_managers(1)
    }

    /// A swarm with so many managers. With none there is only the network namespace.
    ///
    /// # Panics
    /// When docker is not installed or does not start.
    #[track_caller]
    #[must_use]
    pub fn with_managers(count: usize) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "dockerd wants to be run as root"
        );
        let scratch = Scratch::new();
        let netns = scratch.path().join("net");
        pin_network_namespace(&netns);
        let ip = prereq::require("ip", "iproute2");
        let mut cluster = Self {
            members: Vec::new(),
            netns,
            scratch,
        };
        run(cluster.inside(&ip).args(["link", "set", "lo", "up"]));
        cluster.start_managers(count);
        cluster
    }

    /// A swarm with one manager in the network namespace of this process: on a machine that has no other one.
    ///
    /// # Panics
    /// When docker is not installed or does not start.
    #[track_caller]
    #[must_use]
    pub fn in_this_network() -> Self {
        let mut cluster = Self {
            members: Vec::new(),
            netns: PathBuf::from("/proc/self/ns/net"),
            scratch: Scratch::new(),
        };
        cluster.start_managers(1);
        cluster
    }

    #[track_caller]
    fn start_managers(&mut self, count: usize) {
        for number in 0..count {
            self.start_new(false);
            if number == 0 {
                let address = self.address(0);
                let own = ["--listen-addr", &address, "--advertise-addr", &address];
                self.docker(&[&["swarm", "init"], &own[..]].concat());
            } else {
                self.join_dockerd(number, "manager");
            }
        }
    }

    /// Adds a worker that is a dockerd, and returns its number.
    ///
    /// # Panics
    /// When it does not start or cannot join.
    pub fn add_worker(&mut self) -> usize {
        let number = self.start_new(false);
        self.join_dockerd(number, "worker");
        number
    }

    /// Adds a dockerd that is in no swarm, and returns its number. It makes the bridge docker0 and its rules, in the network namespace of all.
    ///
    /// # Panics
    /// When it does not start.
    pub fn add_with_bridge(&mut self) -> usize {
        self.start_new(true)
    }

    /// Starts one more dockerd.
    fn start_new(&mut self, has_bridge: bool) -> usize {
        let number = self.members.len();
        let dir = self.scratch.path().join(format!("m{number}"));
        fs::create_dir(&dir).expect("the scratch directory can be written");
        // The key would be in /etc.
        let settings = format!(
            "{{\"deprecated-key-path\": \"{}/key.json\"}}",
            dir.display()
        );
        fs::write(dir.join("daemon.json"), settings).expect("the scratch directory can be written");
        if has_bridge {
            let programs = dir.join("bin");
            fs::create_dir(&programs).expect("the directory is ours");
            symlink("/bin/true", programs.join("modprobe")).expect("the directory is ours");
        }
        self.members.push(Dockerd {
            dir,
            child: None,
            has_bridge,
            containerd: None,
        });
        self.start_member(number);
        number
    }

    fn join_dockerd(&self, number: usize, role: &str) {
        let token = self.token(role);
        let [address, first] = [number, 0].map(|number| self.address(number));
        let own = ["--listen-addr", &address, "--advertise-addr", &address];
        self.docker_on(
            number,
            &[&["swarm", "join", "--token", &token], &own[..], &[&first]].concat(),
        );
    }

    /// Returns the socket on which a dockerd answers docker clients.
    #[must_use]
    pub fn socket(&self, number: usize) -> PathBuf {
        self.members[number].dir.join("sock")
    }

    /// Starts a member that does not run.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn start_member(&mut self, number: usize) {
        let dockerd = prereq::require("dockerd", "docker.io");
        let dir = self.members[number].dir.clone();
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.join("log"))
            .expect("the directory is ours");
        let errors = log.try_clone().expect("a file can be opened twice");
        let option = |name: &str, path: &str| format!("--{name}={}", dir.join(path).display());
        let mut command = self.inside(&dockerd);
        let has_bridge = self.members[number].has_bridge;
        if has_bridge || Path::new(MACHINE_CONTAINERD).exists() {
            let socket = dir.join("containerd.sock");
            let [state, run] = ["containerd", "containerd-run"].map(|name| dir.join(name));
            let containerd = ExternalContainerd::start_in(&state, &run, &socket, "");
            self.members[number].containerd = Some(containerd);
            command.arg(option("containerd", "containerd.sock"));
        }
        if has_bridge {
            let parent = cgroup_name(self.scratch.digits());
            command
                .args(WITH_BRIDGE)
                .arg(format!("--cgroup-parent=/{parent}"));
            keep_apart(&mut command, &dir);
        } else {
            command.args(WITHOUT_BRIDGE);
        }
        let child = command
            .args([
                option("data-root", "data"),
                option("exec-root", "exec"),
                option("pidfile", "pid"),
            ])
            .arg(option("config-file", "daemon.json"))
            .arg(format!("--host=unix://{}", dir.join("sock").display()))
            .arg("--userland-proxy=false")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .expect("it was found, so it starts");
        self.members[number].child = Some(child);
        let is_up = eventually(START_LIMIT, || {
            self.try_docker(number, &["version"]).is_ok()
        });
        assert!(is_up, "dockerd did not start:\n{}", self.log(number));
    }

    /// Ends a member with a signal, and waits for it.
    ///
    /// # Panics
    /// When it does not end.
    pub fn end_member(&mut self, number: usize, signal: Signal) {
        self.members[number].end(signal);
    }

    /// Returns the address at which a member listens.
    #[must_use]
    pub fn address(&self, number: usize) -> String {
        let last = u8::try_from(number + 1).expect("there are few members");
        format!("{}:2377", Ipv4Addr::new(127, 0, 0, last))
    }

    /// The join token of a role, `worker` or `manager`.
    #[must_use]
    pub fn token(&self, role: &str) -> String {
        self.docker(&["swarm", "join-token", "--quiet", role])
            .trim()
            .to_owned()
    }

    /// Returns the output of the docker client on the first manager.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn docker(&self, words: &[&str]) -> String {
        self.docker_on(0, words)
    }

    /// Returns the output of the docker client on a manager.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn docker_on(&self, number: usize, words: &[&str]) -> String {
        self.try_docker(number, words)
            .unwrap_or_else(|error| panic!("docker {words:?}: {error}"))
    }

    /// Returns the output of the docker client on a manager.
    ///
    /// # Errors
    /// Its error output, if it fails.
    ///
    /// # Panics
    /// If it is not installed.
    pub fn try_docker(&self, number: usize, words: &[&str]) -> Result<String, String> {
        let output = self
            .docker_command(number, words)
            .output()
            .expect("it was found, so it starts");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    /// The docker client, for a manager.
    ///
    /// # Panics
    /// When it is not installed.
    #[must_use]
    pub fn docker_command(&self, number: usize, words: &[&str]) -> Command {
        let mut command = Command::new(prereq::require("docker", "docker.io"));
        command
            .env(
                "DOCKER_HOST",
                format!("unix://{}", self.socket(number).display()),
            )
            .env("DOCKER_CONFIG", self.scratch.path())
            .args(words)
            .stdin(Stdio::null());
        command
    }

    /// The nodes that are not managers: `ID HOSTNAME STATUS AVAILABILITY`, in the order of their ids.
    #[must_use]
    pub fn workers(&self) -> Vec<String> {
        let format = "{{.ID}} {{.Hostname}} {{.Status}} {{.Availability}}";
        let all = self.docker(&["node", "ls", "--filter", "role=worker", "--format", format]);
        let mut workers: Vec<String> = all.lines().map(str::to_owned).collect();
        workers.sort();
        workers
    }

    /// Waits until a condition on the swarm holds.
    ///
    /// # Panics
    /// When it does not; the nodes and the last lines of the first manager's log are shown.
    #[track_caller]
    pub fn wait_until(&self, what: &str, condition: impl FnMut() -> bool) {
        if eventually(AGREE_LIMIT, condition) {
            return;
        }
        let nodes = self.try_docker(0, &["node", "ls"]);
        let log = self.log(0);
        let tail: Vec<&str> = log.lines().rev().take(15).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        panic!(
            "{what}: not within {AGREE_LIMIT:?}; nodes: {nodes:?}\n{}",
            tail.join("\n")
        );
    }

    /// A program in the network namespace of the managers.
    #[must_use]
    pub fn inside(&self, program: &Path) -> Command {
        inside(&self.netns, program)
    }

    /// Does something on a thread whose connections are made in the network namespace of the managers.
    ///
    /// # Panics
    /// When the thread panics.
    pub fn within<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        within(&self.netns, work)
    }

    /// The network namespace of the managers.
    #[must_use]
    pub fn netns(&self) -> &Path {
        &self.netns
    }

    /// The directory of everything.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.scratch.path()
    }

    fn log(&self, number: usize) -> String {
        fs::read_to_string(self.members[number].dir.join("log")).unwrap_or_default()
    }
}

impl Default for SwarmCluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SwarmCluster {
    fn drop(&mut self) {
        // A killed dockerd would leave its containerd; what is left, the directory's end removes.
        for member in &mut self.members {
            member.end(Signal::SIGTERM);
        }
    }
}

// === impl Dockerd ===

impl Dockerd {
    fn end(&mut self, signal: Signal) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id is an i32"));
        // nsenter has become dockerd. It may have ended by itself.
        let _ = kill(pid, signal);
        let has_ended = eventually(START_LIMIT, || {
            child.try_wait().is_ok_and(|status| status.is_some())
        });
        if !has_ended {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.containerd = None;
        // The containerd that it started, which a kill leaves, and shims.
        let _ = crate::host::processes::clear(&self.dir);
    }
}

/// Keeps a dockerd with a bridge, whose directory this is, from changing the machine beyond its network namespace.
fn keep_apart(dockerd: &mut Command, dir: &Path) {
    // A firewalld of the machine, which it would find by the bus, has nothing to do with it.
    let bus = format!("unix:path={}", dir.join("bus").display());
    // It would load br_netfilter, by which bridges in all network namespaces ask iptables: the directory has a modprobe that does nothing.
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}:/usr/sbin:/sbin", dir.join("bin").display());
    dockerd
        .env("DBUS_SYSTEM_BUS_ADDRESS", bus)
        .env("PATH", path);
}
