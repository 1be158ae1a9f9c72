//! Kills with an external containerd: the daemon does not know its bundles, and leaves its downloads alone.

use std::thread;
use std::time::Duration;

use switchyard_crash_points::CrashPoint::*;
use switchyard_tests::host::eventually;

use super::cases::KillCase;
use super::fixture::{KillFixture, KillPoint, LIMIT};
use super::{images, pods, task_ends, tasks};

/// Time without activity after which a start that a kill cut off is given up.
const GRACE: &str = "[recovery]\ngrace_milliseconds = 5000\n";
/// The lifetime of each daemon, which is shorter than that.
const DAEMON_LIFETIME: Duration = Duration::from_secs(1);
/// The number of daemons; together they run much longer than that.
const DAEMON_COUNT: usize = 25;

/// Steps whose recovery is different with an external containerd.
pub(super) const EXTERNAL_ONLY_CASES: &[KillCase] = &[
    // No bundle shows whether containerd is still creating or deleting an infra process.
    KillCase::at(pods::run_pod, &[(InfraCreated, 1)]),
    KillCase::at(pods::stop_pod, &[(ProcessKilled, 1)]),
    // A start that containerd does not know, a process that nobody starts, and one that is being killed: the
    // decision depends on the activity that is seen, and on how long none is seen.
    KillCase::at(tasks::start, &[(TaskLogged, 1), (TaskCreated, 1)]),
    KillCase::at(tasks::await_start_outcome, &[(StartDiscarded, 1)]),
    // containerd itself has to find what its crash left behind.
    KillCase::at(tasks::start_without_containerd, &[(ExitNoted, 1)]),
    // The next task with this name may find remains of it.
    KillCase::at(task_ends::stop, &[(TaskDeleted, 1)]),
    // A download is removed with its lease, not by the daemon.
    KillCase::at(images::pull, &[(LayerBegun, 1)]),
];

/// All cases that do not need a managed containerd.
pub(super) const ALL: [&[KillCase]; 5] = [
    pods::POD_START_CASES,
    pods::POD_END_CASES,
    tasks::TASK_START_CASES,
    task_ends::TASK_END_CASES,
    images::KILLS,
];

/// A start is cut off before containerd is asked for it, and no daemon runs long enough to conclude by itself
/// that it has no effect.
pub(super) fn short_lives() {
    let fixture = KillFixture::external(GRACE);
    let kill = KillPoint {
        step: TaskFifos,
        nth: 1,
    };
    let pod = fixture.node.pod("short");
    let id = pod.create(&fixture.node.container("main", &["sleep", "1000"]));
    fixture.killed_during(kill, || fixture.node.cri().start(&id));
    let wait = fixture.node.root().run().join("waits").join(&id);
    assert!(
        eventually(LIMIT, || wait.exists()),
        "it is not waited for what came of the start"
    );
    let over = (0..DAEMON_COUNT).any(|_| {
        thread::sleep(DAEMON_LIFETIME);
        fixture.node.daemon().kill9();
        let over = !wait.exists();
        fixture.node.daemon().restart();
        over
    });
    assert!(
        over,
        "{DAEMON_COUNT} daemons do not know what came of the start\n{}",
        fixture.node.daemon().tail()
    );
    fixture.node.cri().start(&id).expect("it can be sent again");
    assert_eq!(fixture.node.cri().sh(&id, "echo reached"), "reached");
    drop(pod);
    fixture.assert_nothing_left(kill);
    fixture.finish();
}
