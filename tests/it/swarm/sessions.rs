//! Sessions: reports to managers, and their assignments.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

use switchyard_proto::docker::swarmkit::v1::TaskState;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use switchyard_swarm::{Change, Error};
use switchyard_tests::containerd_proxy::ContainerdProxy;
use switchyard_tests::external_containerd::ExternalContainerd;
use switchyard_tests::host::eventually;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::agent::{TestAgent, join_worker, state};
use switchyard_tests::swarm::node::facts;
use switchyard_tests::swarm::worker::SwarmWorker;

use super::resources::running;
use super::services::{create, ids, registry, tasks as listed, wait_all_removed};
use super::wait_until_ready;

/// Time by which a recovery is delayed: more than three heartbeats of 5 s, after which managers take a node for down by
/// default, and less than the limit of the call to containerd that is held.
const DELAY: Duration = Duration::from_secs(20);
/// Time for a daemon to begin its recovery.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);

/// The ids of the tasks that were assigned.
fn tasks(agent: &TestAgent) -> BTreeSet<String> {
    let changes = agent.changes();
    let ids = changes.iter().filter_map(|change| match change {
        Change::Task(task) => Some(task.id.clone()),
        Change::Secret(_)
        | Change::Config(_)
        | Change::Volume(_)
        | Change::TaskGone(_)
        | Change::VolumeGone(_)
        | Change::SecretGone(_)
        | Change::ConfigGone(_) => None,
    });
    ids.collect()
}

/// The words that make a service on workers whose image is never asked for.
fn service<'a>(name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let words = [
        "service",
        "create",
        "--detach",
        "--no-resolve-image",
        "--constraint",
        "node.role==worker",
    ];
    [
        &words[..],
        &["--name", name, "--restart-condition", "none"],
        more,
        &["busybox:1", "true"],
    ]
    .concat()
}

#[test]
fn new_description_reaches_managers_within_the_same_session() {
    let cluster = SwarmCluster::new();
    let dir = state(&cluster, "a");
    let identity = join_worker(&cluster, &dir, Availability::Drain);
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    wait_until_ready(&cluster, &agent);
    let inspect = || {
        let format = "{{.Description.Engine.Labels}} {{.Description.Resources.NanoCPUs}}";
        cluster
            .docker(&["node", "inspect", "--format", format, identity.node()])
            .trim()
            .to_owned()
    };
    assert_eq!(inspect(), "map[] 1000000000");
    agent.describe(|facts| {
        facts.labels.insert("gpu".to_owned(), "yes".to_owned());
        facts.nano_cpus = 3_000_000_000;
        facts.named.push(("gpu".to_owned(), "GPU-0".to_owned()));
    });
    cluster.wait_until("the labels are there", || {
        inspect() == "map[gpu:yes] 3000000000"
    });
    assert_eq!(agent.report().sessions, 1);
}

#[test]
fn only_what_the_node_can_run_is_assigned_and_statuses_arrive() {
    let cluster = SwarmCluster::new();
    let dir = state(&cluster, "a");
    join_worker(&cluster, &dir, Availability::Active);
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    wait_until_ready(&cluster, &agent);
    cluster.docker(&["network", "create", "--driver", "overlay", "over"]);
    cluster.docker(&service("overlay", &["--network", "over"]));
    cluster.docker(&service("ingress", &["--publish", "80:80"]));
    cluster.docker(&service(
        "syslog",
        &["--network", "host", "--log-driver", "syslog"],
    ));
    fs::write(cluster.dir().join("secret"), "hunter2").expect("the directory is ours");
    let path = cluster.dir().join("secret").display().to_string();
    cluster.docker(&["secret", "create", "password", &path]);
    cluster.docker(&service(
        "host",
        &["--network", "host", "--secret", "password"],
    ));
    cluster.wait_until("a task is assigned", || !tasks(&agent).is_empty());

    let changes = agent.changes();
    let secret = changes
        .iter()
        .position(|change| matches!(change, Change::Secret(_)))
        .expect("it has a secret");
    let task = changes
        .iter()
        .position(|change| matches!(change, Change::Task(_)))
        .expect("there is a task");
    assert!(secret < task, "{changes:?}");
    assert!(!format!("{changes:?}").contains("hunter2"));
    for name in ["overlay", "ingress", "syslog"] {
        let rows = cluster.docker(&[
            "service",
            "ps",
            "--no-trunc",
            "--format",
            "{{.CurrentState}} {{.Error}}",
            name,
        ]);
        assert!(
            rows.contains("Pending") && rows.contains("missing plugin"),
            "{name}: {rows}"
        );
    }
    let [id] = &tasks(&agent).into_iter().collect::<Vec<_>>()[..] else {
        panic!("one task fits")
    };
    let row = || {
        cluster.docker(&[
            "service",
            "ps",
            "--no-trunc",
            "--format",
            "{{.CurrentState}} {{.Error}}",
            "host",
        ])
    };
    agent.report_status(id, TaskState::Running, "started", "");
    cluster.wait_until("it runs", || row().starts_with("Running"));
    // A task of nobody does not keep the others from the managers.
    agent.report_status("nobodys", TaskState::Failed, "finished", "");
    agent.report_status(id, TaskState::Failed, "finished", "task: non-zero exit (3)");
    cluster.wait_until("it has failed", || {
        row().contains("task: non-zero exit (3)")
    });
    cluster.docker(&["service", "rm", "host"]);
    let is_gone = |changes: &[Change]| {
        changes
            .iter()
            .any(|change| matches!(change, Change::TaskGone(gone) if gone == id))
            && changes
                .iter()
                .any(|change| matches!(change, Change::SecretGone(_)))
    };
    cluster.wait_until("the task and its secret are gone", || {
        is_gone(&agent.changes())
    });
    assert_eq!((agent.report().sessions, agent.complete_messages()), (1, 1));
}

#[test]
fn node_that_is_removed_ends_and_does_not_come_back() {
    let cluster = SwarmCluster::new();
    let dir = state(&cluster, "a");
    let identity = join_worker(&cluster, &dir, Availability::Drain);
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    wait_until_ready(&cluster, &agent);
    cluster.docker(&["node", "rm", "--force", identity.node()]);
    let ended = agent.wait().expect_err("it was removed");
    assert!(
        matches!(&ended, Error::Removed { node } if node == identity.node()),
        "{ended:?}"
    );
    assert!(
        ended.report().contains("switchyard swarm leave"),
        "{}",
        ended.report()
    );
    let again = TestAgent::start(&cluster, &dir, facts("worker-a")).wait();
    assert!(matches!(again, Err(Error::Removed { .. })), "{again:?}");
    assert!(cluster.workers().is_empty());
}

#[test]
fn two_nodes_with_one_identity_are_told_of_each_other() {
    let cluster = SwarmCluster::new();
    let dir = state(&cluster, "a");
    join_worker(&cluster, &dir, Availability::Drain);
    let first = TestAgent::start(&cluster, &dir, facts("worker-a"));
    wait_until_ready(&cluster, &first);
    let second = TestAgent::start(&cluster, &dir, facts("worker-a"));
    cluster.wait_until("one of them is notified", || {
        first.report().is_duplicate || second.report().is_duplicate
    });
    let told = [first.report(), second.report()]
        .into_iter()
        .find(|report| report.is_duplicate);
    let problems = told.map(|report| report.problems()).unwrap_or_default();
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("a clone of this machine")),
        "{problems:?}"
    );
}

#[test]
fn recovery_of_20_s_moves_no_task_where_the_heartbeats_of_managers_are_longer() {
    // Outlives the daemon, whose last calls go through the proxy.
    let behind: RefCell<Option<(ExternalContainerd, ContainerdProxy)>> = RefCell::new(None);
    let cluster = SwarmCluster::new();
    // Without it the node is down when it is back, and its tasks have successors.
    cluster.docker(&["swarm", "update", "--dispatcher-heartbeat", "20s"]);
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, |root| {
        let socket = root.run().join("containerd/containerd.sock");
        let front = root.run().join("front.sock");
        let upstream = ExternalContainerd::start(root, &socket);
        let proxy = ContainerdProxy::start(&front, &socket);
        *behind.borrow_mut() = Some((upstream, proxy));
        format!("[containerd]\nmode = \"external\"\naddress = {front:?}\n")
    });
    worker.join(&cluster, &cluster.token("worker"));
    create(
        &cluster,
        "web",
        &["--replicas", "2"],
        &image,
        "exec sleep 1000",
    );
    cluster.wait_until("both tasks run", || running(&cluster, "web") == 2);
    let mut before = worker.swarm_tasks();
    before.sort();
    let of_manager = ids(&listed(&cluster, "web"));

    worker.daemon().terminate();
    let held = behind
        .borrow()
        .as_ref()
        .expect("it was started with the worker")
        .1
        .hold("Containers/List");
    worker.daemon().spawn();
    let has_begun = eventually(BEGIN_LIMIT, || held.has_call());
    assert!(has_begun, "{}", worker.daemon().tail());
    thread::sleep(DELAY);
    let nodes = cluster.workers();
    assert!(
        nodes.iter().all(|line| line.contains(" Ready ")),
        "{nodes:?}"
    );
    assert!(
        !worker.status()["manager"].is_string(),
        "{}",
        worker.status()
    );
    drop(held);
    worker.daemon().wait_ready();
    cluster.wait_until("a session is open", || {
        worker.status()["manager"] == cluster.address(0)
    });
    cluster.wait_until("both tasks run", || running(&cluster, "web") == 2);
    assert_eq!(ids(&listed(&cluster, "web")), of_manager);
    let mut after = worker.swarm_tasks();
    after.sort();
    assert_eq!(after, before);
    cluster.docker(&["service", "rm", "web"]);
    wait_all_removed(&cluster, &worker);
}
