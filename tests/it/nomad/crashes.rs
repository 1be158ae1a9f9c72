//! Kills of agents, plugins and daemons while tasks run on.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskRunner};

use super::shell;

/// A task that counts until a file appears in its directory, and then exits with 5.
const COUNTS: &str =
    "n=0; while [ ! -e /local/end ]; do n=$((n+1)); echo $n; sleep 0.02; done; exit 5";

fn is_unbroken(output: &str) -> bool {
    let numbers: Vec<u64> = output
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    !numbers.is_empty()
        && numbers
            .iter()
            .zip(1..)
            .all(|(number, expected)| *number == expected)
}

#[test]
fn task_survives_daemon_kills_and_waiters_get_its_exit() {
    let node = TestNode::start();
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    let mut task = shell(&node, &agent, COUNTS);
    let started = agent.driver().start(&task.config).expect("it starts");
    let handle = started.handle.expect("it has a handle");
    let runner = TaskRunner::start(&agent, handle);
    for times in 1..=2 {
        // Until then a plugin outlives its daemon.
        runner.wait_recovery_over();
        let seen = task.stdout().len();
        task.wait_stdout(|text| text.len() > seen + 10);
        node.daemon().kill9();
        node.daemon().spawn();
        // A kill before the agent has noticed this one is the same to it.
        runner.wait_recovered(times);
    }
    let seen = task.stdout().len();
    task.wait_stdout(|text| text.len() > seen + 10);
    std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
    let ended = runner.join();
    assert_eq!((ended.result.exit_code, ended.recovered), (5, 2));
    assert!(
        is_unbroken(&task.stdout()),
        "something is missing or twice: {}",
        task.stdout()
    );
    agent
        .driver()
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
}

#[test]
fn exit_code_is_known_after_exit_while_the_daemon_was_down() {
    let node = TestNode::start();
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    let mut task = shell(&node, &agent, COUNTS);
    let handle = agent
        .driver()
        .start(&task.config)
        .expect("it starts")
        .handle
        .expect("it has a handle");
    let runner = TaskRunner::start(&agent, handle);
    task.wait_stdout(|text| text.len() > 10);
    node.daemon().kill9();
    std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
    let seen = task.stdout();
    task.wait_stdout(|text| text.len() >= seen.len());
    node.daemon().spawn();
    node.daemon().wait_ready();
    assert_eq!(runner.join().result.exit_code, 5);
    agent
        .driver()
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
}

#[test]
fn killed_agent_reattaches_and_restarted_agent_recovers() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let mut task = shell(&node, &agent, COUNTS);
    let handle = agent
        .driver()
        .start(&task.config)
        .expect("it starts")
        .handle
        .expect("it has a handle");
    task.wait_stdout(|text| text.len() > 10);

    let (parts, record) = agent.crash();
    let agent = Agent::reattach(parts, record);
    agent.driver().recover(&handle).expect("it is there");
    agent
        .driver()
        .recover(&handle)
        .expect("it is there, however often one asks");

    agent.stop();
    let agent = Agent::start(node.root(), &json!({}));
    agent.driver().recover(&handle).expect("it is there");

    // The plugin alone dies.
    let pid = i32::try_from(agent.plugin().pid()).expect("Linux keeps process ids below 2^22");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
    assert!(agent.plugin().exit(Duration::from_secs(5)).is_some());
    let driver = agent.dispense();
    driver.recover(&handle).expect("it is there");

    std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
    assert_eq!(
        driver
            .wait(task.id(), Duration::from_secs(60))
            .expect("it ends")
            .exit_code,
        5
    );
    assert!(
        is_unbroken(&task.stdout()),
        "something is missing or twice: {}",
        task.stdout()
    );
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    let unknown = driver.recover(&handle).expect_err("it is gone");
    assert!(
        unknown.message().contains("task not found for given id"),
        "{unknown}"
    );
    task.remove_cgroups();
}
