//! Tasks of Nomad with a host port, a device and an exclusive processor: their agent recovers them after each replacement of the
//! program, from which its plugins are started too.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::host::{eventually, free_port};
use switchyard_tests::node::{Containerd, TestNode};
use switchyard_tests::nomad::{Agent, AgentPaths, TaskRunner, TaskSetup};
use switchyard_tests::versions;

use super::super::assert_unbroken;
use super::super::unreadable::{
    assert_refused, exclusive_owners, pinned_task, two_devices, with_device, with_port,
};
use super::{BEFORE, LIMIT, following, install};

/// Counts until a file appears in its directory, and then exits with 5.
const COUNT: &str =
    "n=0; while [ ! -e /local/end ]; do n=$((n+1)); echo $n; sleep 0.02; done; exit 5";

/// The process of the only task of Nomad.
fn pid(node: &TestNode) -> Value {
    let (_, body) = node.daemon().get("/v1/objects?owner=nomad");
    let objects: Value = serde_json::from_str(&body).expect("it is JSON");
    objects["tasks"][0]["pid"].clone()
}

/// Fails unless the task runs as this process, agents can do with it what they do, and what it has is refused to others.
#[track_caller]
fn assert_works(node: &TestNode, agent: &Agent, task: &TaskSetup, of: (&Value, u16), when: &str) {
    let (process, port) = of;
    let seen = task.stdout().len();
    task.wait_stdout(|text| text.len() > seen + 20);
    assert_unbroken(&task.stdout(), when);
    assert_eq!(pid(node), *process, "{when}");
    let driver = agent.driver();
    let answer = driver.exec(task.id(), &["echo", "reached"], LIMIT);
    assert_eq!(answer.expect("it runs").stdout, "reached\n", "{when}");
    let mut stats = driver
        .stats(task.id(), Duration::from_millis(200))
        .expect("it is opened");
    let usage = stats.next(LIMIT).expect("the task runs");
    let usage = usage.expect("it is no error").stats;
    assert_eq!(usage.expect("an agent looks at it").id, task.id(), "{when}");

    assert_eq!(exclusive_owners(node), ["nomad"], "{when}");
    let mut other = node.pod_config("other");
    with_port(&mut other, port);
    let taken = format!("{port}/tcp");
    assert_refused(node.cri().run_pod(&other), &[&taken, "nomad"]);
    let thief = node.pod("thief");
    let refused = thief.try_create(&with_device(node, "main", "acme0"));
    assert_refused(refused, &["is held by", "nomad"]);
    // A task from its start to its end under this version.
    let config = json!({ "image": node.image(), "command": "true", "network_mode": "host" });
    let mut short = TaskSetup::new(node.root(), agent, "short", &config);
    driver.start(&short.config).expect("it starts");
    let ended = driver.wait(short.id(), LIMIT).expect("it ends");
    assert_eq!(ended.exit_code, 0, "{when}");
    driver.destroy(short.id(), true).expect("it can be removed");
    short.remove_cgroups();
}

#[track_caller]
fn tasks_go_through_versions(containerd: Containerd) {
    let node = TestNode::start_version(&versions::former(), containerd, two_devices);
    let place = AgentPaths {
        program: node.daemon().program(),
        ..AgentPaths::from(node.root())
    };
    let agent = Arc::new(Agent::start(place, &json!({})));
    let port = free_port();
    let mut task = pinned_task(&node, &agent, port, COUNT);
    let device = node.root().path().join("dev/acme0");
    let config = json!({
        "image": node.image(), "command": "sh", "args": ["-c", COUNT], "network_mode": "host", "ports": ["http"],
        "devices": [{ "host_path": device.display().to_string() }],
    });
    task.configure(&agent, &config);
    let started = agent.driver().start(&task.config).expect("it starts");
    let process = pid(&node);
    assert!(process.is_u64(), "{process}");
    let of = (&process, port);
    let runner = TaskRunner::start(&agent, started.handle.expect("it has a handle"));
    assert_works(&node, &agent, &task, of, BEFORE);
    for ((program, when), times) in following().into_iter().zip(1..) {
        // Until then a plugin of the present version outlives its daemon.
        runner.wait_recovery_over();
        install(&node, &program);
        runner.wait_recovered(times);
        assert_works(&node, &agent, &task, of, when);
    }
    std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
    let ended = runner.join();
    assert_eq!((ended.result.exit_code, ended.recovered), (5, 2));
    assert_unbroken(&task.stdout(), "at the end");
    let driver = agent.driver();
    driver.destroy(task.id(), true).expect("it can be removed");
    task.remove_cgroups();
    assert!(exclusive_owners(&node).is_empty());
    let next = node.pod_with("next", |config| with_port(config, port));
    // The device is kept for a restart of the task, for a second.
    let is_free = || {
        next.try_create(&with_device(&node, "main", "acme0"))
            .is_ok()
    };
    assert!(
        eventually(LIMIT, is_free),
        "the device is not given out again"
    );
}

#[test]
fn tasks_of_nomad_are_recovered_through_an_upgrade_and_a_rollback() {
    tasks_go_through_versions(Containerd::Managed);
}

#[test]
fn tasks_of_nomad_are_recovered_through_an_upgrade_and_a_rollback_beside_an_external_containerd() {
    tasks_go_through_versions(Containerd::External);
}
