//! A shim that hangs wakes while the daemon is about to kill it.

use std::cell::RefCell;
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_tests::containerd_proxy::ContainerdProxy;
use switchyard_tests::external_containerd::ExternalContainerd;
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::node::TestNode;

use super::shims::script_exiting_with;
use super::{LIMIT, SuspendedProcess, shim};

/// It serves a new container while the exits are put on record after which it would be killed.
#[test]
fn hung_shim_that_wakes_and_serves_a_new_container_is_not_killed() {
    let behind: RefCell<Option<(ExternalContainerd, ContainerdProxy)>> = RefCell::default();
    let node = TestNode::start_configured(|root| {
        let socket = root.run().join("containerd/containerd.sock");
        let upstream = ExternalContainerd::start(root, &socket);
        // A shim is found by the socket that containerd was started with.
        let moved = root.run().join("containerd/moved.sock");
        fs::rename(&socket, &moved).expect("containerd listens");
        *behind.borrow_mut() = Some((upstream, ContainerdProxy::start(&socket, &moved)));
        format!(
            "[containerd]\nmode = \"external\"\naddress = {socket:?}\nshim_timeout_seconds = 2\n"
        )
    });
    let pod = node.pod("wakes");
    let first = pod.start_shell("first", &script_exiting_with("first", 5));
    pod.wait_log("first", |lines| !lines.is_empty());
    let shared = shim(&node, &first);
    let all = processes::belonging_to(node.root().path());
    let main = all
        .iter()
        .find(|process| process.command.contains(&script_exiting_with("first", 5)));
    let main = main.expect("it runs").pid;
    let frozen = SuspendedProcess::new(shared);
    let held = behind
        .borrow()
        .as_ref()
        .expect("it was started with the node")
        .1
        .hold("Containers/Update");
    kill(Pid::from_raw(main), Signal::SIGTERM).expect("it runs");
    assert!(
        eventually(LIMIT, || held.has_call()),
        "no exit is put on record: {}",
        node.daemon().tail()
    );
    drop(frozen);
    let second = pod.start_shell("second", "exec sleep 31461");
    let before = node.cri().status(&second).expect("it has a status");
    drop(held);
    assert_eq!(node.cri().wait_exit(&first).exit_code, 5);
    assert_eq!(node.cri().sh(&second, "echo reached"), "reached");
    assert_eq!(node.cri().status(&second).expect("it has a status"), before);
    // All containers of a pod have one shim.
    assert!(
        processes::find(shared).is_some_and(|process| !process.zombie),
        "{}",
        node.daemon().tail()
    );
}
