//! Starts whose answer never reached the agent, and starts that are followed by another one.

use std::time::Duration;

use serde_json::json;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::Agent;

use super::shell;

const SOON: Duration = Duration::from_secs(30);

const FOR_EVER: &str = "echo up $$; while :; do sleep 0.05; done";

#[test]
fn repeated_start_returns_the_same_task_after_exit_and_daemon_kill() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    let mut task = shell(&node, &agent, "echo up; sleep 1; exit 5");
    let first = agent.driver().start(&task.config).expect("it starts");
    assert_eq!(agent.driver().start(&task.config).expect("it runs"), first);
    assert_eq!(
        agent
            .driver()
            .wait(task.id(), SOON)
            .expect("it ends")
            .exit_code,
        5
    );
    assert_eq!(
        agent.driver().start(&task.config).expect("it has run"),
        first
    );
    node.daemon().kill9();
    node.daemon().spawn();
    node.daemon().wait_ready();
    assert!(
        agent.plugin().exit(SOON).is_some(),
        "a plugin ends with the daemon that was there"
    );
    let driver = agent.dispense();
    assert_eq!(driver.start(&task.config).expect("it has run"), first);
    assert_eq!(
        driver
            .wait(task.id(), SOON)
            .expect("it has ended")
            .exit_code,
        5
    );
    driver.destroy(task.id(), false).expect("it has ended");
    task.remove_cgroups();
    assert_eq!(task.stdout(), "up\n");
}

#[test]
fn new_start_replaces_a_start_unknown_to_the_agent() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let mut task = shell(&node, &agent, FOR_EVER);
    driver.start(&task.config).expect("it starts");
    let undelivered = task.id().to_owned();
    task.assign_new_id();
    driver.start(&task.config).expect("it starts");
    let gone = driver
        .inspect(&undelivered)
        .expect_err("the other start has taken its place");
    assert!(
        gone.message().starts_with("task not found for given id"),
        "{gone}"
    );
    driver.inspect(task.id()).expect("it runs");
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    // One process of the first would keep the group.
    task.remove_cgroups();
    drop(task);
    node.assert_clean();
}
