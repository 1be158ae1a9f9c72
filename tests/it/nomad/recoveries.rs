//! Kills of daemons while an agent recovers its tasks. It tries once for each task, so the plugin that it asks outlives
//! them.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::containerd_proxy::ContainerdProxy;
use switchyard_tests::external_containerd::ExternalContainerd;
use switchyard_tests::host::eventually;
use switchyard_tests::http;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::plugin::hclog;
use switchyard_tests::nomad::{Agent, TaskRunner, TaskSetup};

use super::shell;

/// Limit for a start of a daemon or a plugin on a busy machine.
const LIMIT: Duration = Duration::from_secs(40);

/// Prints its process id, and exits with 5 when a file appears in its directory.
const ONCE: &str = "echo $$; while [ ! -e /local/end ]; do sleep 0.02; done; exit 5";

/// The processes of the tasks of Nomad, sorted.
fn processes(node: &TestNode) -> Vec<u64> {
    let (_, body) = node.daemon().get("/v1/objects?owner=nomad");
    let objects: Value = serde_json::from_str(&body).expect("it is JSON");
    let tasks = objects["tasks"].as_array().expect("there is a list");
    let mut pids: Vec<u64> = tasks
        .iter()
        .map(|task| task["pid"].as_u64().expect("it runs"))
        .collect();
    pids.sort_unstable();
    pids
}

/// Returns whether a plugin has a session with the daemon, which may not have recovered.
fn has_session(node: &TestNode) -> bool {
    http::get_unix(&node.root().run().join("admin.sock"), "/metrics").is_ok_and(|answer| {
        let mut lines = answer.text();
        lines.push('\n');
        lines.contains("\nswitchyard_nomad_launchers 1\n")
    })
}

#[test]
fn recovery_that_kills_cut_off_three_times_is_answered_by_the_plugin_that_was_asked() {
    // Both outlive the node.
    let behind = RefCell::new(None);
    let node = TestNode::start_configured(|root| {
        let socket = root.run().join("containerd/containerd.sock");
        let front = root.run().join("front.sock");
        let upstream = ExternalContainerd::start(root, &socket);
        let proxy = ContainerdProxy::start(&front, &socket);
        *behind.borrow_mut() = Some((upstream, proxy));
        format!("[containerd]\nmode = \"external\"\naddress = {front:?}\n")
    });
    let behind = behind.borrow();
    let (_, front) = behind.as_ref().expect("it was started with the node");
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    let begin = || {
        let task = shell(&node, &agent, ONCE);
        let started = agent.driver().start(&task.config).expect("it starts");
        let handle = started.handle.expect("it has a handle");
        let runner = TaskRunner::start(&agent, handle);
        (task, runner)
    };
    let tasks: Vec<(TaskSetup, TaskRunner)> = (0..3).map(|_| begin()).collect();
    let before = processes(&node);
    assert_eq!(before.len(), 3, "{before:?}");

    let first = agent.plugin().pid();
    node.daemon().kill9();
    let is_next = || agent.plugin().pid() != first;
    assert!(eventually(LIMIT, is_next), "the agent starts no plugin");
    let asked = agent.plugin().pid();
    for _ in 0..3 {
        let held = front.hold("Containers/List");
        node.daemon().spawn();
        let is_amid = eventually(LIMIT, || held.has_call() && has_session(&node));
        assert!(is_amid, "{}", node.daemon().tail());
        node.daemon().kill9();
    }
    node.daemon().spawn();
    node.daemon().wait_ready();
    for (_, runner) in &tasks {
        runner.wait_recovered(1);
    }
    assert_eq!(agent.plugin().pid(), asked);
    let lines = hclog(&agent.plugin().stderr());
    let outlived = lines.iter().filter(|line| {
        let message = line["@message"].as_str().unwrap_or_default();
        message.contains("this plugin continues with the next daemon")
    });
    assert_eq!(outlived.count(), 3, "{lines:?}");
    assert_eq!(processes(&node), before);

    for (mut task, runner) in tasks {
        std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
        let ended = runner.join();
        assert_eq!((ended.result.exit_code, ended.recovered), (5, 1));
        assert_eq!(task.stdout().lines().count(), 1, "{}", task.stdout());
        let destroyed = agent.driver().destroy(task.id(), true);
        destroyed.expect("it can be destroyed");
        task.remove_cgroups();
    }
}
