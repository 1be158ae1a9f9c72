//! The guest as a node: its daemon, a registry with an image, and pods that are removed at the end of a test.

use std::cell::RefCell;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use switchyard_crash_points::CrashPoint;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::{Cri, image_spec, namespaces};
use switchyard_tests::host::{eventually, random_name};
use switchyard_tests::image::busybox;
use switchyard_tests::node::log_content;
use switchyard_tests::registry::Registry;
use tonic::{Code, Status};

/// The daemon's default socket.
pub(crate) const SOCKET: &str = "/run/switchyard/cri.sock";
/// The socket of the managed containerd.
pub(crate) const CONTAINERD: &str = "/run/switchyard/containerd/containerd.sock";
/// The parent directory of the pods' logs, as a kubelet has it.
const LOGS: &str = "/var/log/pods";
/// The timeout of every wait: the guest is ten times slower than a real machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// The slice that is the parent of pods; its name contains that of the slice above it.
pub(crate) const SLICE: &str = "guest-pods.slice";

/// The file that says at which step the daemon dies.
const KILL_FILE: &str = "/run/guest-kill";
/// A temporary drop-in of the daemon's unit.
const DROP_IN: &str = "/run/systemd/system/switchyard.service.d/guest.conf";

/// A test and its name. It panics if it fails.
pub(crate) type GuestFact = (&'static str, fn(&GuestNode));

/// The node.
pub(crate) struct GuestNode {
    pub(crate) cri: Cri,
    pub(crate) registry: Registry,
}

/// A pod of a test; it is removed with all its containers when it is dropped.
pub(crate) struct GuestPod<'n> {
    node: &'n GuestNode,
    pub(crate) id: String,
    pub(crate) config: cri::PodSandboxConfig,
    names: RefCell<Vec<(String, String)>>,
}

/// The daemon with steps enabled at which a test can kill it; dropping this restores the unit.
pub(crate) struct KillableDaemon<'n> {
    node: &'n GuestNode,
}

impl GuestNode {
    /// Starts a registry, waits for the daemon, and pulls an image.
    pub(crate) fn start() -> Self {
        let registry = Registry::start();
        registry.push("library/busybox:latest", &busybox().build());
        let node = Self {
            cri: Cri::new(Path::new(SOCKET)),
            registry,
        };
        node.wait_ready();
        node.cri
            .pull(&node.image(), None)
            .expect("busybox can be pulled from the registry");
        node
    }

    /// The reference of the image.
    pub(crate) fn image(&self) -> String {
        self.registry.reference("library/busybox:latest")
    }

    /// Waits until the daemon has recovered, and the node is ready.
    #[track_caller]
    pub(crate) fn wait_ready(&self) {
        let mut last = String::new();
        let ready = eventually(LIMIT, || {
            let answer = self
                .cri
                .runtime(async |mut client| client.status(cri::StatusRequest::default()).await);
            last = format!("{answer:?}");
            let conditions = answer
                .ok()
                .and_then(|answer| answer.status)
                .unwrap_or_default()
                .conditions;
            conditions.len() >= 2 && conditions.iter().all(|condition| condition.status)
        });
        assert!(ready, "the daemon is not ready after {LIMIT:?}: {last}");
    }

    /// The configuration of a pod whose cgroup parent is a slice.
    pub(crate) fn pod_config(&self, name: &str) -> cri::PodSandboxConfig {
        let uid = random_name();
        let mut config = cri::PodSandboxConfig {
            log_directory: format!("{LOGS}/{name}_{uid}"),
            metadata: Some(cri::PodSandboxMetadata {
                name: name.to_owned(),
                uid,
                namespace: "guest".to_owned(),
                attempt: 0,
            }),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: format!("/guest.slice/{SLICE}"),
                ..Default::default()
            }),
            ..Default::default()
        };
        namespaces(&mut config).set_pid(cri::NamespaceMode::Container);
        config
    }

    /// Runs [`GuestNode::pod_config`].
    #[track_caller]
    pub(crate) fn pod(&self, name: &str) -> GuestPod<'_> {
        self.pod_of(name, "")
    }

    /// The same, with this runtime handler.
    #[track_caller]
    pub(crate) fn pod_of(&self, name: &str, handler: &str) -> GuestPod<'_> {
        self.pod_from(self.pod_config(name), handler)
    }

    /// The same, of this configuration.
    #[track_caller]
    pub(crate) fn pod_from(&self, config: cri::PodSandboxConfig, handler: &str) -> GuestPod<'_> {
        let made = self.cri.run_pod_with(&config, handler);
        let id = made.unwrap_or_else(|status| panic!("RunPodSandbox: {status}"));
        GuestPod {
            node: self,
            id,
            config,
            names: RefCell::default(),
        }
    }

    /// A container that runs `sh -c script` and logs to `<name>.log`.
    pub(crate) fn container(&self, name: &str, script: &str) -> cri::ContainerConfig {
        shell_container(&self.image(), name, script)
    }

    /// Waits until a container has exited; its status then.
    #[track_caller]
    pub(crate) fn wait_exit(&self, container: &str) -> cri::ContainerStatus {
        let mut last = cri::ContainerStatus::default();
        let ended = eventually(LIMIT, || {
            last = self
                .cri
                .status(container)
                .expect("the container exists, so it has a status");
            last.state() == cri::ContainerState::ContainerExited
        });
        assert!(
            ended,
            "container {container} has not ended after {LIMIT:?}: {last:?}"
        );
        last
    }
}

impl GuestNode {
    /// Restarts the daemon with steps enabled, so that a test can kill it.
    #[track_caller]
    pub(crate) fn killable(&self) -> KillableDaemon<'_> {
        let killable = KillableDaemon { node: self };
        fs::create_dir_all(Path::new(DROP_IN).parent().expect("it has one"))
            .expect("it can be made");
        let environment = format!(
            "[Service]\nEnvironment={}={KILL_FILE}\nRestartSec=100ms\n",
            switchyard_crash_points::KILL_FILE
        );
        fs::write(DROP_IN, environment).expect("it can be written");
        run(&["systemctl", "daemon-reload"]);
        run(&["systemctl", "restart", "switchyard"]);
        self.wait_ready();
        killable
    }
}

impl KillableDaemon<'_> {
    /// Kills the daemon at this step, during this call, and waits for its successor.
    #[track_caller]
    pub(crate) fn killed_during<T: Debug>(
        &self,
        step: CrashPoint,
        call: impl FnOnce() -> Result<T, Status>,
    ) {
        let restarts = property("switchyard", "NRestarts");
        fs::write(KILL_FILE, format!("{step:?}\n")).expect("it can be written");
        let status = call().expect_err("the daemon dies");
        assert!(
            matches!(
                status.code(),
                Code::Unavailable | Code::Unknown | Code::Cancelled
            ),
            "{step:?}: {status}"
        );
        assert!(
            eventually(LIMIT, || property("switchyard", "NRestarts") != restarts),
            "{step:?}"
        );
        self.node.wait_ready();
    }
}

impl Drop for KillableDaemon<'_> {
    fn drop(&mut self) {
        try_run(&["rm", "--force", DROP_IN]);
        try_run(&["systemctl", "daemon-reload"]);
    }
}

impl GuestPod<'_> {
    /// Creates and starts a container that runs `sh -c script`, changed by `change`; its id.
    #[track_caller]
    pub(crate) fn start_shell_with(
        &self,
        name: &str,
        script: &str,
        change: impl FnOnce(&mut cri::ContainerConfig),
    ) -> String {
        let mut config = self.node.container(name, script);
        change(&mut config);
        let created = self.node.cri.create(&self.id, &config, &self.config);
        let id = created.unwrap_or_else(|status| panic!("CreateContainer: {status}"));
        self.node
            .cri
            .start(&id)
            .unwrap_or_else(|status| panic!("StartContainer: {status}"));
        self.names.borrow_mut().push((name.to_owned(), id.clone()));
        id
    }

    /// As [`GuestPod::start_shell_with`], unchanged.
    #[track_caller]
    pub(crate) fn start_shell(&self, name: &str, script: &str) -> String {
        self.start_shell_with(name, script, |_| {})
    }

    /// The output of a container so far, line by line, without timestamps.
    pub(crate) fn log_lines(&self, name: &str) -> Vec<String> {
        let path = PathBuf::from(&self.config.log_directory).join(format!("{name}.log"));
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .map(|line| log_content(line).to_owned())
            .collect()
    }

    /// Waits until a container's output fulfils `condition`.
    #[track_caller]
    pub(crate) fn wait_log_lines(
        &self,
        name: &str,
        mut condition: impl FnMut(&[String]) -> bool,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        let held = eventually(LIMIT, || {
            lines = self.log_lines(name);
            condition(&lines)
        });
        assert!(
            held,
            "the log {name} has not come to it after {LIMIT:?}: {lines:#?}"
        );
        lines
    }
}

impl Drop for GuestPod<'_> {
    fn drop(&mut self) {
        let stopped = self.node.cri.stop_pod(&self.id);
        let removed = self.node.cri.remove_pod(&self.id);
        if !std::thread::panicking() {
            stopped.expect("a pod can be stopped");
            removed.expect("a stopped pod can be removed");
            for (name, id) in self.names.take() {
                let scope = scope(&id);
                assert!(
                    !scope.exists(),
                    "the control group of {name} is left: {}",
                    scope.display()
                );
            }
        }
    }
}

/// A container that runs `sh -c script`.
pub(crate) fn shell_container(image: &str, name: &str, script: &str) -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: name.to_owned(),
            attempt: 0,
        }),
        image: Some(image_spec(image)),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        log_path: format!("{name}.log"),
        ..Default::default()
    }
}

/// The cgroup that systemd creates for a container of a pod here.
pub(crate) fn scope(container: &str) -> PathBuf {
    PathBuf::from(format!(
        "/sys/fs/cgroup/guest.slice/{SLICE}/switchyard-{container}.scope"
    ))
}

/// The text of a file of the cgroup, without its last newline.
#[track_caller]
pub(crate) fn cgroup_file(container: &str, file: &str) -> String {
    let path = scope(container).join(file);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim_end().to_owned()
}

/// The output of a command, without its last newline.
///
/// # Panics
/// When it fails.
#[track_caller]
pub(crate) fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{words:?} ended with {}: {error}",
        output.status
    );
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

/// Runs a command, and returns whether it succeeds.
pub(crate) fn succeeds(words: &[&str]) -> bool {
    let ended = Command::new(words[0]).args(&words[1..]).output();
    ended.is_ok_and(|ended| ended.status.success())
}

/// Does what is needed to clean up, also after a failure, of which this must hide nothing: says what fails.
pub(crate) fn try_run(words: &[&str]) {
    let ended = Command::new(words[0]).args(&words[1..]).status();
    if !ended.is_ok_and(|status| status.success()) {
        println!("{words:?} failed");
    }
}

/// A property of a unit.
#[track_caller]
pub(crate) fn property(unit: &str, name: &str) -> String {
    run(&["systemctl", "show", unit, "--value", "--property", name])
}
