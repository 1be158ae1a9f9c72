//! Use of allocations by a kubelet and a Nomad agent, and the operator's view of it.

use serde_json::{Value, json};
use switchyard_kubelet::RunOptions;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::nomad::device;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};

/// A container with what the kubelet was given for it.
pub(super) fn container_with(
    node: &TestNode,
    name: &str,
    options: &RunOptions,
) -> cri::ContainerConfig {
    let mut config = node.container(name, &["sleep", "1000"]);
    config.annotations = options.annotations.clone();
    config.envs = options
        .envs
        .iter()
        .map(|(key, value)| cri::KeyValue {
            key: key.clone(),
            value: value.clone().into_bytes(),
        })
        .collect();
    config.devices = options
        .devices
        .iter()
        .map(|(host, inside, permissions)| cri::Device {
            host_path: host.clone(),
            container_path: inside.clone(),
            permissions: permissions.clone(),
        })
        .collect();
    config
}

/// A task with what the agent was given for it.
pub(super) fn task_with(
    node: &TestNode,
    agent: &Agent,
    given: &device::ContainerReservation,
) -> TaskSetup {
    let config = json!({ "image": node.image(), "command": "sleep", "args": ["1000"], "network_mode": "host" });
    let mut task = TaskSetup::new(node.root(), agent, "task", &config);
    task.config.device_env.extend(given.envs.clone());
    task.config.env.extend(given.envs.clone());
    task.config.devices = given
        .devices
        .iter()
        .map(|one| nomad::Device {
            task_path: one.task_path.clone(),
            host_path: one.host_path.clone(),
            cgroup_permissions: one.permissions.clone(),
        })
        .collect();
    task
}

/// Ends a task, as an agent does.
pub(super) fn end(agent: &Agent, mut task: TaskSetup) {
    task.end(&agent.driver());
}

/// The output of `switchyard devices`.
pub(super) fn report(node: &TestNode) -> Value {
    let (_, body) = node.daemon().get("/v1/devices");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
}
