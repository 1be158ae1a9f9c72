//! Requests that are malformed or cannot be satisfied: each is refused at once with a clear error, and leaves
//! nothing behind.

use std::time::Duration;

use serde_json::{Value, json};
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use tonic::Code;

use super::shell;

use Code::{FailedPrecondition, InvalidArgument, NotFound, Unimplemented};

mod configs;
mod requests;

use configs::CONFIGS;
use requests::{BYTES, GROUPS, REQUESTS};

/// Starts a task that must be rejected; returns what is wrong with the error, if anything.
fn refused(agent: &Agent, mut task: TaskSetup, code: Code, text: &str) -> Option<String> {
    let driver = agent.driver();
    let status = match driver.start(&task.config) {
        Ok(_) => {
            driver
                .destroy(task.id(), true)
                .expect("it can be destroyed");
            task.remove_cgroups();
            return Some(format!("{text:?}: it is started"));
        }
        Err(status) => status,
    };
    // Fails if something is in it.
    task.remove_cgroups();
    let left = driver.inspect(task.id()).is_ok();
    let actual = status.code();
    let message = status.message();
    // An error that a retry cannot repair is not marked as recoverable, so that an agent does not retry. An image may be
    // pushed meanwhile.
    let again = !status.details().is_empty();
    let right =
        actual == code && message.contains(text) && again == (code == FailedPrecondition) && !left;
    (!right).then(|| format!("{text:?}: {actual:?}, again {again}, left {left}: {message}"))
}

#[test]
fn malformed_task_fields_are_rejected_by_name_and_leave_nothing_behind() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({ "allow_runtimes": ["runc", "gone"] }));
    let task = |more: Value| {
        let mut config = json!({
            "image": node.image(), "command": "sh", "args": ["-c", "sleep 1000"], "network_mode": "host"
        });
        config
            .as_object_mut()
            .expect("it is one")
            .extend(more.as_object().expect("it is one").clone());
        TaskSetup::new(node.root(), &agent, "task", &config)
    };
    let mut wrong = Vec::new();
    let none = node.registry().reference("library/none:1");
    let text = format!("Error: image {none} not found");
    wrong.extend(refused(
        &agent,
        task(json!({ "image": none })),
        FailedPrecondition,
        &text,
    ));
    for (config, code, text) in CONFIGS {
        wrong.extend(refused(&agent, task(config()), code, text));
    }
    for (change, code, text) in REQUESTS {
        let mut task = shell(&node, &agent, "sleep 1000");
        change(&mut task.config);
        wrong.extend(refused(&agent, task, code, text));
    }
    for (change, code, text) in GROUPS {
        let config = json!({ "image": node.image(), "command": "true" });
        let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
        change(&mut task.config);
        wrong.extend(refused(&agent, task, code, text));
    }
    for (bytes, text) in BYTES {
        let mut task = shell(&node, &agent, "sleep 1000");
        task.config.msgpack_driver_config = bytes();
        wrong.extend(refused(&agent, task, InvalidArgument, text));
    }
    assert!(
        wrong.is_empty(),
        "refused in another way:\n{}",
        wrong.join("\n")
    );
    node.assert_clean();
}

#[test]
fn calls_for_unknown_tasks_are_not_found_or_no_ops() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let long = "x".repeat(1 << 20);
    let unread = "a/b\n\0";
    for id in [
        "",
        "3a7c/web/0123abcd",
        "../../etc",
        "network/x",
        "a b/ü/0123abcd",
        unread,
        &long,
    ] {
        let code = |status: tonic::Status| {
            (
                status.code(),
                status.message().contains("task not found for given id"),
            )
        };
        let unknown = Err((NotFound, true));
        assert_eq!(
            driver
                .wait(id, Duration::from_secs(20))
                .map(drop)
                .map_err(code),
            unknown
        );
        assert_eq!(driver.inspect(id).map(drop).map_err(code), unknown);
        assert_eq!(driver.signal(id, "SIGHUP").map_err(code), unknown);
        assert_eq!(
            driver
                .exec(id, &["true"], Duration::from_secs(5))
                .map(drop)
                .map_err(code),
            unknown
        );
        assert_eq!(
            driver
                .exec_streaming(id, &["true"], false, b"", true)
                .map(drop)
                .map_err(code),
            unknown
        );
        assert_eq!(
            driver.stats(id, Duration::ZERO).map(drop).map_err(code),
            unknown
        );
        let handle = nomad::TaskHandle {
            config: Some(nomad::TaskConfig {
                id: id.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(driver.recover(&handle).map_err(code), unknown);
        driver
            .stop(id, Duration::ZERO, "")
            .expect("what is gone is stopped");
        driver
            .destroy(id, false)
            .expect("what is gone is destroyed");
    }
    for (id, hostname) in [
        ("", "host"),
        (unread, "host"),
        (&long, "host"),
        ("3a7c", "two words"),
        ("3a7c", "a\n"),
    ] {
        let refused = driver
            .create_network(id, hostname)
            .expect_err("nobody could use it");
        assert_eq!(refused.code(), InvalidArgument, "{refused}");
    }
    driver
        .destroy_network("3a7c", nomad::NetworkIsolationSpec::default())
        .expect("what is gone is destroyed");
}

#[test]
fn invalid_signals_and_commands_do_not_affect_a_task_of_any_name() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let mut task = shell(&node, &agent, "echo begun; exec sleep 1000");
    task.config.id = format!("{}/../we.b/ü ✓/0123abcd", task.config.alloc_id);
    driver
        .start(&task.config)
        .expect("it is as good a name as any");
    task.wait_stdout(|text| text == "begun\n");
    let unsaid = driver.signal(task.id(), "").expect_err("which signal?");
    assert!(
        unsaid
            .message()
            .contains("failed to parse signal: \"\" is neither"),
        "{unsaid}"
    );
    for signal in [
        "SIGNONE",
        "SIG",
        "0",
        "65",
        "-1",
        "1e1",
        "SIGRTMIN+31",
        "HUP TERM",
        "TERM\0",
    ] {
        let status = driver
            .signal(task.id(), signal)
            .expect_err("it is no signal");
        assert_eq!(status.code(), InvalidArgument, "{signal:?}: {status}");
        let stopped = driver
            .stop(task.id(), Duration::ZERO, signal)
            .expect_err("it is no signal");
        assert!(
            stopped.message().contains("failed to parse signal"),
            "{signal:?}: {stopped}"
        );
    }
    let nothing = driver
        .exec(task.id(), &[], Duration::from_secs(5))
        .expect_err("it is no command");
    assert_eq!(nothing.code(), InvalidArgument, "{nothing}");
    let nothing = driver
        .exec_streaming(task.id(), &[], false, b"", true)
        .expect_err("it is no command");
    assert_eq!(nothing.code(), InvalidArgument, "{nothing}");
    let inspected = driver
        .inspect(task.id())
        .expect("it is there")
        .task
        .expect("it has a state");
    assert_eq!(inspected.state(), nomad::TaskState::Running);
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    assert_eq!(
        driver
            .inspect(task.id())
            .map(drop)
            .map_err(|status| status.code()),
        Err(NotFound)
    );
    task.remove_cgroups();
}

#[test]
fn task_disk_quota_is_applied_or_rejected_by_key() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let config = json!({
        "image": node.image(), "command": "dd", "args": ["if=/dev/zero", "of=/big", "bs=1M", "count=64"],
        "network_mode": "host", "storage_opt": [{ "size": "16M" }]
    });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    match driver.start(&task.config) {
        // The kernel has project quotas, and the disk is mounted with them.
        Ok(_) => {
            let end = driver
                .wait(task.id(), Duration::from_secs(60))
                .expect("it ends");
            assert_ne!(end.exit_code, 0, "it has written four times what it may");
            driver
                .destroy(task.id(), true)
                .expect("it can be destroyed");
        }
        Err(status) => {
            assert_eq!(status.code(), FailedPrecondition, "{status}");
            let text = status.message();
            assert!(
                text.contains("storage_opt.size: ") && text.contains("prjquota"),
                "{status}"
            );
            assert_eq!(
                driver
                    .inspect(task.id())
                    .map(drop)
                    .map_err(|status| status.code()),
                Err(NotFound)
            );
        }
    }
    task.remove_cgroups();
}
