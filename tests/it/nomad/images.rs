//! Images of Nomad tasks: whose credentials they are pulled with, from archives, and how long they are kept.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use switchyard_tests::prereq;
use switchyard_tests::registry::Registry;
use switchyard_tests::registry_proxy::Access;

use crate::images::{save, with_file};

const SOON: Duration = Duration::from_secs(30);

/// A task whose output identifies its image.
#[track_caller]
fn which(node: &TestNode, agent: &Agent, image: &str, more: &Value) -> TaskSetup {
    let mut config =
        json!({ "image": image, "command": "cat", "args": ["/which"], "network_mode": "host" });
    config
        .as_object_mut()
        .expect("it is one")
        .extend(more.as_object().expect("it is one").clone());
    TaskSetup::new(node.root(), agent, "task", &config)
}

/// Runs it until it exits; its output.
#[track_caller]
fn run(agent: &Agent, mut task: TaskSetup) -> String {
    let driver = agent.driver();
    driver.start(&task.config).expect("it starts");
    assert_eq!(driver.wait(task.id(), SOON).expect("it ends").exit_code, 0);
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
    task.wait_stdout(|text| text.ends_with('\n'))
}

#[test]
fn credentials_come_from_task_or_agent_file_and_grant_no_foreign_images() {
    let access = Access::Basic {
        user: "user".into(),
        password: "secret".into(),
    };
    let registry = Registry::start_behind_proxy(access);
    registry.push("private/which:1", &with_file("private").build());
    let image = registry.reference("private/which:1");
    let node = TestNode::shared();
    let bare = Agent::start(node.root(), &json!({}));
    let auth = json!({ "auth": { "username": "user", "password": "secret" } });

    // The kubelet's right is not Nomad's.
    let credentials = crate::images::auth("user", "secret");
    node.cri()
        .pull(&image, credentials)
        .expect("the kubelet may");
    let mut refused = which(&node, &bare, &image, &json!({}));
    let error = bare
        .driver()
        .start(&refused.config)
        .expect_err("it has no credentials");
    assert!(error.message().contains("Failed to pull"), "{error}");
    refused.remove_cgroups();
    assert_eq!(run(&bare, which(&node, &bare, &image, &auth)), "private\n");

    let file = node.root().path().join("config.json");
    let auths =
        json!({ "auths": { registry.address().to_string(): { "auth": "dXNlcjpzZWNyZXQ=" } } });
    fs::write(&file, auths.to_string()).expect("the root can be written");
    let agent = Agent::start(node.root(), &json!({ "auth": { "config": file } }));
    assert_eq!(
        run(
            &agent,
            which(&node, &agent, &image, &json!({ "force_pull": true }))
        ),
        "private\n"
    );
}

#[test]
fn job_loads_its_image_from_an_archive() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    let task = which(&node, &agent, "brought:1", &json!({ "load": "image.tar" }));
    save(
        &with_file("brought").build(),
        "brought:1",
        &task.task_dir().join("local/image.tar"),
    );
    assert_eq!(run(&agent, task), "brought\n");
    assert_eq!(
        node.cri().image("brought:1").expect("it is asked for"),
        None
    );
    // Each is another image, so that none is there already.
    for (compressor, name) in [
        (None, "image.tar"),
        (Some(prereq::require("gzip", "gzip")), "image.tar.gz"),
        (Some(prereq::require("xz", "xz-utils")), "image.tar.xz"),
        (Some(prereq::require("zstd", "zstd")), "image.tar.zst"),
        (Some(prereq::require("bzip2", "bzip2")), "image.tar.bz2"),
    ] {
        let task = which(&node, &agent, "brought:1", &json!({ "load": name }));
        let local = task.task_dir().join("local");
        let plain = local.join("plain.tar");
        save(&with_file(name).build(), "brought:1", &plain);
        let archive = local.join(name);
        match compressor {
            None => fs::rename(&plain, &archive).expect("the root can be written"),
            Some(program) => {
                let output = fs::File::create(&archive).expect("the root can be written");
                let ended = Command::new(program)
                    .args(["-1", "-c"])
                    .arg(&plain)
                    .stdout(output)
                    .status();
                assert!(ended.expect("it was found").success(), "{name}");
            }
        }
        assert_eq!(run(&agent, task), format!("{name}\n"));
    }
    // What is damaged is refused, in readable words.
    for bytes in [
        &[0x1f, 0x8b, 8, 0, 0xff, 0xff][..],
        b"\xfd7zXZ\0\x1b[31m",
        &[0x28, 0xb5, 0x2f, 0xfd, 0xff, 0x1b],
        &[0x9b; 1024],
    ] {
        let mut task = which(&node, &agent, "brought:1", &json!({ "load": "x" }));
        fs::write(task.task_dir().join("local/x"), bytes).expect("the root can be written");
        let refused = agent
            .driver()
            .start(&task.config)
            .expect_err("it is damaged");
        let text = refused.message();
        assert!(
            text.starts_with("load x: ")
                && !text.chars().any(|c| c.is_control() || c == '\u{fffd}'),
            "{text:?}"
        );
        task.remove_cgroups();
    }
}

#[test]
fn unused_image_is_removed_after_its_delay_across_daemon_kill() {
    let registry = Registry::start();
    registry.push("which/gone:1", &with_file("gone").build());
    let image = registry.reference("which/gone:1");
    let node = TestNode::start();
    let here = || node.cri().image(&image).expect("it is asked for").is_some();
    let agent = Agent::start(node.root(), &json!({ "gc": { "image_delay": "1s" } }));
    run(&agent, which(&node, &agent, &image, &json!({})));
    assert!(eventually(SOON, || !here()), "nobody has let go of it");

    let patient = Agent::start(node.root(), &json!({ "gc": { "image_delay": "1h" } }));
    run(&patient, which(&node, &patient, &image, &json!({})));
    assert!(here());
    drop((agent, patient));
    node.daemon().kill9();
    node.daemon().spawn();
    node.daemon().wait_ready();
    let _agent = Agent::start(node.root(), &json!({ "gc": { "image_delay": "1s" } }));
    assert!(eventually(SOON, || !here()), "nobody has let go of it");
}
