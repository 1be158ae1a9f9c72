//! Streams that an agent can watch besides tasks' states: resource usage, events, the driver's health.

use std::time::Duration;

use serde_json::json;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::Agent;

use super::shell;

/// Time for an expected message on a busy machine.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn task_stats_stream_has_agent_fields_and_ends_with_the_task() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let mut task = shell(&node, &agent, "echo up; while :; do :; done");
    driver.start(&task.config).expect("it starts");
    task.wait_stdout(|text| text.contains("up"));
    let mut stats = driver
        .stats(task.id(), Duration::from_millis(500))
        .expect("it is opened");
    let mut last = None;
    for _ in 0..4 {
        let answer = stats
            .next(SOON)
            .expect("the task runs")
            .expect("it is no error");
        let usage = answer.stats.expect("an agent looks at it");
        assert_eq!(usage.id, task.id());
        assert!(usage.timestamp.is_some());
        let usage = usage.agg_resource_usage.expect("an agent looks at it");
        assert!(usage.memory.is_some());
        let cpu = usage.cpu.as_ref().expect("an agent looks at it");
        assert!(cpu.percent > 0.0, "also the first: {cpu:?}");
        last = Some(usage);
    }
    let usage = last.expect("some came");
    let cpu = usage.cpu.unwrap_or_default();
    let memory = usage.memory.unwrap_or_default();
    // Two cores of 2500 MHz: a hundred percent are one of them.
    assert!(cpu.percent > 1.0 && cpu.percent <= 250.0, "{cpu:?}");
    let expected = cpu.percent / 100.0 * 2500.0;
    assert!(
        (cpu.total_ticks - expected).abs() <= expected * 0.02 + 1.0,
        "{cpu:?}"
    );
    assert!(
        cpu.measured_fields()
            .any(|field| field == nomad::cpu_usage::Fields::Percent),
        "{cpu:?}"
    );
    assert!(
        memory.rss > 0 && !memory.measured_fields.is_empty(),
        "{memory:?}"
    );
    driver
        .stop(task.id(), Duration::ZERO, "")
        .expect("it stops");
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    let mut end = stats.next(SOON);
    while let Some(Ok(_)) = end {
        end = stats.next(SOON);
    }
    assert!(
        end.is_none(),
        "the stream of a task that is gone ends without an error: {end:?}"
    );
    task.remove_cgroups();
}

#[test]
fn image_pull_emits_a_task_event() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let mut events = driver.events().expect("it is opened");
    // The stream is open once the daemon has registered it: earlier events are not sent again.
    assert!(events.try_next(Duration::from_millis(300)).is_none());
    let mut task = shell(&node, &agent, "true");
    driver.start(&task.config).expect("it starts");
    let event = events
        .next(SOON)
        .expect("it does not end")
        .expect("it is no error");
    assert_eq!(
        (event.task_id.as_str(), event.alloc_id.as_str()),
        (task.id(), task.config.alloc_id.as_str())
    );
    assert!(
        event.timestamp.is_some() && event.task_name == "task" && !event.message.is_empty(),
        "{event:?}"
    );
    assert!(
        event
            .annotations
            .get("image")
            .is_some_and(|image| image.contains("busybox")),
        "{event:?}"
    );
    driver.wait(task.id(), SOON).expect("it ends");
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
}
