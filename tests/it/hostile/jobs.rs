//! Access to the host by a job's `config`.

use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use tonic::Code;

/// Starts a task that says whether it could write a kernel parameter of the node; what it said.
fn run(node: &TestNode, agent: &Agent, more: &Value) -> Result<String, tonic::Status> {
    let script =
        "if (: >>/proc/sys/kernel/core_pattern) 2>/dev/null; then echo open; else echo closed; fi";
    let mut config = json!({
        "image": node.image(), "command": "sh", "args": ["-c", script], "network_mode": "host"
    });
    config
        .as_object_mut()
        .expect("it is one")
        .extend(more.as_object().expect("it is one").clone());
    let mut task = TaskSetup::new(node.root(), agent, "task", &config);
    let driver = agent.driver();
    let started = driver.start(&task.config).map(|_| {
        driver
            .wait(task.id(), Duration::from_secs(60))
            .expect("it ends");
        let printed = task.wait_stdout(|text| text.ends_with('\n'));
        driver
            .destroy(task.id(), true)
            .expect("it can be destroyed");
        printed
    });
    task.remove_cgroups();
    started
}

#[test]
fn unprivileged_job_cannot_write_host_sysctls() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    let open = json!({ "security_opt": ["systempaths=unconfined"] });
    let status = run(&node, &agent, &open).expect_err("it is root of the host");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(
        status.message().contains("security_opt[0]")
            && status.message().contains("allow_privileged"),
        "{status}"
    );
    assert_eq!(
        run(&node, &agent, &json!({})).expect("it asks for nothing"),
        "closed\n"
    );

    let generous = Agent::start(node.root(), &json!({ "allow_privileged": true }));
    assert_eq!(
        run(&node, &generous, &open).expect("it is allowed"),
        "open\n"
    );
    node.assert_clean();
}

#[test]
fn features_disabled_by_the_operator_are_rejected_by_key() {
    let node = TestNode::start();
    let strict = Agent::start(
        node.root(),
        &json!({
            "allow_devices": false, "allow_security_opt": ["apparmor=*"], "allowed_modes": { "network": [], "cgroupns": [] }
        }),
    );
    let free = json!({ "network_mode": "none" });
    assert_eq!(
        run(&node, &strict, &free).expect("it asks for nothing"),
        "closed\n"
    );
    for (more, switch) in [
        (
            json!({ "devices": [{ "host_path": "/dev/null" }] }),
            "allow_devices",
        ),
        (
            json!({ "devices": [{ "host_path": "acme.com/tpu=0" }] }),
            "allow_devices",
        ),
        (
            json!({ "security_opt": ["seccomp=unconfined"] }),
            "allow_security_opt",
        ),
        (json!({ "cgroupns": "host" }), "allowed_modes.cgroupns"),
        (json!({ "network_mode": "host" }), "allowed_modes.network"),
    ] {
        let mut config = free.clone();
        config
            .as_object_mut()
            .expect("it is one")
            .extend(more.as_object().expect("it is one").clone());
        let status = run(&node, &strict, &config).expect_err("it is not allowed");
        assert_eq!(status.code(), Code::InvalidArgument, "{more}: {status}");
        assert!(status.message().contains(switch), "{more}: {status}");
    }
    node.assert_clean();
}
