//! containerd's database cannot be written: its disk is full, its file system has become read-only, or the
//! device fails. Running containers continue and are listed, pods can be stopped, and a daemon that starts
//! then serves.

use std::cell::RefCell;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_crash_points::CrashPoint;
use switchyard_proto::cri::v1::{ContainerState, PodSandboxState};
use switchyard_tests::containerd_proxy::ContainerdProxy;
use switchyard_tests::external_containerd::ExternalContainerd;
use switchyard_tests::host::{cgroups, eventually, processes};
use switchyard_tests::image::{busybox, random_layer};
use switchyard_tests::leak_scan::{NAMESPACE, ctr};
use switchyard_tests::node::TestNode;
use tonic::Code;

use super::disks::{exit_info, is_exit_unrecorded};
use super::versions::node_behind_proxy;
use super::{LIMIT, assert_no_leaks_since, assert_recovers, refused, retry};

/// Time for a call that the database refuses, including the rollback of its steps.
const SOON: Duration = Duration::from_secs(40);

/// Errors of containerd then.
const ERRORS: [&str; 4] = [
    "no space left on device",
    "disk quota exceeded",
    "read-only file system",
    "input/output error",
];

/// The codes of the answer to a client: an exhausted quota is a full disk.
fn codes(error: &str) -> &'static [Code] {
    if ERRORS[..2].contains(&error) {
        &[Code::ResourceExhausted]
    } else {
        &[Code::Unknown, Code::Internal]
    }
}

/// The containerd of a node, and the proxy in front of it.
type Behind = RefCell<Option<(ExternalContainerd, ContainerdProxy)>>;

/// Makes calls fail with this error from now on; none without parts of their paths.
fn fail(behind: &Behind, parts: &[&str], error: &'static str) {
    behind
        .borrow()
        .as_ref()
        .expect("it was started with the node")
        .1
        .set_failing(parts, error);
}

/// Ends the process of a container with SIGKILL, from outside, and waits until it is gone or a zombie.
fn kill_process(node: &TestNode, command: &str) {
    let process = processes::running(node.root().path(), command).expect("it runs");
    kill(Pid::from_raw(process.pid), Signal::SIGKILL).expect("it runs");
    let ended = || processes::find(process.pid).is_none_or(|process| process.zombie);
    assert!(eventually(LIMIT, ended), "{command} does not end");
}

/// Containers end while the daemon runs and while it does not, and neither end can be recorded.
#[test]
fn ends_are_listed_and_pods_stop_although_nothing_can_be_recorded() {
    let behind = Behind::default();
    let node = node_behind_proxy(&behind);
    let cri = node.cri().with_timeout(SOON);
    for (number, error) in ERRORS.into_iter().enumerate() {
        let pod = node.pod(&format!("stopped-{number}"));
        let other = node.pod(&format!("other-{number}"));
        let command = format!("sleep 3150{number}");
        let stopped = pod.start_shell("main", "exec sleep 1000");
        let ended = other.start_shell("ended", &format!("exec {command}"));
        let runs = other.start_shell("runs", "exec sleep 1000");
        // The shell executes the command a moment after its start.
        let begun = || processes::running(node.root().path(), &command).is_some();
        assert!(eventually(LIMIT, begun), "{command} does not run");
        fail(&behind, &["Containers/Create", "Containers/Update"], error);

        cri.stop(&stopped, 0).expect("it can be stopped");
        cri.stop_pod(pod.id())
            .expect("what is left of it shows that it was");
        assert_eq!(
            pod.status().state(),
            PodSandboxState::SandboxNotready,
            "{error}"
        );
        let told = exit_info(&node, &stopped);
        assert!(
            told.0 == 137 && is_exit_unrecorded(&node, &stopped),
            "{error}: {told:?}"
        );

        node.daemon().kill9();
        kill_process(&node, &command);
        node.daemon().restart();
        assert_eq!(
            exit_info(&node, &stopped),
            told,
            "{error}: the next daemon reports another end"
        );
        assert_eq!(
            pod.status().state(),
            PodSandboxState::SandboxNotready,
            "{error}"
        );
        assert_eq!(exit_info(&node, &ended).0, 137, "{error}");
        assert!(is_exit_unrecorded(&node, &ended), "{error}");
        let listed = cri.containers().expect("they are listed");
        assert_eq!(listed.len(), 3, "{error}: {listed:#?}");
        assert_eq!(
            cri.status(&runs).expect("it has a status").state(),
            ContainerState::ContainerRunning
        );
        assert_eq!(node.cri().sh(&runs, "echo reached"), "reached");
        // What is new cannot be recorded, and so is not made.
        let status = refused(
            "RunPodSandbox",
            cri.run_pod(&node.pod_config("new")),
            codes(error),
        );
        assert!(status.message().contains(error), "{status}");

        fail(&behind, &[], error);
        let recorded = || {
            [&stopped, &ended]
                .iter()
                .all(|id| !is_exit_unrecorded(&node, id))
        };
        assert!(
            eventually(LIMIT, recorded),
            "{error}: an end is not put on record: {}",
            node.daemon().tail()
        );
        node.daemon().kill9();
        node.daemon().restart();
        assert_eq!(exit_info(&node, &stopped), told, "{error}");
        for pod in [&pod, &other] {
            cri.stop_pod(pod.id()).expect("it can be stopped");
            cri.remove_pod(pod.id()).expect("it can be removed");
        }
    }
}

/// A program may run although its start was answered with an error. Its client takes it for ended, and starts the next
/// instance: it is ended whether that can be recorded or not, also by the next daemon.
#[test]
fn process_of_a_failed_start_is_ended_although_the_failure_cannot_be_recorded() {
    let behind = Behind::default();
    let node = node_behind_proxy(&behind);
    let cri = node.cri().with_timeout(SOON);
    let delay = |parts: &[&str]| {
        behind
            .borrow()
            .as_ref()
            .expect("it was started with the node")
            .1
            .set_delayed(parts)
    };
    let pod = node.pod("vain");
    let runs = |command: &str| processes::running(node.root().path(), command).is_some();
    let assert_failed = |id: &str| {
        let status = cri.status(id).expect("it has a status");
        let told = (status.state(), status.reason.as_str());
        assert_eq!(
            told,
            (ContainerState::ContainerExited, "StartError"),
            "{status:?}"
        );
    };
    for (killed, time) in [(false, "31521"), (true, "31522")] {
        let command = format!("sleep {time}");
        let id = pod.create(&node.container(&format!("main-{time}"), &["sleep", time]));
        fail(&behind, &["Containers/Update"], ERRORS[0]);
        delay(&["Tasks/Start"]);
        if killed {
            node.daemon().kill_at(&[(CrashPoint::ExitNoted, 1)]);
        }
        cri.start(&id)
            .expect_err("containerd says that it has failed");
        if killed {
            node.daemon().wait_killed();
            assert!(
                eventually(LIMIT, || runs(&command)),
                "{command} was ended before that was noted"
            );
            delay(&[]);
            node.daemon().restart();
        }
        assert_failed(&id);
        // Before the runtime's process has executed the command, only the cgroup shows it.
        let ended = || !runs(&command) && cgroups::members(&id).is_empty();
        assert!(
            eventually(LIMIT, ended),
            "{command} runs on: {}",
            node.daemon().tail()
        );
        assert!(is_exit_unrecorded(&node, &id), "{}", node.daemon().tail());
        delay(&[]);
        fail(&behind, &[], ERRORS[0]);
        let recorded = || !is_exit_unrecorded(&node, &id);
        assert!(
            eventually(LIMIT, recorded),
            "it is not put on record: {}",
            node.daemon().tail()
        );
        node.daemon().kill9();
        node.daemon().restart();
        assert_failed(&id);
        cri.remove(&id).expect("it can be removed");
    }
    drop(pod);
    node.assert_clean();
}

/// Remains of a predecessor cannot be removed: the daemon serves all the same, since only requests free
/// space. They are removed as soon as that is possible.
#[test]
fn daemon_serves_although_it_can_remove_nothing_that_its_predecessor_left() {
    let behind = Behind::default();
    let node = TestNode::start_configured(|root| {
        let socket = root.run().join("containerd/containerd.sock");
        let front = root.run().join("front.sock");
        let upstream = ExternalContainerd::start(root, &socket);
        let proxy = ContainerdProxy::start(&front, &socket);
        proxy.enable_sandbox_store();
        *behind.borrow_mut() = Some((upstream, proxy));
        format!("[containerd]\nmode = \"external\"\naddress = {front:?}\n")
    });
    let stored = || {
        behind
            .borrow()
            .as_ref()
            .expect("it was started with the node")
            .1
            .stored_sandboxes()
    };
    let cri = node.cri().with_timeout(SOON);
    let reference = node.registry().reference("databases/image:1");
    node.registry().push(
        "databases/image:1",
        &busybox().layer(random_layer(100_000, 4244)).build(),
    );
    let pod = node.pod("runs");
    let id = pod.start_shell("main", "exec sleep 1000");
    let ended = pod.start_shell("ended", "exec sleep 31510");
    let begun = || processes::running(node.root().path(), "sleep 31510").is_some();
    assert!(eventually(LIMIT, begun), "it does not run");
    let before = node.leak_scan();
    for error in ERRORS {
        // A pull that is cut off leaves its lease, which is kept for the next one.
        node.daemon().kill_at(&[(CrashPoint::PullLeased, 1)]);
        cri.pull(&reference, None)
            .expect_err("the daemon is killed during it");
        node.daemon().wait_killed();
        leave_lease(&node);
        // The exit of a task that ends meanwhile need not be protected any more.
        if processes::running(node.root().path(), "sleep 31510").is_some() {
            kill_process(&node, "sleep 31510");
        }
        fail(
            &behind,
            &[
                "Leases/Delete",
                "Content/Abort",
                "Snapshots/Remove",
                "Store/Delete",
            ],
            error,
        );
        node.daemon().spawn();
        assert_serves_and_reports(&node, &id, &ended, error);
        fail(&behind, &[], error);
        assert!(
            eventually(LIMIT, || stored().iter().all(|id| *id != ended)),
            "{error}: an exit stays protected: {}",
            node.daemon().tail()
        );
        let leases = || {
            let new = node.leak_scan().new_since(&before);
            new.into_iter()
                .filter(|found| found.contains("lease") && !found.contains("-pull-"))
                .collect::<Vec<_>>()
        };
        assert!(
            eventually(LIMIT, || leases().is_empty()),
            "{error}: {:?}\n{}",
            leases(),
            node.daemon().tail()
        );
    }
    cri.pull(&reference, None).expect("it can be pulled");
    cri.remove_image(&reference).expect("it can be removed");
    cri.remove(&ended).expect("it can be removed");
    cri.stop(&id, 0).expect("it can be stopped");
    cri.remove(&id).expect("it can be removed");
    assert_no_leaks_since(&node, &before);
}

/// Leaves a lease like one under which the predecessor has loaded an image.
fn leave_lease(node: &TestNode) {
    let instance = std::fs::read_to_string(node.root().state().join("instance"))
        .expect("the gateway has a name");
    let id = format!("switchyard-{}-load-left", instance.trim());
    let socket = node.root().run().join("containerd/containerd.sock");
    let answer = ctr(&socket, NAMESPACE, &["leases", "create", "--id", &id]);
    assert!(answer.iter().any(|line| line.contains(&id)), "{answer:?}");
}

/// The daemon that found what it cannot remove serves the container that runs, and reports the exit of the other.
fn assert_serves_and_reports(node: &TestNode, running: &str, ended: &str, error: &str) {
    let listed = retry("ListContainers", || {
        node.cri().with_timeout(SOON).containers()
    });
    assert_eq!(listed.len(), 2, "{error}: {listed:#?}");
    assert_recovers(node);
    assert_eq!(node.cri().sh(running, "echo reached"), "reached");
    assert_eq!(exit_info(node, ended).0, 137, "{error}");
    assert!(
        node.has_logged("cannot delete a lease that a predecessor left"),
        "{}",
        node.daemon().tail()
    );
    let log = std::fs::read_to_string(node.root().daemon_log()).expect("the daemon writes a log");
    assert!(!log.contains("recovery failed"), "{}", node.daemon().tail());
}
