//! What is malformed, or cannot be had: each is refused with a clear word at once, and leaves nothing behind.

use std::time::Duration;

use serde_json::json;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::node::Node;
use switchyard_tests::nomad::{Agent, Setup};
use tonic::Code;

use super::shell;

/// A change of a request, and what is said of it.
type Request = (fn(&mut nomad::TaskConfig), Code, &'static str);

/// What the agent itself says.
const REQUESTS: [Request; 26] = [
    (|task| task.id.clear(), Code::InvalidArgument, "task.id: it is missing"),
    (|task| task.id = "a".repeat(4096), Code::InvalidArgument, "task.id: it is longer than"),
    (|task| task.id.push('\n'), Code::InvalidArgument, "task.id: "),
    (|task| task.id = "network/x".into(), Code::InvalidArgument, "task.id: \"network/x\" is no id of a task"),
    (|task| task.name.clear(), Code::InvalidArgument, "task.name: it is missing"),
    (|task| task.name = "../up".into(), Code::InvalidArgument, "task.name: \"../up\" names no directory"),
    (|task| task.alloc_id.clear(), Code::InvalidArgument, "task.alloc_id: it is missing"),
    (|task| task.alloc_dir = "relative".into(), Code::InvalidArgument, "task.alloc_dir: \"relative\""),
    (|task| task.alloc_dir = "/no/such/alloc".into(), Code::InvalidArgument, "/no/such/alloc"),
    (|task| task.user = "no-such-user".into(), Code::InvalidArgument, "no-such-user"),
    (|task| task.user = "two words".into(), Code::InvalidArgument, "task.user: \"two words\""),
    (|task| env(task, "A=B", "c"), Code::InvalidArgument, "task.env: \"A=B\" is not a variable's name"),
    (|task| env(task, "", "c"), Code::InvalidArgument, "task.env: \"\" is not a variable's name"),
    (|task| env(task, "A", "c\0"), Code::InvalidArgument, "task.env[\"A\"]: it contains a NUL byte"),
    (|task| env(task, "NOMAD_TASK_DIR", "local"), Code::InvalidArgument, "task.env[\"NOMAD_TASK_DIR\"]: "),
    (|task| task.stdout_path = "fifo".into(), Code::InvalidArgument, "task.stdout_path: \"fifo\""),
    (|task| task.stdout_path.push_str(".none"), Code::FailedPrecondition, "the output of the task: "),
    (|task| task.stderr_path = task.alloc_dir.clone(), Code::FailedPrecondition, "neither a FIFO nor a file"),
    (|task| mount(task, "/x", "relative", ""), Code::InvalidArgument, "task.mounts[0].host_path: "),
    (|task| mount(task, "relative", "/tmp", ""), Code::InvalidArgument, "task.mounts[0].task_path: "),
    (|task| mount(task, "/x", "/no/such", ""), Code::InvalidArgument, "/no/such"),
    (
        |task| mount(task, "/x", "/tmp", "sideways"),
        Code::InvalidArgument,
        "task.mounts[0].propagation_mode: ",
    ),
    (|task| device(task, "/dev/none", "rwm"), Code::InvalidArgument, "/dev/none"),
    (|task| device(task, "/dev/null", "x"), Code::InvalidArgument, "task.devices[0]: \"x\""),
    (|task| cpuset_cgroup(task, "/etc"), Code::InvalidArgument, "cpuset_cgroup: \"/etc\" is no group"),
    (
        |task| cpuset_cgroup(task, "/sys/fs/cgroup/../../etc/x.scope"),
        Code::InvalidArgument,
        "cpuset_cgroup: ",
    ),
];

/// The same of the network of a group, for a task that asks for none of its own.
const GROUPS: [Request; 3] = [
    (|task| group(task, 9, ""), Code::InvalidArgument, "task.network_isolation_spec.mode: 9"),
    (|task| group(task, 1, "netns"), Code::InvalidArgument, "task.network_isolation_spec.path: \"netns\""),
    (|task| group(task, 1, "/no/such/netns"), Code::FailedPrecondition, "network namespace /no/such/netns"),
];

fn env(task: &mut nomad::TaskConfig, name: &str, value: &str) {
    task.env.insert(name.into(), value.into());
}

fn mount(task: &mut nomad::TaskConfig, task_path: &str, host_path: &str, propagation_mode: &str) {
    let (task_path, host_path) = (task_path.into(), host_path.into());
    let propagation_mode = propagation_mode.into();
    task.mounts.push(nomad::Mount { task_path, host_path, propagation_mode, ..Default::default() });
}

fn device(task: &mut nomad::TaskConfig, host_path: &str, permissions: &str) {
    task.devices.push(nomad::Device {
        task_path: "/dev/x".into(),
        host_path: host_path.into(),
        cgroup_permissions: permissions.into(),
    });
}

fn group(task: &mut nomad::TaskConfig, mode: i32, path: &str) {
    task.network_isolation_spec =
        Some(nomad::NetworkIsolationSpec { mode, path: path.into(), ..Default::default() });
}

fn cpuset_cgroup(task: &mut nomad::TaskConfig, path: &str) {
    let linux = task.resources.as_mut().and_then(|resources| resources.linux_resources.as_mut());
    linux.expect("it has some").cpuset_cgroup = path.into();
}

#[track_caller]
fn refused(agent: &Agent, mut task: Setup, code: Code, text: &str) {
    let status = match agent.driver().start(&task.config) {
        Ok(_) => panic!("it is started, although {text:?} ought to be said"),
        Err(status) => status,
    };
    assert_eq!(status.code(), code, "{text:?}: {status}");
    assert!(status.message().contains(text), "{:?} does not say {text:?}", status.message());
    // What cannot be told to work later carries nothing that makes an agent try again.
    assert_eq!(status.details().is_empty(), code != Code::FailedPrecondition, "{status}");
    task.remove_leaf();
}

#[test]
fn what_no_agent_can_mean_is_refused_and_leaves_nothing() {
    let node = Node::start();
    let agent = Agent::start(node.root(), &json!({}));
    for (change, code, text) in REQUESTS {
        let mut task = shell(&node, &agent, "sleep 1000");
        change(&mut task.config);
        refused(&agent, task, code, text);
    }
    for (change, code, text) in GROUPS {
        let config = json!({ "image": node.image(), "command": "true" });
        let mut task = Setup::new(node.root(), &agent, "task", &config);
        change(&mut task.config);
        refused(&agent, task, code, text);
    }
    node.assert_clean();
}

#[test]
fn calls_about_what_is_not_there_say_so_or_have_nothing_to_do() {
    let node = Node::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let long = "x".repeat(1 << 20);
    let unread = "a/b\n\0";
    for id in ["", "3a7c/web/0123abcd", "../../etc", "network/x", "a b/ü/0123abcd", unread, &long] {
        let code =
            |status: tonic::Status| (status.code(), status.message().contains("task not found for given id"));
        let unknown = Err((Code::NotFound, true));
        assert_eq!(driver.wait(id, Duration::from_secs(20)).map(drop).map_err(code), unknown);
        assert_eq!(driver.inspect(id).map(drop).map_err(code), unknown);
        assert_eq!(driver.signal(id, "SIGHUP").map_err(code), unknown);
        assert_eq!(driver.exec(id, &["true"], Duration::from_secs(5)).map(drop).map_err(code), unknown);
        assert_eq!(driver.stats(id, Duration::ZERO).map(drop).map_err(code), unknown);
        let handle = nomad::TaskHandle {
            config: Some(nomad::TaskConfig { id: id.to_owned(), ..Default::default() }),
            ..Default::default()
        };
        assert_eq!(driver.recover(&handle).map_err(code), unknown);
        driver.stop(id, Duration::ZERO, "").expect("what is gone is stopped");
        driver.destroy(id, false).expect("what is gone is destroyed");
    }
    for id in ["", unread, &long] {
        let refused = driver.create_network(id, "host").expect_err("nobody could find it again");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
}

#[test]
fn a_task_of_any_name_is_found_by_it_and_a_signal_that_is_none_leaves_it_alone() {
    let node = Node::start();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let mut task = shell(&node, &agent, "echo begun; exec sleep 1000");
    task.config.id = format!("{}/../we.b/ü ✓/0123abcd", task.config.alloc_id);
    driver.start(&task.config).expect("it is as good a name as any");
    task.wait_stdout(|text| text == "begun\n");
    for signal in ["SIGNONE", "99", "-1"] {
        let status = driver.signal(task.id(), signal).expect_err("it is no signal");
        assert_eq!(status.code(), Code::InvalidArgument, "{signal:?}: {status}");
        let stopped = driver.stop(task.id(), Duration::ZERO, signal).expect_err("it is no signal");
        assert!(stopped.message().contains("failed to parse signal"), "{signal:?}: {stopped}");
    }
    let inspected = driver.inspect(task.id()).expect("it is there").task.expect("it has a state");
    assert_eq!(inspected.state(), nomad::TaskState::Running);
    driver.destroy(task.id(), true).expect("it can be destroyed");
    task.remove_leaf();
    drop(task);
    node.assert_clean();
}

#[test]
fn a_quota_that_the_disk_does_not_know_is_refused_by_the_key_that_asks_for_it() {
    let node = Node::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let config = json!({
        "image": node.image(), "command": "true", "network_mode": "host", "storage_opt": [{ "size": "1G" }]
    });
    let mut task = Setup::new(node.root(), &agent, "task", &config);
    match agent.driver().start(&task.config) {
        // The kernel has project quotas, and the disk is mounted with them.
        Ok(_) => agent.driver().destroy(task.id(), true).expect("it can be destroyed"),
        Err(status) => {
            let text = status.message();
            assert!(text.contains("storage_opt.size: ") && text.contains("prjquota"), "{status}");
        }
    }
    task.remove_leaf();
}
