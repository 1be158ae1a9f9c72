//! Tasks of a Docker swarm: from an assignment to the process, and from `service create` to a task that runs, beside
//! dockerd as a worker of the same swarm.

mod assignments;
mod members;

use std::time::Duration;

use crate::bridge_driver::BridgeDriver;
use crate::failure::Failure;
use crate::pair::Pair;
use crate::report::{Report, progress};
use crate::row::{Goal, Row};
use members::Members;

/// The extent of this part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwarmSize {
    /// Assignments of each side on each network, one after the other.
    pub(crate) starts: u32,
    /// Those before them that do not count.
    pub(crate) warm_up: u32,
    /// Joins.
    pub(crate) joins: u32,
    /// Services of each worker.
    pub(crate) services: u32,
    /// Tasks whose memory is measured.
    pub(crate) running: u32,
    /// Driver that attaches ours to the bridge.
    pub(crate) driver: BridgeDriver,
}

/// Measures all of it.
pub(crate) async fn measure(size: SwarmSize, report: &mut Report) -> Result<(), Failure> {
    let [host, own] = assignments::measure(size)?;
    let rows = vec![
        Row::times("assignment, host's network", host).goal(Goal::RatioAtMost(1.2)),
        Row::times(
            &format!("assignment, bridge, driver {}", size.driver.name()),
            own,
        )
        .goal(size.driver.goal(1.2)),
    ];
    let note = format!(
        "{} starts of each side on each network. Bare: container, snapshot, task and start over containerd's API, and before that a\n\
         network namespace and the ADD of the same plugins, if it has a network. Ours: from the assignment, as a session hands it over, to\n\
         the report of RUNNING, in the benchmark's own process. The image is named by its digest and present.\n",
        size.starts
    );
    let names = Pair {
        theirs: "bare containerd",
        ours: "Switchyard",
    };
    report.section_between("tasks assigned by a swarm", names, rows, note);

    let mut members = Members::start()?;
    let before = members.memory()?;
    let mut joins = vec![members.join()?];
    tokio::time::sleep(members::REST).await;
    let after = members.memory()?;
    for number in 1..size.joins {
        members.leave()?;
        joins.push(members.join()?);
        progress("joins", number + 1, size.joins);
    }
    members.add_dockerd()?;
    let mut pairs: Vec<Pair<Duration>> = Vec::new();
    for round in 0..size.warm_up + size.services {
        let pair = members.round(round)?;
        if let Some(done) = (round + 1)
            .checked_sub(size.warm_up)
            .filter(|done| *done > 0)
        {
            pairs.push(pair);
            progress("services", done, size.services);
        }
    }
    let growth = members.grow(size.running)?;
    let milliseconds = joins.iter().map(|took| took.as_secs_f64() * 1000.0);
    let rows = vec![
        Row::ours("join until Ready", "ms", milliseconds),
        Row::times("service create until RUNNING", pairs).goal(Goal::RatioAtMost(1.0)),
        Row::ours("daemon, more as a member", "MiB", [after - before]).goal(Goal::OursAtMost(2.0)),
        Row::ours(
            "daemon, for each task",
            "KiB",
            [growth * 1024.0 / f64::from(size.running)],
        )
        .goal(Goal::OursAtMost(30.0)),
    ];
    let note = format!(
        "One manager, a dockerd; {} services of one task on each worker, on the host's network, from the request until the manager\n\
         lists the task as running. Memory: resident, {} tasks beside {} others.\n",
        size.services,
        size.running,
        members::BASELINE_TASKS
    );
    let names = Pair {
        theirs: "dockerd",
        ours: "Switchyard",
    };
    report.section_between("a worker of a swarm", names, rows, note);
    Ok(())
}
