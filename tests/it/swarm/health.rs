//! Health checks of tasks on a real containerd, and of services of a real manager over kills amid a check.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use serde_json::json;
use swarm::TaskState;
use switchyard_crash_points::CrashPoint;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::host::eventually;
use switchyard_tests::image::busybox;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::node::{LIMIT, SwarmNode, assigned, task};
use switchyard_tests::swarm::worker::SwarmWorker;

use super::services::{create, ids, objects, registry, tasks, wait_all_removed};

/// The error of a task that was unhealthy and did not end by its stop signal, in docker's words.
const UNHEALTHY: &str = "task: non-zero exit (137): dockerexec: unhealthy container";

/// Number of checks that have run: each adds a line.
fn checks(dir: &Path) -> usize {
    fs::read_to_string(dir.join("checks"))
        .unwrap_or_default()
        .lines()
        .count()
}

/// Waits until so many more checks have run.
#[track_caller]
fn wait_for_checks(dir: &Path, more: usize) {
    let before = checks(dir);
    assert!(
        eventually(LIMIT, || checks(dir) >= before + more),
        "{before} checks, and no more"
    );
}

fn bind(dir: &Path) -> swarm::Mount {
    swarm::Mount {
        source: dir.display().to_string(),
        target: "/shared".into(),
        ..Default::default()
    }
}

fn milliseconds(count: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: 0,
        nanos: count * 1_000_000,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn health_check_of_the_image_or_the_service_decides_over_a_task() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let node = SwarmNode::over(&world).await;
    let shared = world.root().run().join("shared");
    fs::create_dir(&shared).unwrap();
    let check = json!({
        "Test": ["CMD-SHELL", "echo $CHECKED >>/shared/checks; test -e /shared/well"],
        "Interval": 50_000_000,
        "Retries": 1000,
    });
    world.registry().push(
        "library/checked:1",
        &busybox().set("Healthcheck", check).build(),
    );
    let image = world.registry().reference("library/checked:1");

    let by_image = task(&world, "t1", "exec sleep 1000", |container| {
        container.image.clone_from(&image);
        container.env = vec!["CHECKED=by-image".into()];
        container.mounts = vec![bind(&shared)];
        container.stop_grace_period = milliseconds(200);
    });
    node.apply(false, vec![assigned(by_image)]).await;
    tokio::task::block_in_place(|| wait_for_checks(&shared, 3));
    assert_eq!(
        node.reports.latest("t1").unwrap().state,
        i32::from(TaskState::Starting)
    );
    fs::write(shared.join("well"), "").unwrap();
    node.reported("t1", TaskState::Running).await;
    tokio::task::block_in_place(|| wait_for_checks(&shared, 2));
    let lines = fs::read_to_string(shared.join("checks")).unwrap();
    assert!(
        lines.lines().all(|line| line == "by-image"),
        "a check has the task's variables: {lines}"
    );

    // The service's own check, which takes too long.
    let by_service = task(&world, "t2", "exec sleep 1000", |container| {
        container.image.clone_from(&image);
        container.healthcheck = Some(swarm::HealthConfig {
            test: ["CMD", "sleep", "1000"].map(str::to_owned).to_vec(),
            timeout: milliseconds(300),
            retries: 2,
            ..Default::default()
        });
        container.stop_grace_period = milliseconds(200);
    });
    node.apply(false, vec![assigned(by_service)]).await;
    assert_eq!(node.reported("t2", TaskState::Failed).await.err, UNHEALTHY);
    assert_eq!(
        node.reports.latest("t1").unwrap().state,
        i32::from(TaskState::Running)
    );
    node.end().await;
}

#[test]
fn service_is_healthy_over_kills_amid_its_checks_until_a_check_fails() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    let shared = worker.root().run().join("shared");
    fs::create_dir(&shared).expect("the root can be written");
    fs::write(shared.join("broken"), "").expect("the root can be written");
    let mount = format!("type=bind,source={},target=/shared", shared.display());
    let options = [
        "--mount",
        &mount,
        "--health-cmd",
        "echo x >>/shared/checks; sleep 0.2; test ! -e /shared/broken",
        "--health-interval",
        "100ms",
        "--health-retries",
        "1",
        "--health-start-period",
        "1h",
        "--stop-grace-period",
        "1s",
        "--restart-condition",
        "none",
    ];
    create(&cluster, "web", &options, &image, "exec sleep 1000");
    wait_for_checks(&shared, 1);
    let is = |word: &str| {
        tasks(&cluster, "web")
            .iter()
            .all(|task| task.contains(word))
    };
    cluster.wait_until("the task is starting", || is(" Starting "));
    fs::remove_file(shared.join("broken")).expect("it is there");
    cluster.wait_until("the task is healthy", || is(" Running "));

    let before = ids(&tasks(&cluster, "web"));
    for step in [
        CrashPoint::ExecFifos,
        CrashPoint::ExecCreated,
        CrashPoint::ExecAsked,
        CrashPoint::ExecStarted,
        CrashPoint::ExecDeleted,
    ] {
        worker.daemon().kill_at(&[(step, 1)]);
        worker.daemon().wait_killed();
        let containerd = worker
            .root()
            .managed("containerd")
            .expect("the daemon writes down whom it started");
        kill(containerd, Signal::SIGKILL).expect("it runs");
        worker.daemon().restart();
        cluster.wait_until("a session is open", || {
            worker.status()["manager"] == cluster.address(0)
        });
        wait_for_checks(&shared, 2);
        assert_eq!(
            objects(&worker),
            [("web.1".to_owned(), "running".to_owned())],
            "{step:?}"
        );
    }
    // A task that had failed would have a successor, or an end.
    assert!(is(" Running ") && ids(&tasks(&cluster, "web")) == before);

    fs::write(shared.join("broken"), "").expect("the root can be written");
    cluster.wait_until(UNHEALTHY, || is(UNHEALTHY));
    assert!(is(" Failed "));
    cluster.docker(&["service", "rm", "web"]);
    wait_all_removed(&cluster, &worker);
}
