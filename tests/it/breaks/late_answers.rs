//! containerd carries out a call, and answers after the deadline.

use std::cell::RefCell;
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_proto::cri::v1::LinuxContainerResources;
use switchyard_tests::cri::limits;
use switchyard_tests::host::{cgroups, eventually, processes};
use tonic::Code;

use super::versions::node_behind_proxy;
use super::{LIMIT, refused};

/// The call that updates a record.
const RECORD: &[&str] = &["Containers/Update"];

/// The exit of a container while no daemon runs is persisted by the next daemon.
#[test]
fn recovery_that_cannot_persist_an_exit_in_time_keeps_the_container() {
    let behind = RefCell::new(None);
    let node = node_behind_proxy(&behind);
    let behind = behind.borrow();
    let (_, front) = behind.as_ref().expect("it was started with the node");
    let pod = node.pod("late");
    let id = pod.start_shell("ended", "exec sleep 31470");
    node.daemon().kill9();
    let main = || {
        let all = processes::belonging_to(node.root().path());
        all.iter()
            .find(|process| process.command == "sleep 31470")
            .map(|process| process.pid)
    };
    // It is a shell until it has executed the program.
    assert!(
        eventually(LIMIT, || main().is_some()),
        "the container does not run"
    );
    kill(Pid::from_raw(main().expect("it runs")), Signal::SIGKILL).expect("it runs");
    front.set_delayed(RECORD);
    node.daemon().spawn();
    assert!(
        eventually(LIMIT, || {
            let log = fs::read_to_string(node.root().daemon_log()).unwrap_or_default();
            log.contains("recovery failed; trying again until it succeeds")
        }),
        "{}",
        node.daemon().tail()
    );
    front.set_delayed(&[]);
    node.daemon().wait_ready();
    let (_, metrics) = node.daemon().get("/metrics");
    let failures = metrics
        .lines()
        .find_map(|line| line.strip_prefix("switchyard_recovery_failures_total "));
    assert!(failures.is_some_and(|number| number != "0"), "{failures:?}");
    assert_eq!(
        node.cri().status(&id).expect("it has a status").exit_code,
        137
    );
    assert_eq!(pod.run_shell("echo works", |_| {}), "works");
}

#[test]
fn rolled_back_limits_are_reported_after_daemon_restart() {
    let behind = RefCell::new(None);
    let node = node_behind_proxy(&behind);
    let behind = behind.borrow();
    let (_, front) = behind.as_ref().expect("it was started with the node");
    let before = 64 << 20;
    let after = 96 << 20;
    let pod = node.pod("late");
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        limits(config).memory_limit_in_bytes = before;
    });
    let file = cgroups::named(&id)
        .iter()
        .flat_map(|group| {
            [
                group.join("memory.limit_in_bytes"),
                group.join("memory.max"),
            ]
        })
        .find(|file| file.exists())
        .expect("its memory is limited");
    let in_force = || {
        fs::read_to_string(&file)
            .expect("it is there")
            .trim()
            .parse::<i64>()
            .ok()
    };
    let reported = || {
        let status = node.cri().status(&id).expect("it has a status");
        status
            .resources
            .and_then(|limits| limits.linux)
            .map(|limits| limits.memory_limit_in_bytes)
    };
    front.set_delayed(RECORD);
    let wanted = LinuxContainerResources {
        memory_limit_in_bytes: after,
        ..Default::default()
    };
    refused(
        "UpdateContainerResources",
        node.cri().update(&id, wanted),
        &[Code::DeadlineExceeded],
    );
    front.set_delayed(&[]);
    let mark = node.root().run().join("tasks").join(&id).join("limiting");
    assert!(
        eventually(LIMIT, || !mark.exists()),
        "{}",
        node.daemon().tail()
    );
    assert_eq!((reported(), in_force()), (Some(before), Some(before)));
    node.daemon().kill9();
    node.daemon().restart();
    assert_eq!((reported(), in_force()), (Some(before), Some(before)));
}
