//! Kills beside a containerd that is not the daemon's own: nothing is known of its bundles there, and its downloads are left alone.

use switchyard_steps::Step::*;

use super::{Amid, images, pods, tasks};

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
