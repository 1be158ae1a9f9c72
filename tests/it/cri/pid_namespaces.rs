//! Process namespaces of pods and containers.

use std::process::{Child, Command};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_proto::cri::v1::{ContainerConfig, NamespaceMode, PodSandboxState};
use switchyard_tests::cri::{context, namespaces};
use switchyard_tests::host::{cgroups, eventually, processes};
use switchyard_tests::node::TestNode;
use tonic::Code;

#[test]
fn containers_with_a_shared_pid_namespace_see_each_other() {
    let node = TestNode::shared();
    let pod = node.pod_with("shared", |config| {
        namespaces(config).set_pid(NamespaceMode::Pod)
    });
    let _first = pod.start_shell("first", "exec sleep 31415");
    // An orphan: its parent goes first, and the process of the sandbox inherits it.
    let second = pod.start_shell("second", "(sleep 0.2 &) ; exec sleep 27182");
    let seen = node.cri().sh(&second, "ps -o pid,args");
    assert!(
        seen.contains("sleep 31415") && seen.contains("sleep 27182"),
        "{seen}"
    );
    let first_process = node.cri().sh(&second, "tr '\\0' ' ' < /proc/1/cmdline");
    assert!(
        !first_process.contains("sleep"),
        "the first process is a container's: {first_process}"
    );
    let mut states = String::new();
    let reaped = eventually(Duration::from_secs(10), || {
        states = node.cri().sh(
            &second,
            "cat /proc/[0-9]*/stat | grep -E '\\((sleep|sh)\\)'",
        );
        !states.contains("(sleep) Z") && states.matches("(sleep) S").count() == 2
    });
    assert!(reaped, "{states}");
}

#[test]
fn pod_pid_namespace_is_private_with_other_namespaces_of_the_host() {
    let node = TestNode::shared();
    let pod = node.pod_with("host", |config| {
        let options = namespaces(config);
        options.set_network(NamespaceMode::Node);
        options.set_ipc(NamespaceMode::Node);
        options.set_pid(NamespaceMode::Pod);
    });
    let _first = pod.start_shell("first", "exec sleep 31415");
    let second = pod.start_shell("second", "exec sleep 27182");
    let seen = node.cri().sh(
        &second,
        "ps -o args; readlink /proc/self/ns/net; readlink /proc/self/ns/ipc",
    );
    assert!(
        seen.contains("sleep 31415") && seen.contains("sleep 27182"),
        "{seen}"
    );
    for namespace in ["net", "ipc"] {
        let host =
            std::fs::read_link(format!("/proc/self/ns/{namespace}")).expect("this process has one");
        assert!(seen.contains(host.to_str().expect("it is ASCII")), "{seen}");
    }
    assert_eq!(
        node.cri().sh(&second, "cat /proc/1/comm"),
        "pause",
        "the first process is the pod's own"
    );
}

#[test]
fn host_pid_containers_see_host_processes() {
    let node = TestNode::shared();
    let pod = node.pod_with("node", |config| {
        namespaces(config).set_pid(NamespaceMode::Node)
    });
    let own = std::process::id();
    let seen = pod.run_shell(
        &format!("readlink /proc/self/ns/pid; test -d /proc/{own} && echo seen"),
        |config| {
            context(config)
                .namespace_options
                .get_or_insert_default()
                .set_pid(NamespaceMode::Node);
        },
    );
    let namespace = std::fs::read_link("/proc/self/ns/pid").expect("this process has a namespace");
    assert_eq!(seen, format!("{}\nseen", namespace.display()));
}

#[test]
fn container_pid_namespace_starts_at_pid_one() {
    let node = TestNode::shared();
    let pod = node.pod("alone");
    let _other = pod.start_shell("other", "exec sleep 31415");
    assert_eq!(
        pod.run_shell(
            "echo $$; ps -o args | grep -c 'sleep 3141[5]' || true",
            |_| {}
        ),
        "1\n0"
    );
}

#[test]
fn target_pid_namespace_is_joined() {
    let node = TestNode::shared();
    let pod = node.pod("target");
    let target = pod.start_shell("target", "exec sleep 31415");
    let join = |id: &str| debugger(&node, id);
    let debugger = pod.start(&join(&target));
    assert_eq!(
        node.cri().sh(&debugger, "tr '\\0' ' ' < /proc/1/cmdline"),
        "sleep 31415 "
    );
    node.cri().stop(&debugger, 0).expect("it can be stopped");
    node.cri().remove(&debugger).expect("it can be removed");
    node.cri().status(&target).expect("the target continues");
    let status = pod.try_create(&join("")).expect_err("it names no target");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let status = pod
        .try_create(&join("nobody"))
        .expect_err("its target is nobody");
    assert!(status.message().contains("target_id"), "{status}");
}

#[test]
fn target_pid_namespace_rejects_a_reused_pid() {
    let node = TestNode::shared();
    let pod = node.pod("reused");
    let target = pod.start_shell("target", "exec sleep 31432");
    let debugger = pod.create(&debugger(&node, &target));
    // The shell becomes the command a moment after its start.
    let main = || processes::running(node.root().path(), "sleep 31432");
    assert!(
        eventually(Duration::from_secs(10), || main().is_some()),
        "the command runs"
    );
    let number = main().expect("it runs").pid;
    node.cri().stop(&target, 0).expect("it can be stopped");
    let mut stranger = spawn_as(number);
    let status = node
        .cri()
        .start(&debugger)
        .expect_err("its target has ended");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains(&target), "{status}");
    stranger.kill().expect("it runs");
    stranger.wait().expect("it is a child");
}

/// The configuration of a container that joins the processes of another.
fn debugger(node: &TestNode, target: &str) -> ContainerConfig {
    let mut config = node.container("debugger", &["sleep", "1000"]);
    let options = context(&mut config)
        .namespace_options
        .get_or_insert_default();
    options.set_pid(NamespaceMode::Target);
    options.target_id = target.to_owned();
    config
}

/// Starts a process with this id, which is free.
fn spawn_as(number: i32) -> Child {
    for _ in 0..1000 {
        // The kernel assigns the next free id, unless another process is started at that moment.
        let last = (number - 1).to_string();
        std::fs::write("/proc/sys/kernel/ns_last_pid", last)
            .expect("the kernel lets root choose numbers");
        let mut child = Command::new("sleep")
            .arg("1000")
            .spawn()
            .expect("it starts");
        if i32::try_from(child.id()) == Ok(number) {
            return child;
        }
        child.kill().expect("it runs");
        child.wait().expect("it is a child");
    }
    panic!("the number {number} is not to be had");
}

#[test]
fn pod_is_not_ready_after_its_infra_process_dies() {
    let node = TestNode::shared();
    let pod = node.pod_with("first", |config| {
        namespaces(config).set_pid(NamespaceMode::Pod)
    });
    let id = pod.start_shell("main", "exec sleep 1000");
    let members = cgroups::members(pod.id());
    assert!(
        !members.is_empty(),
        "the first process has a group of its pod's name"
    );
    for pid in members {
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
    }
    let limit = Duration::from_secs(20);
    assert!(eventually(limit, || pod.status().state()
        == PodSandboxState::SandboxNotready));
    // Its process namespace died with it.
    assert_eq!(node.cri().wait_exit(&id).exit_code, 137);
}
