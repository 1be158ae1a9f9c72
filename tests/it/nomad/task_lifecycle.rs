//! The life cycle of a task: started, inspected, signalled, stopped, destroyed.

use std::time::Duration;

use serde_json::json;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::driver_client::DriverClient;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::Agent;

use super::shell;

/// Maximum running time of a test's task.
const RUN: Duration = Duration::from_secs(60);

#[test]
fn task_output_and_exit_code_are_reported_and_nothing_is_left() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let mut task = shell(&node, &agent, "echo said; echo wrong >&2; exit 7");
    driver.start(&task.config).expect("it starts");
    let result = driver.wait(task.id(), RUN).expect("it ends");
    assert_eq!(
        (result.exit_code, result.signal, result.oom_killed),
        (7, 0, false)
    );
    // A later call gets the same result.
    assert_eq!(
        driver.wait(task.id(), RUN).expect("it has ended").exit_code,
        7
    );
    task.wait_stdout(|text| text == "said\n");
    assert_eq!(task.stderr(), "wrong\n");
    let inspected = driver.inspect(task.id()).expect("it is there");
    assert_eq!(
        inspected.task.map(|task| task.state()),
        Some(nomad::TaskState::Exited)
    );
    driver
        .destroy(task.id(), false)
        .expect("it can be destroyed");
    driver
        .destroy(task.id(), true)
        .expect("what is gone is destroyed");
    task.remove_cgroups();
    drop(task);
    agent.stop();
}

#[test]
fn output_of_short_tasks_is_never_lost() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    for round in 0..5 {
        let mut task = shell(&node, &agent, "echo short");
        driver
            .start(&task.config)
            .unwrap_or_else(|status| panic!("round {round}: {status}"));
        assert_eq!(driver.wait(task.id(), RUN).expect("it ends").exit_code, 0);
        driver
            .destroy(task.id(), true)
            .expect("it can be destroyed");
        task.wait_stdout(|text| text == "short\n");
        task.remove_cgroups();
    }
}

#[test]
fn stop_sends_its_signal_then_kills() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let heeds = "trap 'echo heard; exit 3' USR1; echo ready; while :; do sleep 0.05; done";
    let mut task = shell(&node, &agent, heeds);
    driver.start(&task.config).expect("it starts");
    task.wait_stdout(|text| text.contains("ready"));
    driver
        .stop(task.id(), Duration::from_secs(30), "SIGUSR1")
        .expect("it stops");
    assert_eq!(
        driver.wait(task.id(), RUN).expect("it has ended").exit_code,
        3
    );
    task.wait_stdout(|text| text.contains("heard"));
    task.end(&driver);

    let deaf = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let mut task = shell(&node, &agent, deaf);
    driver.start(&task.config).expect("it starts");
    task.wait_stdout(|text| text.contains("ready"));
    let refused = driver.destroy(task.id(), false).expect_err("it runs");
    assert!(
        refused.message().contains("must call StopTask"),
        "{refused}"
    );
    driver
        .stop(task.id(), Duration::from_millis(200), "")
        .expect("it is killed");
    let result = driver.wait(task.id(), RUN).expect("it has ended");
    assert!(result.exit_code == 137 || result.signal == 9, "{result:?}");
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
    // Nothing of this is known any more, which is no error.
    driver
        .stop(task.id(), Duration::ZERO, "")
        .expect("what is gone is stopped");
    driver
        .destroy(task.id(), true)
        .expect("what is gone is destroyed");
    driver.inspect(task.id()).expect_err("it is gone");
}

#[test]
fn many_waiters_get_the_exit_and_block_no_other_call() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let mut task = shell(&node, &agent, "echo up; exec sleep 1000");
    driver.start(&task.config).expect("it starts");
    task.wait_stdout(|text| text.contains("up"));
    // More concurrent streams on one connection than gRPC servers allow by default.
    let channel = agent.plugin().channel();
    let id = task.id().to_owned();
    let waiting = agent.runtime().spawn(async move {
        futures::future::join_all((0..500).map(|_| {
            let mut client = DriverClient::new(channel.clone());
            let task_id = id.clone();
            async move { client.wait_task(nomad::WaitTaskRequest { task_id }).await }
        }))
        .await
    });
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(
        driver
            .exec(task.id(), &["echo", "x"], RUN)
            .expect("it runs")
            .stdout,
        "x\n"
    );
    driver
        .stop(task.id(), Duration::ZERO, "")
        .expect("it stops");
    let exits = agent
        .runtime()
        .block_on(async { tokio::time::timeout(RUN, waiting).await });
    for answer in exits
        .expect("they are reported soon")
        .expect("it does not panic")
    {
        assert_eq!(
            answer
                .expect("it is reported")
                .into_inner()
                .result
                .map(|result| result.exit_code),
            Some(137)
        );
    }
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
}

#[test]
fn fifty_tasks_start_concurrently() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..50)
            .map(|number| {
                let node = &node;
                let agent = &agent;
                scope.spawn(move || {
                    let mut task = shell(node, agent, &format!("echo task {number}"));
                    let driver = agent.driver();
                    driver.start(&task.config).expect("it starts");
                    assert_eq!(driver.wait(task.id(), RUN).expect("it ends").exit_code, 0);
                    driver
                        .destroy(task.id(), true)
                        .expect("it can be destroyed");
                    task.wait_stdout(|text| text == format!("task {number}\n"));
                    task.remove_cgroups();
                })
            })
            .collect();
        for task in tasks {
            task.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

#[test]
fn task_of_the_longest_names_runs_and_leaves_nothing() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({ "extra_labels": ["*"] }));
    let driver = agent.driver();
    let mut task = shell(&node, &agent, "hostname; exec sleep 1000");
    let long = |letter: &str| letter.repeat(255);
    let name = long("t");
    for part in ["local", "secrets"] {
        std::fs::create_dir_all(task.alloc_dir().join(&name).join(part))
            .expect("the root can be written");
    }
    let config = &mut task.config;
    config.id = format!("{}/{name}/0123abcd", config.alloc_id);
    config.name = name;
    (config.job_id, config.job_name) = (long("j"), long("k"));
    (config.parent_job_id, config.task_group_name) = (long("p"), long("g"));
    (config.namespace, config.node_name) = (long("n"), long("m"));
    driver
        .start(&task.config)
        .expect("an agent takes such names");
    task.wait_stdout(|text| text.ends_with('\n'));
    let (_, page) = node.daemon().get("/metrics");
    assert!(page.contains("switchyard_"), "{page}");
    task.end(&driver);
    drop(task);
    node.assert_clean();
}
