//! Kills beside a containerd that is not the daemon's own: nothing is known of its bundles there, and its downloads are left alone.

use std::thread;
use std::time::Duration;

use switchyard_steps::Step::*;
use switchyard_tests::host::eventually;

use super::lab::{Kill, LIMIT, Lab};
use super::{Amid, images, pods, tasks};

/// For as long nothing must be seen of a start that a kill cut off.
const GRACE: &str = "[recovery]\ngrace_milliseconds = 5000\n";
/// No daemon lives as long.
const LIFE: Duration = Duration::from_secs(1);
/// So many of them live longer than that together, by far.
const LIVES: usize = 25;

/// Those in which it is decided otherwise than beside a containerd of our own.
pub(super) const DIFFERENT: &[Amid] = &[
    // Whether containerd is at work on an infra process, and when all of it is gone, no bundle tells.
    Amid { run: pods::run_pod, at: &[(InfraCreated, 1)] },
    Amid { run: pods::stop_pod, at: &[(ProcessKilled, 1)] },
    // A start of which containerd knows nothing, a process that nobody starts, and one that is being ended: what is seen at work, and for
    // how long it is not, decides.
    Amid { run: tasks::start, at: &[(TaskLogged, 1), (TaskCreated, 1)] },
    Amid { run: tasks::settle, at: &[(StartDiscarded, 1)] },
    // What its death leaves is for containerd to find.
    Amid { run: tasks::start_without_containerd, at: &[(FailureNoted, 1)] },
    // The next to have this name may meet what is left of it.
    Amid { run: tasks::stop, at: &[(TaskDeleted, 1)] },
    // A download goes with its lease, and not by the daemon's hand.
    Amid { run: images::pull, at: &[(LayerBegun, 1)] },
];

/// All that do not need a containerd of the daemon's own.
pub(super) const ALL: [&[Amid]; 5] = [pods::MADE, pods::ENDED, tasks::MADE, tasks::ENDED, images::KILLS];

/// A start is cut off before containerd is asked for it, and no daemon lives long enough to know by itself that nothing comes of it.
pub(super) fn short_lives() {
    let lab = Lab::external(GRACE);
    let kill = Kill { step: TaskFifos, time: 1 };
    let pod = lab.node.pod("short");
    let id = pod.create(&lab.node.container("main", &["sleep", "1000"]));
    lab.dies_amid(kill, || lab.node.cri().start(&id));
    let wait = lab.node.root().run().join("waits").join(&id);
    assert!(eventually(LIMIT, || wait.exists()), "it is not waited for what came of the start");
    let over = (0..LIVES).any(|_| {
        thread::sleep(LIFE);
        lab.node.daemon().kill9();
        let over = !wait.exists();
        lab.node.daemon().restart();
        over
    });
    assert!(over, "{LIVES} daemons do not know what came of the start\n{}", lab.node.daemon().tail());
    lab.node.cri().start(&id).expect("it can be sent again");
    assert_eq!(lab.node.cri().sh(&id, "echo reached"), "reached");
    drop(pod);
    lab.assert_nothing_left(kill);
    lab.finish();
}
