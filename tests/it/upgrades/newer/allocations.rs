//! A task of Nomad that the newer version has started, and whose agent stays: under this one it is neither recovered nor
//! started a second time.

use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::host::free_port;
use switchyard_tests::node::{Containerd, TestNode};
use switchyard_tests::nomad::{Agent, BlockingDriver};

use super::super::assert_unbroken;
use super::super::unreadable::{assert_refused, pinned_task};
use super::{install_newer, roll_back, start};

/// Limit for an answer on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

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

/// The driver of the plugin that an agent starts after the daemon, and with it the last plugin, has ended.
#[track_caller]
fn next_driver(agent: &Agent) -> BlockingDriver {
    let ended = agent.plugin().exit(LIMIT);
    assert!(ended.is_some(), "the plugin outlives its daemon");
    agent.dispense()
}

#[test]
fn task_is_neither_recovered_nor_started_again_until_the_newer_version_is_back() {
    let node = start(Containerd::Managed);
    let agent = Agent::start(node.root(), &json!({}));
    let mut task = pinned_task(&node, &agent, free_port(), COUNT);
    let started = agent.driver().start(&task.config).expect("it starts");
    let handle = started.handle.expect("it has a handle");
    let before = processes(&node);
    assert_eq!(before.len(), 1, "{before:?}");

    roll_back(&node);
    let driver = next_driver(&agent);
    let words = ["cannot read", "docs/alerts.md"];
    assert_refused(driver.recover(&handle), &words);
    let first = task.config.id.clone();
    task.assign_new_id();
    assert_refused(driver.start(&task.config), &words);
    task.config.id = first;
    assert_eq!(processes(&node), Vec::<Value>::new());
    let seen = task.stdout().len();
    task.wait_stdout(|text| text.len() > seen + 20);

    install_newer(&node);
    let driver = next_driver(&agent);
    driver.recover(&handle).expect("it is there again");
    assert_eq!(processes(&node), before);
    std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
    let ended = driver.wait(task.id(), LIMIT).expect("it ends");
    assert_eq!(ended.exit_code, 5);
    assert_unbroken(&task.stdout(), "at the end");
    driver.destroy(task.id(), true).expect("it can be removed");
    task.remove_cgroups();
}
