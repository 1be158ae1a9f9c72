//! The node of one kill test: the bystander that must not be disturbed, the processes that are killed, and
//! the check that nothing is left.

use std::fs;
use std::path::Path;
use std::time::Duration;

use switchyard_crash_points::CrashPoint;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::containerd_proxy::ContainerdProxy;
use switchyard_tests::external_containerd::ExternalContainerd;
use switchyard_tests::host::processes::{self, Process};
use switchyard_tests::host::{cgroups, eventually};
use switchyard_tests::image::busybox;
use switchyard_tests::leak_scan::{self, LeakScan, NAMESPACE};
use switchyard_tests::node::{TestNode, TestPod, log_content};
use switchyard_tests::root::PrivateRoot;

use super::bad_disks::BadDisks;
use crate::nomad::devices::make_device;

/// Time until everything is cleaned up, or has recovered.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// An image with a volume, so that the creation of a task takes every step.
const VOLUMES: &str = "kills/volumes:latest";
/// Prints increasing numbers.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done";

/// Point of a kill: right after this step, when it is reached for the n-th time.
#[derive(Debug, Clone, Copy)]
pub(super) struct KillPoint {
    pub(super) step: CrashPoint,
    pub(super) nth: u32,
}

pub(super) struct KillFixture {
    pub(super) node: TestNode,
    bystander: Bystander,
    /// The leak scan with nothing but the bystander.
    baseline: LeakScan,
    stored_before: Vec<String>,
    /// The proxy that simulates a later containerd, and the containerd behind it, if the test uses one. They
    /// outlive the node, whose last leak scan queries them.
    proxied_containerd: Option<(ExternalContainerd, ContainerdProxy)>,
    /// True if a daemon starts on a full and on a read-only state disk after each kill, before the next one.
    has_bad_disks: bool,
}

/// A pod that no request touches.
struct Bystander {
    pod: String,
    config: cri::PodSandboxConfig,
    status: cri::ContainerStatus,
    process: Process,
}

impl KillFixture {
    pub(super) fn new() -> Self {
        Self::with_node(TestNode::start(), None)
    }

    /// With an external containerd, whose bundles and downloads the daemon leaves alone, and with more
    /// configuration.
    pub(super) fn external(config: &str) -> Self {
        Self::with_node(TestNode::start_external(config), None)
    }

    /// On a node with a shim timeout of two seconds.
    pub(super) fn with_short_shim_timeout() -> Self {
        Self::with_node(
            TestNode::start_with("[containerd]\nshim_timeout_seconds = 2\n", |_| {}),
            None,
        )
    }

    /// On a node with a device.
    pub(super) fn with_devices() -> Self {
        Self::with_node(TestNode::start_configured(with_device), None)
    }

    /// On a node with a device, whose state disk is full when the daemon starts again after a kill, then read-only, and then
    /// as before.
    pub(super) fn with_bad_disks() -> Self {
        let node = TestNode::start_configured(|root| {
            root.small_disk(&root.state(), "size=100m");
            with_device(root)
        });
        Self {
            has_bad_disks: true,
            ..Self::with_node(node, None)
        }
    }

    /// On a containerd with a sandbox store, as later versions have: there the daemon records for which tasks
    /// containerd is to keep the exit.
    pub(super) fn with_sandbox_store() -> Self {
        let mut behind = None;
        let node = TestNode::start_configured(|root| {
            let socket = root.run().join("containerd/containerd.sock");
            let front = root.run().join("front.sock");
            let upstream = ExternalContainerd::start(root, &socket);
            let shown = ContainerdProxy::start(&front, &socket);
            shown.enable_sandbox_store();
            behind = Some((upstream, shown));
            format!("[containerd]\nmode = \"external\"\naddress = {front:?}\n")
        });
        Self::with_node(node, behind)
    }

    fn with_node(node: TestNode, behind: Option<(ExternalContainerd, ContainerdProxy)>) -> Self {
        node.registry()
            .push(VOLUMES, &busybox().volume("/data").build());
        node.cri()
            .pull(&node.registry().reference(VOLUMES), None)
            .expect("it can be pulled");
        let bystander = Bystander::start(&node);
        let rest = stable_leak_scan(&node);
        let stored = stored(&node);
        Self {
            node,
            bystander,
            baseline: rest,
            stored_before: stored,
            proxied_containerd: behind,
            has_bad_disks: false,
        }
    }

    /// The reference of the image with a volume.
    pub(super) fn volumes(&self) -> String {
        self.node.registry().reference(VOLUMES)
    }

    /// Kills the daemon at a step during `act`, and starts the next one. `act` is a request that gets no
    /// answer.
    #[track_caller]
    pub(super) fn killed_during<T>(
        &self,
        at: KillPoint,
        act: impl FnOnce() -> Result<T, tonic::Status>,
    ) {
        let ending = self.has_bad_disks.then(|| BadDisks::new(self));
        self.node.daemon().kill_at(&[(at.step, at.nth)]);
        let answer = act();
        self.node.daemon().wait_killed();
        assert!(answer.is_err(), "{at:?}: who answered?");
        let ended = ending.map(|bad_disks| bad_disks.run(at));
        self.node.daemon().restart();
        self.assert_undisturbed(at);
        if let Some(ended) = ended {
            ended.assert_removable(at);
        }
    }

    /// Kills the daemon at `first` during `act`, and its successor while that recovers from the first kill;
    /// starts a third.
    #[track_caller]
    pub(super) fn two_daemons_killed_during<T>(
        &self,
        first: CrashPoint,
        at: KillPoint,
        act: impl FnOnce() -> Result<T, tonic::Status>,
    ) {
        self.node.daemon().kill_at(&[(first, 1), (at.step, at.nth)]);
        let answer = act();
        self.node.daemon().wait_killed();
        assert!(answer.is_err(), "{at:?}: who answered?");
        self.node.daemon().spawn();
        self.node.daemon().wait_killed();
        self.node.daemon().restart();
        self.assert_undisturbed(at);
    }

    /// Makes containerd, behind its proxy, fail these calls from now on as if its disk were full; none without parts of their
    /// paths.
    pub(super) fn set_full(&self, parts: &[&str]) {
        self.proxied_containerd
            .as_ref()
            .expect("the fixture has a proxy")
            .1
            .set_full(parts);
    }

    /// Kills another process of the node during `act`, which must succeed all the same.
    #[track_caller]
    pub(super) fn child_killed_during<T>(
        &self,
        at: &[(CrashPoint, u32)],
        act: impl FnOnce() -> T,
    ) -> T {
        let daemon = self.node.daemon().pid();
        self.node.daemon().kill_at(at);
        let outcome = act();
        let killed = eventually(LIMIT, || self.node.daemon().pending_kills().is_empty());
        let node = self.node.daemon();
        assert!(
            killed,
            "{:?} was not reached\n{}",
            node.pending_kills(),
            node.tail()
        );
        drop(node);
        self.node.daemon().wait_ready();
        assert_eq!(
            self.node.daemon().pid(),
            daemon,
            "the daemon has died as well"
        );
        outcome
    }

    /// Fails if the bystander was disturbed.
    #[track_caller]
    pub(super) fn assert_undisturbed(&self, at: KillPoint) {
        let Bystander {
            pod,
            status,
            process,
            ..
        } = &self.bystander;
        let now = processes::find(process.pid);
        assert_eq!(
            now.map(|now| now.started),
            Some(process.started),
            "{at:?}: another process"
        );
        assert_eq!(
            &self.node.cri().status(&status.id).expect("it has a status"),
            status,
            "{at:?}"
        );
        let pod = self.node.cri().pod_status(pod).expect("it has a status");
        assert_eq!(pod.state(), cri::PodSandboxState::SandboxReady, "{at:?}");
        assert_counts_on(&self.bystander.log(), &format!("{at:?}"));
    }

    /// Waits until only the bystander and previously stored objects remain.
    #[track_caller]
    pub(super) fn assert_nothing_left(&self, at: KillPoint) {
        self.assert_nothing_left_but(at, |_| false);
    }

    /// The same, apart from findings that are to stay.
    #[track_caller]
    pub(super) fn assert_nothing_left_but(&self, at: KillPoint, stays: impl Fn(&str) -> bool) {
        let mut left = Vec::new();
        let gone = eventually(LIMIT, || {
            left = beside_bystander(&self.node, &self.baseline);
            left.retain(|finding| !stays(finding));
            left.is_empty()
        });
        assert!(
            gone,
            "{at:?} left behind: {left:#?}\n{}",
            self.node.daemon().tail()
        );
        assert_eq!(
            self.node.cri().pods().expect("they can be listed").len(),
            1,
            "{at:?}"
        );
        assert_eq!(
            self.node
                .cri()
                .containers()
                .expect("they can be listed")
                .len(),
            1,
            "{at:?}"
        );
        if let Some((_, front)) = &self.proxied_containerd {
            assert_eq!(
                front.stored_sandboxes(),
                [self.bystander()],
                "{at:?}: the exits that are kept"
            );
        }
    }

    /// Waits until a scan finds no more than an earlier one, except for findings with the id of a listed
    /// object.
    #[track_caller]
    pub(super) fn assert_only_listed_since(
        &self,
        at: KillPoint,
        before: &LeakScan,
        listed: &[String],
    ) {
        let mut left = Vec::new();
        let accounted = eventually(LIMIT, || {
            left = beside_bystander(&self.node, before);
            left.retain(|finding| !listed.iter().any(|id| finding.contains(id)));
            left.is_empty()
        });
        assert!(
            accounted,
            "{at:?} left objects that no list shows: {left:#?}\n{}",
            self.node.daemon().tail()
        );
    }

    /// Waits until no image, blob or snapshot is stored that was not stored before.
    #[track_caller]
    pub(super) fn assert_stored_as_before(&self, at: KillPoint) {
        let mut now = Vec::new();
        let gone = eventually(LIMIT, || {
            now = stored(&self.node);
            now == self.stored_before
        });
        now.retain(|item| !self.stored_before.contains(item));
        assert!(gone, "{at:?} left in containerd's store: {now:#?}");
    }

    /// Creates and starts another container in the bystander's pod.
    pub(super) fn start_beside_bystander(&self, name: &str) -> String {
        let Bystander { pod, config, .. } = &self.bystander;
        let container = self.node.container(name, &["sleep", "1000"]);
        let id = self
            .node
            .cri()
            .create(pod, &container, config)
            .expect("it can be made");
        self.node.cri().start(&id).expect("it can be started");
        id
    }

    /// The bystander's container.
    pub(super) fn bystander(&self) -> &str {
        &self.bystander.status.id
    }

    /// The directory of the bystander's logs.
    pub(super) fn bystander_logs(&self) -> &str {
        &self.bystander.config.log_directory
    }

    /// The processes of the bystander's container.
    pub(super) fn bystander_processes(&self) -> Vec<String> {
        let pids = cgroups::members(self.bystander());
        pids.into_iter()
            .filter_map(processes::find)
            .map(|process| process.command)
            .collect()
    }

    /// Runs, stops and removes a pod, and panics if anything of it remains.
    pub(super) fn with_pod(&self, name: &str, work: impl FnOnce(&TestPod<'_>)) {
        let pod = self.node.pod(name);
        work(&pod);
    }

    /// Removes the bystander; then nothing at all may be left.
    pub(super) fn finish(self) {
        let Self {
            node,
            bystander,
            proxied_containerd: behind,
            ..
        } = self;
        node.cri()
            .stop(&bystander.status.id, 0)
            .expect("it can be stopped");
        assert_counted(&[&bystander.log()], "the bystander");
        drop(TestPod::adopt(&node, bystander.pod, bystander.config));
        if let Some((_, front)) = &behind {
            assert_eq!(
                front.stored_sandboxes(),
                [""; 0],
                "no exit is kept for nobody"
            );
        }
        drop(node);
    }
}

impl Bystander {
    fn start(node: &TestNode) -> Self {
        let config = node.pod_config("bystander");
        let pod = node.cri().run_pod(&config).expect("it can be run");
        let container = node.container("counting", &["sh", "-c", COUNT]);
        let id = node
            .cri()
            .create(&pod, &container, &config)
            .expect("it can be made");
        node.cri().start(&id).expect("it can be started");
        let mut process = None;
        // For a moment after the start the process is still the runtime's.
        eventually(LIMIT, || {
            let mut members = cgroups::members(&id)
                .into_iter()
                .filter_map(processes::find);
            process = members.find(|process| process.command.contains(COUNT));
            process.is_some()
        });
        let process = process.expect("it runs");
        let status = node.cri().status(&id).expect("it has a status");
        Self {
            pod,
            config,
            status,
            process,
        }
    }

    fn log(&self) -> String {
        format!("{}/counting.log", self.config.log_directory)
    }
}

fn stored(node: &TestNode) -> Vec<String> {
    let socket = node
        .root()
        .containerd_socket()
        .expect("containerd has been started");
    leak_scan::stored(&socket, NAMESPACE)
}

/// The result of a scan once two scans agree: containerd collects garbage asynchronously.
fn stable_leak_scan(node: &TestNode) -> LeakScan {
    let mut last = scan_without_processes(node);
    let stable = eventually(LIMIT, || {
        let now = scan_without_processes(node);
        let same = now == last;
        last = now;
        same
    });
    assert!(
        stable,
        "what is there of the bystander keeps changing: {last:#?}"
    );
    last
}

/// A scan without the processes: those of the bystander change all the time.
fn scan_without_processes(node: &TestNode) -> LeakScan {
    let mut scan = node.leak_scan();
    scan.findings
        .retain(|finding| !finding.starts_with("process "));
    scan
}

/// All findings except those of the bystander.
fn beside_bystander(node: &TestNode, rest: &LeakScan) -> Vec<String> {
    scan_without_processes(node).new_since(rest)
}

/// The first words of a log's complete lines.
fn numbers(path: impl AsRef<Path>) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The text after the last newline is still being written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| {
            log_content(line)
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned()
        })
        .collect()
}

/// Fails unless logs, in this order, count from 1 without a gap, a repetition or a torn line.
#[track_caller]
pub(super) fn assert_counted(paths: &[&str], what: &str) {
    let numbers: Vec<_> = paths.iter().flat_map(numbers).collect();
    let wrong = numbers
        .iter()
        .enumerate()
        .find(|(index, number)| **number != (index + 1).to_string());
    assert!(
        wrong.is_none(),
        "{what}: line {wrong:?} of {}, counted from 0",
        numbers.len()
    );
    assert!(!numbers.is_empty(), "{what}: no line");
}

/// Fails unless a log grows, and counts.
#[track_caller]
pub(super) fn assert_counts_on(path: &str, what: &str) {
    let before = numbers(path).len();
    assert!(
        eventually(LIMIT, || numbers(path).len() > before + 2),
        "{what}: the log does not continue"
    );
    assert_counted(&[path], what);
}

/// The configuration of a node with one device.
fn with_device(root: &PrivateRoot) -> String {
    let dir = root.path().join("dev");
    fs::create_dir(&dir).expect("the root can be written");
    make_device(&dir.join("acme0"));
    format!(
        "[[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\nname = \"v2\"\npaths = [\"{}/acme[0-9]\"]\n",
        dir.display()
    )
}
