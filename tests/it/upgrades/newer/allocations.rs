//! A task of Nomad that the newer version has started, and whose agent stays: the agent takes it for running under this one,
//! which does nothing with it, and neither ends it nor starts it a second time.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::host::free_port;
use switchyard_tests::node::{Containerd, TestNode};
use switchyard_tests::nomad::{Agent, TaskRunner, TaskSetup};

use super::super::assert_unbroken;
use super::super::unreadable::{assert_refused, pinned_task};
use super::{install_newer, roll_back, start};

/// Limit for an answer on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// As often an agent tries to kill a task.
const KILLS: usize = 5;

/// Counts until a file appears in its directory, and then exits with 5. A second instance would begin again.
const COUNT: &str =
    "n=0; while [ ! -e /local/end ]; do n=$((n+1)); echo $n; sleep 0.02; done; exit 5";

/// The processes of the tasks of Nomad that the daemon knows.
fn processes(node: &TestNode) -> Vec<Value> {
    let (_, body) = node.daemon().get("/v1/objects?owner=nomad");
    let objects: Value = serde_json::from_str(&body).expect("it is JSON");
    let tasks = objects["tasks"].as_array().expect("there is a list");
    tasks.iter().map(|task| task["pid"].clone()).collect()
}

/// Fails unless the task runs as far as its agent is concerned, which can do nothing with it and start no other one.
#[track_caller]
fn assert_held(agent: &Agent, task: &mut TaskSetup) {
    let driver = agent.driver();
    let answer = driver.inspect(task.id()).expect("it is known");
    let status = answer.task.expect("an agent looks at the task");
    assert_eq!(status.state(), nomad::TaskState::Running);
    let words = ["cannot read", "docs/alerts.md"];
    for _ in 0..KILLS {
        assert_refused(driver.stop(task.id(), Duration::ZERO, ""), &words);
    }
    assert_refused(driver.destroy(task.id(), true), &words);
    assert_refused(driver.signal(task.id(), "SIGHUP"), &words);
    assert_refused(driver.exec(task.id(), &["true"], LIMIT), &words);
    let first = task.config.id.clone();
    task.assign_new_id();
    assert_refused(driver.start(&task.config), &words);
    task.config.id = first;
    let seen = task.stdout().len();
    task.wait_stdout(|text| text.len() > seen + 20);
}

#[test]
fn task_whose_agent_stays_is_recovered_under_this_version_and_under_the_newer_one_again() {
    let node = start(Containerd::Managed);
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    let mut task = pinned_task(&node, &agent, free_port(), COUNT);
    let started = agent.driver().start(&task.config).expect("it starts");
    let runner = TaskRunner::start(&agent, started.handle.expect("it has a handle"));
    let before = processes(&node);
    assert_eq!(before.len(), 1, "{before:?}");

    roll_back(&node);
    runner.wait_recovered(1);
    assert_eq!(processes(&node), Vec::<Value>::new());
    assert_held(&agent, &mut task);
    runner.wait_recovery_over();

    install_newer(&node);
    runner.wait_recovered(2);
    assert_eq!(processes(&node), before);
    std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
    let ended = runner.join();
    assert_eq!((ended.result.exit_code, ended.recovered), (5, 2));
    assert_unbroken(&task.stdout(), "at the end");
    let destroyed = agent.driver().destroy(task.id(), true);
    destroyed.expect("it can be removed");
    task.remove_cgroups();
}
