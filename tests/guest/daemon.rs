//! Restarts of the daemon, of the logkeeper and of their units do not disturb containers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use switchyard_proto::cri::v1::{ContainerStatus, PodSandboxStatus};
use switchyard_tests::host::eventually;

use crate::node::{GuestFact, GuestNode, GuestPod, LIMIT, SOCKET, cgroup_file, property, run};

pub(crate) const FACTS: &[GuestFact] = &[
    ("containers_survive_restart_of_the_unit", |node| {
        outlives(node, || {
            run(&["systemctl", "restart", "switchyard"]);
        });
    }),
    (
        "containers_survive_daemon_kill_and_restart_by_systemd",
        |node| {
            outlives(node, || kill_main("switchyard"));
        },
    ),
    ("containers_survive_unit_stop_and_are_adopted", |node| {
        outlives(node, || {
            run(&["systemctl", "stop", "switchyard"]);
            let mut waiting = UnixStream::connect(SOCKET).expect("a client waits");
            // What begins a connection of HTTP/2: the preface and empty settings.
            waiting
                .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
                .expect("it fits into the socket");
            sleep(Duration::from_secs(3));
            run(&["systemctl", "start", "switchyard"]);
            waiting
                .set_read_timeout(Some(LIMIT))
                .expect("the limit is not zero");
            // The settings of the server.
            waiting
                .read_exact(&mut [0; 9])
                .expect("the next daemon answers");
        });
    }),
    ("logkeeper_kill_loses_no_line", |node| {
        outlives(node, || kill_main("switchyard-logkeeper"));
    }),
    ("logkeeper_restart_loses_no_line", |node| {
        outlives(node, || {
            run(&["systemctl", "restart", "switchyard-logkeeper"]);
        });
    }),
];

/// Prints a number each time it can.
pub(crate) const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.02; done";

/// Kills the main process of a unit, and waits until systemd has started another.
pub(crate) fn kill_main(unit: &str) {
    let before = property(unit, "MainPID");
    let restarts = property(unit, "NRestarts");
    run(&[
        "systemctl",
        "kill",
        "--kill-whom=main",
        "--signal=KILL",
        unit,
    ]);
    let again = || {
        let pid = property(unit, "MainPID");
        pid != "0" && pid != before && property(unit, "ActiveState") == "active"
    };
    assert!(
        eventually(LIMIT, again),
        "systemd does not start {unit} again"
    );
    assert_ne!(property(unit, "NRestarts"), restarts);
}

/// Checks that `end` changed nothing: the same processes, the same status, and a log without a gap.
fn outlives(node: &GuestNode, end: impl FnOnce()) {
    let pod = node.pod("outlives");
    let counting = pod.start_shell("counting", COUNT);
    let ended = pod.start_shell("ended", "exit 3");
    let _ = node.wait_exit(&ended);
    assert_counts_on(&pod);
    let before = (
        cgroup_file(&counting, "cgroup.procs")
            .lines()
            .next()
            .map(str::to_owned),
        states(node, &pod),
    );
    end();
    node.wait_ready();
    let after = (
        cgroup_file(&counting, "cgroup.procs")
            .lines()
            .next()
            .map(str::to_owned),
        states(node, &pod),
    );
    assert_eq!(after, before);
    assert_counts_on(&pod);
    assert_eq!(node.cri.sh(&counting, "echo reached"), "reached");
}

fn states(node: &GuestNode, pod: &GuestPod<'_>) -> (PodSandboxStatus, Vec<ContainerStatus>) {
    let mut ids: Vec<_> = node.cri.containers().expect("they can be listed");
    ids.retain(|container| container.pod_sandbox_id == pod.id);
    ids.sort_by(|one, other| one.id.cmp(&other.id));
    let statuses = ids
        .iter()
        .map(|container| node.cri.status(&container.id).expect("it has a status"));
    (
        node.cri.pod_status(&pod.id).expect("it has a status"),
        statuses.collect(),
    )
}

/// Checks that the numbers in the log are complete up to its end, which is later than now.
#[track_caller]
pub(crate) fn assert_counts_on(pod: &GuestPod<'_>) {
    let so_far = pod.log_lines("counting").len();
    let lines = pod.wait_log_lines("counting", |lines| lines.len() > so_far + 20);
    // The last line may be incomplete.
    let complete = &lines[..lines.len() - 1];
    let expected: Vec<_> = (1..=complete.len())
        .map(|number| number.to_string())
        .collect();
    assert!(
        complete == expected,
        "lines are lost or doubled near {:?}",
        complete
            .iter()
            .zip(&expected)
            .position(|(is, should)| is != should)
    );
}
