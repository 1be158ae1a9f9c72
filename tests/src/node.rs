//! A whole node for tests: private root, registry, daemon and client, and pods that are removed when dropped.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::unistd::Pid;
use parking_lot::{Mutex, MutexGuard};
use switchyard_proto::cri::v1 as cri;

use crate::cri::{Cri, image_spec, namespaces};
use crate::daemon::Daemon;
use crate::external_containerd::ExternalContainerd;
use crate::host::{eventually, random_name};
use crate::image::busybox;
use crate::leak_scan::{LeakScan, NAMESPACE, orphaned_content};
use crate::registry::Registry;
use crate::registry_proxy::Access;
use crate::root::PrivateRoot;

mod external;
mod pod;
mod processes;
mod version;

pub use pod::{TestPod, log_content};
pub use version::Containerd;

/// The image that every node has pulled.
const IMAGE: &str = "library/busybox:latest";
/// Limit for the daemon to clean up after a killed predecessor.
const CLEAR_LIMIT: Duration = Duration::from_secs(20);

/// A daemon with everything that it needs. If no test failed, dropping it fails when anything is left behind.
#[derive(Debug)]
pub struct TestNode {
    daemon: Mutex<Daemon>,
    cri: Cri,
    registry: Registry,
    failed: AtomicBool,
    /// The containerd, if it is external.
    external_containerd: Option<Mutex<ExternalContainerd>>,
    // Must be the last field: dropping the root removes the files that the other fields use.
    root: PrivateRoot,
}

// === impl TestNode ===

impl TestNode {
    /// Starts a node for one test.
    ///
    /// # Panics
    /// When a prerequisite is missing or something does not start.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        Self::start_with("", |_| {})
    }

    /// Starts a node with more configuration; `prepare` gets its root before the daemon runs.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start_with(extra_toml: &str, prepare: impl FnOnce(&PrivateRoot)) -> Self {
        Self::start_configured(|root| {
            prepare(root);
            extra_toml.to_owned()
        })
    }

    /// Starts a node with the configuration that `prepare` gives, which gets its root before the daemon runs.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start_configured(prepare: impl FnOnce(&PrivateRoot) -> String) -> Self {
        let root = PrivateRoot::new();
        let extra = prepare(&root);
        let daemon = Daemon::start(&root, &extra);
        Self::with_daemon(root, daemon, None)
    }

    /// Runs a command of the command line against the daemon.
    ///
    /// # Panics
    /// If the binary cannot be run.
    #[must_use]
    pub fn call(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("the binary exists")
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

    /// Such a command, not started yet.
    #[must_use]
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(crate::daemon::binary());
        command
            .args(words)
            .arg("--socket")
            .arg(self.root.run().join("admin.sock"));
        command
    }

    /// Starts a node whose daemon has these variables in its environment.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start_with_variables(variables: &[(&str, &str)]) -> Self {
        let root = PrivateRoot::new();
        let daemon = Daemon::start_with(&root, "", variables);
        Self::with_daemon(root, daemon, None)
    }

    /// Starts a node whose daemon has the runtime directory of a unit. `prepare` gets its root before the daemon
    /// runs, and returns the configuration.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start_in_unit(prepare: impl FnOnce(&PrivateRoot) -> String) -> Self {
        let root = PrivateRoot::new();
        let extra = prepare(&root);
        let dir = root.unit_dir();
        let dir = dir.to_str().expect("the path is ASCII");
        let daemon = Daemon::start_with(&root, &extra, &[("RUNTIME_DIRECTORY", dir)]);
        Self::with_daemon(root, daemon, None)
    }

    /// Starts a node whose daemon takes its standard error for the stream of a journal, as in a unit, and returns the socket in
    /// place of the journal's. `prepare` gets its root before the daemon runs, and returns the configuration.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start_in_journal(prepare: impl FnOnce(&PrivateRoot) -> String) -> (Self, UnixDatagram) {
        let root = PrivateRoot::new();
        let extra = prepare(&root);
        let path = root.path().join("journal");
        let journal = UnixDatagram::bind(&path).expect("the root can be written");
        let log = std::fs::File::create(root.daemon_log()).expect("the root can be written");
        let place = log.metadata().expect("an open file has metadata");
        let stream = format!("{}:{}", place.dev(), place.ino());
        let socket = path.to_str().expect("the path is ASCII");
        let variables = [
            ("JOURNAL_STREAM", stream.as_str()),
            ("SWITCHYARD_JOURNAL_SOCKET", socket),
        ];
        let daemon = Daemon::start_with(&root, &extra, &variables);
        (Self::with_daemon(root, daemon, None), journal)
    }

    /// Waits until the daemon's log has this text, and returns whether it has: a thread writes the lines.
    #[must_use]
    pub fn has_logged(&self, text: &str) -> bool {
        let log = self.root.daemon_log();
        let is_there = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains(text));
        eventually(CLEAR_LIMIT, is_there)
    }

    /// Starts a node whose daemon is started by a script, which gets the daemon's arguments; `$DAEMON` in it
    /// is the binary.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start_with_script(script: &str) -> Self {
        let root = PrivateRoot::new();
        let text = script.replace("$DAEMON", &crate::daemon::binary().display().to_string());
        let draft = root.path().join("draft");
        std::fs::write(&draft, format!("#!/bin/sh\n{text}\n")).expect("the root can be written");
        // Written by another process: if this one had the file open for writing, a child that another test
        // forks meanwhile would inherit the descriptor, and executing the file would fail with ETXTBSY.
        let install = crate::prereq::require("install", "coreutils");
        let installed = Command::new(install)
            .arg(&draft)
            .arg(root.path().join("switchyard"))
            .status();
        assert!(
            installed.is_ok_and(|status| status.success()),
            "the script cannot be put there"
        );
        let daemon = Daemon::start(&root, "");
        Self::with_daemon(root, daemon, None)
    }

    fn with_daemon(
        root: PrivateRoot,
        daemon: Daemon,
        upstream: Option<ExternalContainerd>,
    ) -> Self {
        let registry = Registry::start_behind_proxy(Access::Open);
        registry.push(IMAGE, &busybox().build());
        let daemon = Mutex::new(daemon);
        let cri = Cri::new(&root.cri_socket());
        let upstream = upstream.map(Mutex::new);
        let node = Self {
            daemon,
            cri,
            registry,
            failed: AtomicBool::new(false),
            external_containerd: upstream,
            root,
        };
        node.cri
            .pull(&node.image(), None)
            .expect("busybox can be pulled from the registry");
        node
    }

    /// The node that is shared by tests which do not disturb each other: started by the first of them,
    /// dropped with the last one that runs.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<TestNode>> = Mutex::new(Weak::new());
        // A start that panicked has stored nothing.
        let mut shared = SHARED.lock();
        shared.upgrade().unwrap_or_else(|| {
            let node = Arc::new(Self::start());
            *shared = Arc::downgrade(&node);
            node
        })
    }

    /// Skips the leak check when the node is dropped: the leak has been reported already.
    pub fn skip_leak_check(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    /// The daemon.
    pub fn daemon(&self) -> MutexGuard<'_, Daemon> {
        self.daemon.lock()
    }

    /// A client of its socket.
    #[must_use]
    pub const fn cri(&self) -> &Cri {
        &self.cri
    }

    /// The registry, behind a proxy that asks for no credentials.
    #[must_use]
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The root.
    #[must_use]
    pub const fn root(&self) -> &PrivateRoot {
        &self.root
    }

    /// The reference of busybox, which has been pulled.
    #[must_use]
    pub fn image(&self) -> String {
        self.registry.reference(IMAGE)
    }

    /// The configuration of a pod with this name and a unique uid: with a network and a log directory of its
    /// own, and a process namespace for each container.
    #[must_use]
    pub fn pod_config(&self, name: &str) -> cri::PodSandboxConfig {
        let uid = random_name();
        let log_directory = self.root.log_dir().join(format!("{name}_{uid}"));
        let mut config = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: name.to_owned(),
                uid,
                namespace: "tests".to_owned(),
                attempt: 0,
            }),
            log_directory: log_directory
                .to_str()
                .expect("the path is ASCII")
                .to_owned(),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: self.root.cgroup_parent(),
                ..Default::default()
            }),
            ..Default::default()
        };
        namespaces(&mut config).set_pid(cri::NamespaceMode::Container);
        config
    }

    /// Runs [`TestNode::pod_config`].
    ///
    /// # Panics
    /// When it does not run.
    #[track_caller]
    #[must_use]
    pub fn pod(&self, name: &str) -> TestPod<'_> {
        self.run(self.pod_config(name))
    }

    /// Runs [`TestNode::pod_config`], changed by `change`.
    ///
    /// # Panics
    /// When it does not run.
    #[track_caller]
    #[must_use]
    pub fn pod_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut cri::PodSandboxConfig),
    ) -> TestPod<'_> {
        let mut config = self.pod_config(name);
        change(&mut config);
        self.run(config)
    }

    /// Runs a pod.
    ///
    /// # Panics
    /// When it does not run.
    #[track_caller]
    #[must_use]
    pub fn run(&self, config: cri::PodSandboxConfig) -> TestPod<'_> {
        let id = self
            .cri
            .run_pod(&config)
            .unwrap_or_else(|status| panic!("RunPodSandbox: {status}\n{}", self.daemon().tail()));
        TestPod::adopt(self, id, config)
    }

    /// A container that runs `words` from busybox and logs to `<name>.log`.
    #[must_use]
    pub fn container(&self, name: &str, words: &[&str]) -> cri::ContainerConfig {
        cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            image: Some(image_spec(&self.image())),
            command: words.iter().map(|word| (*word).to_owned()).collect(),
            log_path: format!("{name}.log"),
            ..Default::default()
        }
    }

    /// The containerd, if it is external.
    pub fn external_containerd(&self) -> Option<MutexGuard<'_, ExternalContainerd>> {
        Some(self.external_containerd.as_ref()?.lock())
    }

    /// The containerd process, whether it is managed or external.
    ///
    /// # Panics
    /// When no containerd runs.
    #[track_caller]
    #[must_use]
    pub fn containerd_pid(&self) -> Pid {
        self.external_containerd().map_or_else(
            || {
                self.root
                    .managed("containerd")
                    .expect("the daemon writes down whom it started")
            },
            |upstream| upstream.pid(),
        )
    }

    /// Waits until nothing of a container whose shim was killed is left: containerd cleans up in its own time.
    ///
    /// # Panics
    /// When something stays.
    #[track_caller]
    pub fn wait_gone(&self, container: &str) {
        let mut findings = Vec::new();
        let gone = eventually(CLEAR_LIMIT * 2, || {
            findings = self.leak_scan().findings;
            findings.retain(|finding| finding.contains(container));
            findings.is_empty()
        });
        assert!(gone, "{findings:#?}");
    }

    /// Scans the node for leaks.
    #[must_use]
    pub fn leak_scan(&self) -> LeakScan {
        LeakScan::of(&self.root)
    }

    /// Fails when something is left and does not disappear: a daemon cleans up after a killed predecessor
    /// while it serves.
    ///
    /// # Panics
    /// When something is left.
    #[track_caller]
    pub fn assert_clean(&self) {
        let mut sweep = self.leak_scan();
        eventually(CLEAR_LIMIT, || {
            sweep = self.leak_scan();
            sweep.is_clean()
        });
        sweep.assert_clean();
    }

    /// Removes all images, and fails when content or a snapshot is still stored.
    #[track_caller]
    fn assert_no_orphaned_content(&self) {
        let Some(socket) = self.root.containerd_socket() else {
            return;
        };
        let mut left = Vec::new();
        eventually(CLEAR_LIMIT, || {
            left = orphaned_content(&socket, NAMESPACE);
            left.is_empty()
        });
        assert!(
            left.is_empty(),
            "stored for no image:\n  {}",
            left.join("\n  ")
        );
    }

    /// Fails when something is left that carries one of these ids.
    ///
    /// # Panics
    /// When something is left.
    #[track_caller]
    pub fn assert_gone(&self, ids: &[&str]) {
        let mut sweep = self.leak_scan();
        sweep
            .findings
            .retain(|finding| ids.iter().any(|id| finding.contains(id)));
        sweep.assert_clean();
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if !std::thread::panicking() && !self.failed.load(Ordering::SeqCst) {
            self.leak_scan().assert_clean();
            self.assert_no_orphaned_content();
        }
    }
}
