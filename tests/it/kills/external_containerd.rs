//! Kills beside a containerd that is not the daemon's own: nothing is known of its bundles there, and its downloads are left alone.

use std::thread;
use std::time::Duration;

use switchyard_steps::Step::*;
use switchyard_tests::host::eventually;

use super::fixture::{KillFixture, KillPoint, LIMIT};
use super::{KillCase, images, pods, tasks};

/// For as long nothing must be seen of a start that a kill cut off.
const GRACE: &str = "[recovery]\ngrace_milliseconds = 5000\n";
/// No daemon lives as long.
const DAEMON_LIFETIME: Duration = Duration::from_secs(1);
/// So many of them live longer than that together, by far.
const DAEMON_COUNT: usize = 25;

/// Those in which it is decided otherwise than beside a containerd of our own.
pub(super) const EXTERNAL_ONLY_CASES: &[KillCase] = &[
    // Whether containerd is at work on an infra process, and when all of it is gone, no bundle tells.
    KillCase { run: pods::run_pod, points: &[(InfraCreated, 1)] },
    KillCase { run: pods::stop_pod, points: &[(ProcessKilled, 1)] },
    // A start of which containerd knows nothing, a process that nobody starts, and one that is being ended: what is seen at work, and for
    // how long it is not, decides.
    KillCase { run: tasks::start, points: &[(TaskLogged, 1), (TaskCreated, 1)] },
    KillCase { run: tasks::await_start_outcome, points: &[(StartDiscarded, 1)] },
    // What its death leaves is for containerd to find.
    KillCase { run: tasks::start_without_containerd, points: &[(FailureNoted, 1)] },
    // The next to have this name may meet what is left of it.
    KillCase { run: tasks::stop, points: &[(TaskDeleted, 1)] },
    // A download goes with its lease, and not by the daemon's hand.
    KillCase { run: images::pull, points: &[(LayerBegun, 1)] },
];

/// All that do not need a containerd of the daemon's own.
pub(super) const ALL: [&[KillCase]; 5] = [
    pods::POD_START_CASES,
    pods::POD_END_CASES,
    tasks::TASK_START_CASES,
    tasks::TASK_END_CASES,
    images::KILLS,
];

/// A start is cut off before containerd is asked for it, and no daemon lives long enough to know by itself that nothing comes of it.
pub(super) fn short_lives() {
    let lab = KillFixture::external(GRACE);
    let kill = KillPoint { step: TaskFifos, nth: 1 };
    let pod = lab.node.pod("short");
    let id = pod.create(&lab.node.container("main", &["sleep", "1000"]));
    lab.dies_amid(kill, || lab.node.cri().start(&id));
    let wait = lab.node.root().run().join("waits").join(&id);
    assert!(eventually(LIMIT, || wait.exists()), "it is not waited for what came of the start");
    let over = (0..DAEMON_COUNT).any(|_| {
        thread::sleep(DAEMON_LIFETIME);
        lab.node.daemon().kill9();
        let over = !wait.exists();
        lab.node.daemon().restart();
        over
    });
    assert!(over, "{DAEMON_COUNT} daemons do not know what came of the start\n{}", lab.node.daemon().tail());
    lab.node.cri().start(&id).expect("it can be sent again");
    assert_eq!(lab.node.cri().sh(&id, "echo reached"), "reached");
    drop(pod);
    lab.assert_nothing_left(kill);
    lab.finish();
}
