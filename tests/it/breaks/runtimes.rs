//! A slow OCI runtime, and a daemon that is killed meanwhile: the next daemon waits for the predecessor call
//! in containerd, whether it can observe the call or not. Also a runtime that is no longer configured.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use switchyard_crash_points::CrashPoint;
use switchyard_proto::cri::v1::ContainerState;
use switchyard_tests::containerd_proxy::ContainerdProxy;
use switchyard_tests::external_containerd::ExternalContainerd;
use switchyard_tests::host::eventually;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;

use super::LIMIT;

/// Time for which an observation must be unchanged until the daemon relies on it.
const GRACE: Duration = Duration::from_millis(300);

/// A runtime that blocks where a test says, and is runc otherwise.
struct PausableRuntime {
    /// The directory of the marker files that make it block, and where it records its calls.
    dir: PathBuf,
}

impl PausableRuntime {
    /// Installs it below a root.
    fn install(root: &PrivateRoot) -> Self {
        let dir = root.path().join("runtime");
        fs::create_dir(&dir).expect("the root can be written");
        let at = dir.display();
        let runc = prereq::require("runc", "runc");
        let script = format!(
            "#!/bin/sh\ncase \" $* \" in\n\
             *' create '*) echo >> {at}/creating; while [ -e {at}/hold ]; do sleep 0.02; done ;;\n\
             *' delete '*) echo >> {at}/deleting; if [ -e {at}/slow ]; then sleep 1; fi\n\
             while [ -e {at}/keep ]; do sleep 0.02; done ;;\nesac\nexec {} \"$@\"\n",
            runc.display(),
        );
        let program = dir.join("slow-runc");
        fs::write(&program, script).expect("the root can be written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
        Self { dir }
    }

    /// The configuration that uses it.
    fn config(&self) -> String {
        format!(
            "[recovery]\ngrace_milliseconds = {}\n[containerd.runtimes.runc]\nbinary = {:?}\n",
            GRACE.as_millis(),
            self.dir.join("slow-runc")
        )
    }

    /// The number of `create` calls.
    fn create_count(&self) -> usize {
        fs::read_to_string(self.dir.join("creating"))
            .unwrap_or_default()
            .lines()
            .count()
    }

    /// Returns whether it got a `delete` call.
    fn has_deleted(&self) -> bool {
        self.dir.join("deleting").exists()
    }

    fn add_marker(&self, what: &str) {
        fs::write(self.dir.join(what), "").expect("the root can be written");
    }

    fn remove_marker(&self, what: &str) {
        fs::remove_file(self.dir.join(what)).expect("it was set");
    }
}

/// Several daemons have asked containerd to delete what the first had begun to create; the deletion that is
/// still running has the name of the task that the last daemon creates.
#[test]
fn start_waits_for_containerd_to_clean_up_predecessor_attempts() {
    let runtime = RefCell::new(None);
    let node = TestNode::start_configured(|root| {
        runtime
            .borrow_mut()
            .insert(PausableRuntime::install(root))
            .config()
    });
    let runtime = runtime.take().expect("it was installed with the node");
    let pod = node.pod("again");
    let id = pod.create(&node.container("main", &["sleep", "1000"]));
    node.daemon().kill_at(&[(CrashPoint::TaskCreated, 1)]);
    node.cri().start(&id).expect_err("nobody answers");
    node.daemon().wait_killed();
    runtime.add_marker("slow");
    node.daemon().restart();
    assert!(
        eventually(LIMIT, || runtime.has_deleted()),
        "nobody ends what was begun"
    );
    for _ in 0..3 {
        node.daemon().kill9();
        node.daemon().restart();
    }
    node.cri().start(&id).expect("it can be sent again");
    assert_eq!(runtime.create_count(), 2);
    let bundle = node
        .root()
        .run()
        .join("containerd/state/io.containerd.runtime.v2.task/k8s.io")
        .join(&id);
    assert!(
        bundle.join("config.json").exists(),
        "its bundle was taken away"
    );
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    runtime.remove_marker("slow");
}

/// The shim of a pod exits with its last container, so nothing may be started in it while containerd deletes
/// that container, however long it takes.
#[test]
fn start_waits_for_deletion_that_outlasts_the_exit_event() {
    let runtime = RefCell::new(None);
    let node = TestNode::start_configured(|root| {
        runtime
            .borrow_mut()
            .insert(PausableRuntime::install(root))
            .config()
    });
    let runtime = runtime.take().expect("it was installed with the node");
    let pod = node.pod("long");
    runtime.add_marker("keep");
    let first = pod.start_shell("first", "exit 3");
    assert_eq!(node.cri().wait_exit(&first).exit_code, 3);
    let second = pod.create(&node.container("second", &["sleep", "1000"]));
    thread::scope(|scope| {
        let start = scope.spawn(|| node.cri().start(&second));
        thread::sleep(GRACE * 5);
        assert_eq!(runtime.create_count(), 1, "it is made beside the deletion");
        runtime.remove_marker("keep");
        start
            .join()
            .expect("a call does not panic")
            .expect("it can be started");
    });
    assert_eq!(node.cri().sh(&second, "echo reached"), "reached");
}

/// With an external containerd the daemon does not inspect bundles: it finds the predecessor call among the
/// processes. The second container of the pod is served by the shim of the first.
#[test]
fn slow_start_is_awaited_with_external_containerd() {
    let behind = RefCell::new(None);
    let node = TestNode::start_configured(|root| {
        let socket = root.run().join("containerd/containerd.sock");
        let upstream = ExternalContainerd::start(root, &socket);
        let runtime = PausableRuntime::install(root);
        let config = runtime.config();
        *behind.borrow_mut() = Some((upstream, runtime));
        format!("[containerd]\nmode = \"external\"\naddress = {socket:?}\n{config}")
    });
    let behind = behind.borrow();
    let (_, runtime) = behind.as_ref().expect("it was started with the node");
    let pod = node.pod("patient");
    for (number, name) in ["first", "second"].into_iter().enumerate() {
        let id = pod.create(&node.container(name, &["sleep", "1000"]));
        runtime.add_marker("hold");
        thread::scope(|scope| {
            let cut = scope.spawn(|| node.cri().start(&id));
            let begun = number * 2 + 1;
            assert!(
                eventually(LIMIT, || runtime.create_count() == begun),
                "{name} is not made"
            );
            node.daemon().kill9();
            cut.join()
                .expect("a call does not panic")
                .expect_err("nobody answers");
            node.daemon().restart();
            let again = scope.spawn(|| node.cri().start(&id));
            // Longer than the time after which the daemon would rely on it, if it did not see the runtime
            // process.
            thread::sleep(GRACE * 5);
            assert!(!again.is_finished(), "{name}: {:?}", again.join());
            assert_eq!(
                runtime.create_count(),
                begun,
                "{name} is made again beside the work on it"
            );
            runtime.remove_marker("hold");
            again
                .join()
                .expect("a call does not panic")
                .expect("it can be sent again");
        });
        assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    }
}

/// With a later containerd, which gets the list of tasks whose exit it is to keep: those that may run, and no
/// other.
#[test]
fn daemon_starts_with_containers_of_a_removed_runtime() {
    let behind = RefCell::new(None);
    let config = RefCell::new(String::new());
    let node = TestNode::start_configured(|root| {
        let socket = root.run().join("containerd/containerd.sock");
        let front = root.run().join("front.sock");
        let upstream = ExternalContainerd::start(root, &socket);
        let shown = ContainerdProxy::start(&front, &socket);
        shown.enable_sandbox_store();
        *behind.borrow_mut() = Some((upstream, shown));
        *config.borrow_mut() = format!("[containerd]\nmode = \"external\"\naddress = {front:?}\n");
        format!(
            "{}[containerd.runtimes.odd]\nbinary = \"runc\"\n",
            config.borrow()
        )
    });
    let behind = behind.borrow();
    let (_, front) = behind.as_ref().expect("it was started with the node");
    let odd = node.pod_config("odd");
    let pod = node
        .cri()
        .run_pod_with(&odd, "odd")
        .expect("the handler is configured");
    let pod = TestPod::adopt(&node, pod, odd);
    let ended = pod.start_shell("ended", "exit 3");
    let running = pod.start_shell("running", "exec sleep 1000");
    assert_eq!(node.cri().wait_exit(&ended).exit_code, 3);
    assert_eq!(
        front.stored_sandboxes(),
        [running.as_str()],
        "the exits that are kept"
    );

    let status = node.daemon().terminate();
    assert!(status.success(), "{status}");
    node.root().write_config(&config.borrow());
    node.daemon().restart();
    assert_eq!(
        front.stored_sandboxes(),
        [running.as_str()],
        "the exits that are kept"
    );
    assert_eq!(
        node.cri()
            .status(&ended)
            .expect("it has a status")
            .exit_code,
        3
    );
    let status = node.cri().status(&running).expect("it has a status");
    assert_eq!(
        status.state(),
        ContainerState::ContainerRunning,
        "{status:?}"
    );
    assert_eq!(node.pod("other").run_shell("echo works", |_| {}), "works");
    for id in [&running, &ended] {
        node.cri().stop(id, 0).expect("it can be stopped");
        node.cri().remove(id).expect("it can be removed");
    }
    assert_eq!(
        front.stored_sandboxes(),
        [""; 0],
        "no exit is kept for nobody"
    );
}
