//! Operators' changes of a running service and node: rolling updates, a pause and a drain.

use std::ops::RangeInclusive;

use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;

use super::resources::running;
use super::services::{create, ids, registry, tasks, wait_all_removed};

/// The ids of the tasks that run on the daemon. Those that an update has replaced are in the history of the manager,
/// and ended.
fn live(worker: &SwarmWorker) -> Vec<String> {
    let running = worker
        .swarm_tasks()
        .into_iter()
        .filter(|task| task.state == "running");
    running.map(|task| task.id).collect()
}

/// Waits until both tasks have this version, and returns the least and the largest number of tasks that were seen to run
/// meanwhile.
#[track_caller]
fn wait_updated(
    cluster: &SwarmCluster,
    worker: &SwarmWorker,
    version: &str,
) -> RangeInclusive<usize> {
    let [mut least, mut most] = [usize::MAX, 0];
    let text = format!("{version}\n");
    cluster.wait_until(version, || {
        let running = live(worker);
        least = least.min(running.len());
        most = most.max(running.len());
        let has_printed = |id: &String| worker.call(&["logs", id]).stdout == text.as_bytes();
        running.len() == 2 && running.iter().all(has_printed)
    });
    least..=most
}

#[test]
fn service_is_updated_in_both_orders_and_moves_with_the_availability_of_the_node() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    let options = [
        "--replicas",
        "2",
        "--env",
        "V=first",
        "--stop-grace-period",
        "1s",
        "--update-monitor",
        "100ms",
    ];
    let script = "echo $V; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    create(&cluster, "web", &options, &image, script);
    wait_updated(&cluster, &worker, "first");

    // The successor is ready before the old task is stopped, and does not run before.
    let update = ["service", "update", "--detach", "--env-add"];
    cluster.docker(
        &[
            &update[..],
            &["V=second", "--update-order", "stop-first", "web"],
        ]
        .concat(),
    );
    let ran = wait_updated(&cluster, &worker, "second");
    assert!(
        *ran.start() >= 1 && *ran.end() <= 2,
        "one task at a time is replaced, and {ran:?} ran"
    );
    cluster.docker(
        &[
            &update[..],
            &["V=third", "--update-order", "start-first", "web"],
        ]
        .concat(),
    );
    let ran = wait_updated(&cluster, &worker, "third");
    assert!(
        *ran.start() >= 2,
        "the successor runs before the old task is stopped, and {ran:?} ran"
    );
    cluster.docker(&["service", "rollback", "--detach", "web"]);
    wait_updated(&cluster, &worker, "second");

    let node = cluster
        .workers()
        .remove(0)
        .split(' ')
        .next()
        .expect("it has an id")
        .to_owned();
    let availability =
        |word: &str| cluster.docker(&["node", "update", "--availability", word, &node]);
    let before = ids(&tasks(&cluster, "web"));
    availability("pause");
    cluster.docker(&["service", "scale", "--detach", "web=3"]);
    let waits = || {
        tasks(&cluster, "web")
            .iter()
            .any(|task| task.contains(" Pending "))
    };
    cluster.wait_until("the third task waits", waits);
    assert_eq!(live(&worker).len(), 2);
    availability("active");
    cluster.wait_until("the third task runs", || running(&cluster, "web") == 3);
    let after = ids(&tasks(&cluster, "web"));
    assert!(
        before.iter().all(|id| after.contains(id)),
        "a pause ends no task"
    );

    availability("drain");
    cluster.wait_until("no task runs", || {
        live(&worker).is_empty() && running(&cluster, "web") == 0
    });
    availability("active");
    cluster.wait_until("all tasks run again", || {
        running(&cluster, "web") == 3 && live(&worker).len() == 3
    });
    cluster.docker(&["service", "rm", "web"]);
    wait_all_removed(&cluster, &worker);
}
