//! A service of a swarm with a host port, a named volume and a health check: its manager gives the task no successor.
//!
//! It has no device: managers end tasks with devices when their node reports these again (moby#44378), as after each restart of a
//! daemon of a version that does not store what it has learned of them.

use std::fs;
use std::path::Path;

use switchyard_tests::host::eventually;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::{SwarmWorker, WorkerTask};
use switchyard_tests::versions;

use super::super::unreadable::{assert_refused, with_port};
use super::super::{assert_unbroken, numbers};
use super::{BEFORE, LIMIT, following};
use crate::swarm::resources::Pod;
use crate::swarm::services::{create, ids, registry, tasks, wait_all_removed};

/// A port that no other program has in the network namespace of the managers.
const PORT: u16 = 8080;

/// Counts on its output and in its volume.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n; echo $n > /data/last; sleep 0.05; done";

/// Creates the service, whose health check copies the last number from the volume to the host.
fn create_web(cluster: &SwarmCluster, image: &str, shared: &Path) {
    let bind = format!("type=bind,source={},target=/shared", shared.display());
    let publish = format!("mode=host,published={PORT},target=80");
    cluster.docker(&[
        "service",
        "create",
        "--detach",
        "--no-resolve-image",
        "--constraint",
        "node.role==worker",
        "--network",
        "bridge",
        "--publish",
        &publish,
        "--mount",
        "type=volume,source=data,target=/data",
        "--mount",
        &bind,
        "--health-cmd",
        "cat /data/last >> /shared/checks",
        "--health-interval",
        "200ms",
        "--health-retries",
        "1000",
        "--stop-grace-period",
        "100ms",
        "--name",
        "web",
        image,
        "sh",
        "-c",
        COUNT,
    ]);
}

/// Waits for the end of recovery: a session is open.
#[track_caller]
fn wait_for_session(cluster: &SwarmCluster, worker: &SwarmWorker) {
    cluster.wait_until("a session is open", || {
        worker.status()["manager"] == cluster.address(0)
    });
}

/// Fails unless the service has the same task as before, its checks continue, its log is whole, and its port is
/// refused to pods.
#[track_caller]
fn assert_works(
    cluster: &SwarmCluster,
    (worker, image): (&SwarmWorker, &str),
    before: &[WorkerTask],
    shared: &Path,
    when: &str,
) {
    assert_eq!(worker.swarm_tasks(), before, "{when}");
    let checks = || fs::read_to_string(shared.join("checks")).unwrap_or_default();
    let so_far = numbers(&checks()).last().copied().unwrap_or_default();
    let continues = || {
        numbers(&checks())
            .last()
            .is_some_and(|last| *last > so_far + 10)
    };
    assert!(eventually(LIMIT, continues), "{when}: {}", checks());
    let logs = || cluster.docker(&["service", "logs", "--raw", "web"]);
    let so_far = numbers(&logs()).len();
    cluster.wait_until("its log continues", || numbers(&logs()).len() > so_far + 10);
    assert_unbroken(&logs(), when);

    let taken = format!("{PORT}/tcp");
    let other = Pod::try_run(worker, image, |config| with_port(config, PORT));
    assert_refused(other.map(drop), &[&taken, "swarm"]);
}

#[test]
fn service_keeps_its_task_through_an_upgrade_and_a_rollback() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, |root| {
        root.put_program(&versions::former());
        String::new()
    });
    worker.join(&cluster, &cluster.token("worker"));
    let shared = worker.root().run().join("shared");
    fs::create_dir(&shared).expect("the root can be written");
    create_web(&cluster, &image, &shared);
    let is_running = |service: &str| {
        let listed = tasks(&cluster, service);
        !listed.is_empty() && listed.iter().all(|task| task.contains(" Running "))
    };
    cluster.wait_until("the task is healthy", || is_running("web"));
    let before = worker.swarm_tasks();
    let listed = ids(&tasks(&cluster, "web"));
    assert_works(&cluster, (&worker, &image), &before, &shared, BEFORE);
    for ((program, when), number) in following().into_iter().zip(1..) {
        worker.root().put_program(&program);
        worker.daemon().restart();
        wait_for_session(&cluster, &worker);
        assert_works(&cluster, (&worker, &image), &before, &shared, when);
        assert_eq!(ids(&tasks(&cluster, "web")), listed, "{when}");
        let name = format!("short-{number}");
        create(&cluster, &name, &[], &image, "exec sleep 1000");
        cluster.wait_until("a new task runs", || is_running(&name));
        cluster.docker(&["service", "rm", &name]);
        let is_removed = || worker.swarm_tasks() == before;
        cluster.wait_until("the new task is removed", is_removed);
    }
    cluster.docker(&["service", "rm", "web"]);
    wait_all_removed(&cluster, &worker);
}
