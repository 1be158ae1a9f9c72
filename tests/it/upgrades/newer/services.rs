//! A service of a swarm that the newer version has started: this one leaves its task alone, and its manager gives it no
//! successor.

use std::fs;
use std::path::Path;

use switchyard_tests::daemon::binary;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;
use switchyard_tests::versions::newer;

use super::super::assert_unbroken;
use super::super::unreadable::recovers;
use crate::swarm::services::{create, ids, registry, tasks, wait_all_removed};

/// Counts in a file of the host. A second instance would begin again.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n >> /shared/numbers; sleep 0.05; done";

/// Waits until a file has more lines.
#[track_caller]
fn wait_for_lines(cluster: &SwarmCluster, file: &Path) {
    let count = || fs::read_to_string(file).unwrap_or_default().lines().count();
    let so_far = count();
    let what = format!("{} grows", file.display());
    cluster.wait_until(&what, || count() > so_far + 10);
}

/// Fails unless the service has the same tasks for its manager as before, and the same process counts.
#[track_caller]
fn assert_continues(cluster: &SwarmCluster, listed: &[String], shared: &Path, when: &str) {
    let numbers = shared.join("numbers");
    wait_for_lines(cluster, &numbers);
    let text = fs::read_to_string(&numbers).expect("the task writes it");
    assert_unbroken(&text, when);
    assert_eq!(ids(&tasks(cluster, "web")), listed, "{when}");
}

fn runs(cluster: &SwarmCluster, service: &str) -> bool {
    let listed = tasks(cluster, service);
    !listed.is_empty() && listed.iter().all(|task| task.contains(" Running "))
}

#[test]
fn task_of_a_service_runs_on_without_a_successor_until_the_newer_version_is_back() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, |root| {
        root.put_program(&newer());
        String::new()
    });
    worker.join(&cluster, &cluster.token("worker"));
    let shared = worker.root().run().join("shared");
    fs::create_dir(&shared).expect("the root can be written");
    let bind = format!("type=bind,source={},target=/shared", shared.display());
    let options = [
        "--mount",
        bind.as_str(),
        "--health-cmd",
        "echo checked >> /shared/checks",
        "--health-interval",
        "200ms",
        "--health-retries",
        "1000",
    ];
    create(&cluster, "web", &options, &image, COUNT);
    cluster.wait_until("the task is healthy", || runs(&cluster, "web"));
    let before = worker.swarm_tasks();
    let listed = ids(&tasks(&cluster, "web"));
    assert_continues(&cluster, &listed, &shared, "under the newer version");

    worker.daemon().terminate();
    worker.root().put_program(&binary());
    worker.daemon().spawn();
    assert!(recovers(worker.root()), "{}", worker.daemon().tail());
    // When this one runs, all assignments have been taken up.
    create(&cluster, "short", &[], &image, "exec sleep 1000");
    cluster.wait_until("a new task runs", || runs(&cluster, "short"));
    assert_continues(&cluster, &listed, &shared, "after the rollback");
    assert!(runs(&cluster, "web"), "{:?}", tasks(&cluster, "web"));
    let held = worker.output(&["ps", "--state", "unreadable"]);
    assert!(held.contains(&before[0].id[..12]), "{held}");
    cluster.docker(&["service", "rm", "short"]);
    cluster.wait_until("the new task is removed", || {
        worker.swarm_tasks().is_empty()
    });

    worker.root().put_program(&newer());
    worker.daemon().restart();
    cluster.wait_until("a session is open", || {
        worker.status()["manager"] == cluster.address(0)
    });
    assert_eq!(worker.swarm_tasks(), before);
    wait_for_lines(&cluster, &shared.join("checks"));
    assert_continues(&cluster, &listed, &shared, "when it is back");
    cluster.docker(&["service", "rm", "web"]);
    wait_all_removed(&cluster, &worker);
}
