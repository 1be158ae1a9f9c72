//! Services that a real manager places on the daemon.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use switchyard_tests::daemon::binary;
use switchyard_tests::image::busybox;
use switchyard_tests::registry::Registry;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;

/// A registry in the network namespace of the managers, and the image in it.
pub(crate) fn registry(cluster: &SwarmCluster) -> (Registry, String) {
    let started = cluster.within(|| {
        let registry = Registry::start();
        registry.push("library/busybox:1", &busybox().build());
        let image = registry.reference("library/busybox:1");
        (registry, image)
    });
    started.join().expect("the registry serves")
}

/// Creates a service on the worker: these options, then the image and its command.
pub(crate) fn create(
    cluster: &SwarmCluster,
    name: &str,
    options: &[&str],
    image: &str,
    script: &str,
) {
    let common = [
        "service",
        "create",
        "--detach",
        "--no-resolve-image",
        "--constraint",
        "node.role==worker",
        "--network",
        "host",
        // Shells and `sleep` as the first process of a container ignore SIGTERM.
        "--stop-grace-period",
        "100ms",
        "--name",
        name,
    ];
    cluster.docker(&[&common, options, &[image, "sh", "-c", script]].concat());
}

/// The tasks of a service, as the manager lists them, each with its history.
pub(crate) fn tasks(cluster: &SwarmCluster, service: &str) -> Vec<String> {
    let format = "{{.ID}} {{.CurrentState}} {{.Error}}";
    let list = cluster.docker(&["service", "ps", "--no-trunc", "--format", format, service]);
    list.lines().map(str::to_owned).collect()
}

/// The ids of these tasks.
pub(crate) fn ids(tasks: &[String]) -> Vec<String> {
    let mut ids: Vec<_> = tasks
        .iter()
        .filter_map(|task| task.split(' ').next())
        .map(str::to_owned)
        .collect();
    ids.sort();
    ids
}

/// The tasks of Swarm that the daemon has: what people call them, and their states.
pub(crate) fn objects(worker: &SwarmWorker) -> Vec<(String, String)> {
    let mut shown: Vec<_> = worker
        .swarm_tasks()
        .into_iter()
        .map(|task| (task.name, task.state))
        .collect();
    shown.sort();
    shown
}

/// Waits until the node has no task of the swarm and no log of one. A task is listed until its container is removed;
/// its log is removed after that.
#[track_caller]
pub(crate) fn wait_all_removed(cluster: &SwarmCluster, worker: &SwarmWorker) {
    let logs = worker.root().state().join("swarm-logs");
    let has_logs = || fs::read_dir(&logs).is_ok_and(|mut entries| entries.next().is_some());
    cluster.wait_until("all tasks and their logs are removed", || {
        objects(worker).is_empty() && !has_logs()
    });
}

#[test]
fn service_runs_outlives_kills_of_the_daemon_and_is_removed() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    create(
        &cluster,
        "web",
        &["--replicas", "2"],
        &image,
        "echo served; exec sleep 1000",
    );
    let run = || {
        tasks(&cluster, "web")
            .iter()
            .filter(|task| task.contains(" Running "))
            .count()
            == 2
    };
    cluster.wait_until("both tasks run", run);
    let running = |name: &str| (name.to_owned(), "running".to_owned());
    assert_eq!(objects(&worker), [running("web.1"), running("web.2")]);
    assert_eq!(worker.output(&["logs", "web.1"]), "served\n");
    assert_eq!(
        exec(
            &worker,
            "web.2",
            "read word; echo $word; echo bad >&2; exit 7"
        ),
        (Some(7), "told\n".to_owned(), "bad\n".to_owned())
    );

    let before = ids(&tasks(&cluster, "web"));
    for _ in 0..3 {
        worker.daemon().kill9();
        worker.daemon().restart();
        cluster.wait_until("a session is open", || {
            worker.status()["manager"] == cluster.address(0)
        });
        assert_eq!(objects(&worker), [running("web.1"), running("web.2")]);
    }
    // A task that had been taken for lost would have a successor.
    assert_eq!(ids(&tasks(&cluster, "web")), before);

    cluster.docker(&["service", "scale", "--detach", "web=1"]);
    cluster.wait_until("one task is removed", || objects(&worker).len() == 1);
    let none = "0 B as downloaded were freed\n";
    assert_eq!(worker.output(&["images", "prune"]), none, "it is used");
    cluster.docker(&["service", "rm", "web"]);
    wait_all_removed(&cluster, &worker);
    assert_eq!(worker.output(&["images", "prune", "--older", "1d"]), none);
    let pruned = worker.output(&["images", "prune"]);
    assert!(pruned.starts_with("removed "), "{pruned}");
    assert_eq!(worker.output(&["images", "--output", "json"]).trim(), "[]");
}

/// Runs a script in a task with `told` as its input; returns its exit code and output.
fn exec(worker: &SwarmWorker, task: &str, script: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(binary())
        .args(["exec", "--socket"])
        .arg(worker.root().run().join("admin.sock"))
        .args(["-i", task, "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary exists");
    let mut stdin = child.stdin.take().expect("it was asked for");
    stdin.write_all(b"told\n").expect("it is read");
    drop(stdin);
    let done = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
    (done.status.code(), text(done.stdout), text(done.stderr))
}

#[test]
fn ends_of_tasks_are_told_in_the_words_of_docker() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    let once = ["--restart-condition", "none"];
    create(&cluster, "failing", &once, &image, "exit 3");
    create(
        &cluster,
        "job",
        &["--mode", "replicated-job", "--replicas", "2"],
        &image,
        "true",
    );
    let absent = image.replace("busybox:1", "absent:1");
    create(&cluster, "absent", &once, &absent, "true");
    let told = |service: &str, part: &str| {
        cluster.wait_until(part, || {
            tasks(&cluster, service)
                .iter()
                .any(|task| task.contains(part))
        });
    };
    told("failing", "task: non-zero exit (3)");
    told("job", " Complete ");
    told("absent", " Rejected ");
    // Managers keep completed tasks of a job for some time.
    worker.output(&["swarm", "leave"]);
    assert_eq!(objects(&worker), []);
    assert_eq!(worker.output(&["images", "--output", "json"]).trim(), "[]");
}

#[test]
fn volume_stays_after_its_service_until_an_operator_removes_it() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    let mount = ["--mount", "type=volume,source=data,target=/data"];
    create(
        &cluster,
        "web",
        &mount,
        &image,
        "echo kept >/data/file; exec sleep 1000",
    );
    cluster.wait_until("the task runs", || {
        tasks(&cluster, "web")
            .iter()
            .any(|task| task.contains(" Running "))
    });
    let list = worker.output(&["volume", "ls"]);
    let has_user = list.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], ["swarm", "data", _, task] if task.len() == 13)
    });
    assert!(has_user, "{list}");
    let refused = worker.refusal(&["volume", "rm", "data"]);
    assert!(
        refused.contains("volume \"data\" is used by task "),
        "{refused}"
    );
    cluster.docker(&["service", "rm", "web"]);
    wait_all_removed(&cluster, &worker);
    let file = worker.root().state().join("volumes/swarm/data/file");
    assert_eq!(fs::read_to_string(&file).expect("it is kept"), "kept\n");
    assert_eq!(worker.output(&["volume", "rm", "data"]), "removed data\n");
    assert!(!file.exists());
    let refused = worker.refusal(&["volume", "rm", "data"]);
    assert!(
        refused.contains("swarm has no volume \"data\""),
        "{refused}"
    );
}
