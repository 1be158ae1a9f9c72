//! What operators do with a service and a node that run: rolling updates, a pause and a drain.

use serde_json::Value;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;

use super::resources::running;
use super::services::{create, ids, objects, registry, tasks};

/// The ids of the tasks that run on the daemon. Those that an update has replaced are in the
/// history of the manager, and ended.
fn live(worker: &SwarmWorker) -> Vec<String> {
    let list = worker.output(&["ps", "--owner", "swarm", "--output", "json"]);
    let objects: Value = serde_json::from_str(&list).expect("it is JSON");
    let running = |task: &&Value| task["state"] == "running";
    let all = objects["tasks"].as_array().expect("there is a list").iter().filter(running);
    all.map(|task| task["id"].as_str().expect("it is text").to_owned()).collect()
}

/// Waits until both tasks have this version, and returns the least number of tasks that ran meanwhile.
#[track_caller]
fn wait_updated(cluster: &SwarmCluster, worker: &SwarmWorker, version: &str) -> usize {
    let mut least = usize::MAX;
    let text = format!("{version}\n");
    cluster.wait_until(version, || {
        let running = live(worker);
        least = least.min(running.len());
        let has_printed = |id: &String| worker.call(&["logs", id]).stdout == text.as_bytes();
        running.len() == 2 && running.iter().all(has_printed)
    });
    least
}

#[test]
fn service_is_updated_in_both_orders_and_moves_with_the_availability_of_the_node() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    let options =
        ["--replicas", "2", "--env", "V=first", "--stop-grace-period", "1s", "--update-monitor", "100ms"];
    let script = "echo $V; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    create(&cluster, "web", &options, &image, script);
    wait_updated(&cluster, &worker, "first");

    // The successor is ready before the old task is stopped, but does not run.
    let update = ["service", "update", "--detach", "--env-add"];
    cluster.docker(&[&update[..], &["V=second", "--update-order", "stop-first", "web"]].concat());
    let least = wait_updated(&cluster, &worker, "second");
    assert!(least >= 1, "one task at a time is updated, and {least} ran");
    cluster.docker(&[&update[..], &["V=third", "--update-order", "start-first", "web"]].concat());
    let least = wait_updated(&cluster, &worker, "third");
    assert!(least >= 2, "the successor runs before the old task is stopped, and {least} ran");
    cluster.docker(&["service", "rollback", "--detach", "web"]);
    wait_updated(&cluster, &worker, "second");

    let node = cluster.workers().remove(0).split(' ').next().expect("it has an id").to_owned();
    let availability = |word: &str| cluster.docker(&["node", "update", "--availability", word, &node]);
    let before = ids(&tasks(&cluster, "web"));
    availability("pause");
    cluster.docker(&["service", "scale", "--detach", "web=3"]);
    let waits = || tasks(&cluster, "web").iter().any(|task| task.contains(" Pending "));
    cluster.wait_until("the third task waits", waits);
    assert_eq!(live(&worker).len(), 2);
    availability("active");
    cluster.wait_until("the third task runs", || running(&cluster, "web") == 3);
    let after = ids(&tasks(&cluster, "web"));
    assert!(before.iter().all(|id| after.contains(id)), "a pause ends no task");

    availability("drain");
    cluster.wait_until("no task runs", || live(&worker).is_empty() && running(&cluster, "web") == 0);
    availability("active");
    cluster.wait_until("all tasks run again", || running(&cluster, "web") == 3 && live(&worker).len() == 3);
    cluster.docker(&["service", "rm", "web"]);
    cluster.wait_until("all tasks are removed", || objects(&worker).is_empty());
}
