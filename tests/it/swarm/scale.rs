//! Many tasks on one node, and a daemon that is killed again and again, or is away for long.

use std::collections::BTreeMap;

use switchyard_tests::host::number;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;

use super::services::{create, ids, objects, registry, tasks, wait_all_removed};

/// Number of tasks; `SWITCHYARD_TEST_TASKS` sets another number.
const TASKS: usize = 20;

/// Number of kills of the daemon; `SWITCHYARD_TEST_KILLS` sets another number. The other tests of this module
/// kill it some twenty times more, at chosen steps.
const KILLS: usize = 4;

/// The main process of each task of Swarm that runs.
fn processes(worker: &SwarmWorker) -> BTreeMap<String, u64> {
    worker
        .swarm_tasks()
        .into_iter()
        .filter_map(|task| Some((task.id, task.pid?)))
        .collect()
}

fn all_run(cluster: &SwarmCluster, worker: &SwarmWorker, count: usize) -> bool {
    let told = tasks(cluster, "many");
    told.iter()
        .filter(|task| task.contains(" Running "))
        .count()
        == count
        && objects(worker)
            .iter()
            .filter(|(_, state)| state == "running")
            .count()
            == count
}

#[test]
fn many_tasks_outlive_kills_of_the_daemon_and_a_long_absence_is_told() {
    let count = number("SWITCHYARD_TEST_TASKS", TASKS);
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    create(
        &cluster,
        "many",
        &["--replicas", &count.to_string()],
        &image,
        "exec sleep 100000",
    );
    cluster.wait_until("all tasks run", || all_run(&cluster, &worker, count));
    let (before, node) = (ids(&tasks(&cluster, "many")), cluster.workers());
    let running = processes(&worker);
    assert_eq!(running.len(), count);

    for kill in 0..number("SWITCHYARD_TEST_KILLS", KILLS) {
        worker.daemon().kill9();
        worker.daemon().restart();
        cluster.wait_until("a session is open", || {
            worker.status()["manager"] == cluster.address(0)
        });
        assert_eq!(processes(&worker), running, "after kill {kill}");
    }
    assert_eq!(
        ids(&tasks(&cluster, "many")),
        before,
        "no task has a successor"
    );
    assert_eq!(cluster.workers(), node, "it is the same node");

    // The manager gives the tasks of a node that is down to others. There are none, so they wait for its return.
    worker.daemon().kill9();
    cluster.wait_until("the node is down", || {
        cluster.workers().iter().all(|line| line.contains(" Down "))
    });
    worker.daemon().restart();
    cluster.wait_until("the node is ready again", || cluster.workers() == node);
    cluster.wait_until("each task has a successor", || {
        all_run(&cluster, &worker, count)
            && processes(&worker)
                .keys()
                .all(|id| !running.contains_key(id))
    });
    cluster.docker(&["service", "rm", "many"]);
    wait_all_removed(&cluster, &worker);
}
