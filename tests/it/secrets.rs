//! Secrets of clients are in no output, page, record of events, or log of ours, at `trace` too. What the
//! protocols answer by contract (environment variables in verbose statuses) and the containers' own logs are not
//! meant.

use std::fs;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::image::busybox;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::nomad::{Agent, TaskSetup};
use switchyard_tests::registry::Registry;
use switchyard_tests::registry_proxy::Access;
use switchyard_tests::streams::{OUTPUTS, StreamSession};

use crate::doctor::unpacked;
use crate::images::auth;

/// The beginning of every secret.
const PLANTED: &str = "planted-s3cr3t";

/// The secret of this kind.
fn secret(kind: &str) -> String {
    format!("{PLANTED}-{kind}")
}

/// A node that logs everything, with secrets in its configuration.
fn talkative_node() -> TestNode {
    TestNode::start_configured(|root| {
        let audit = root.path().join("audit/audit.log");
        let token = root.path().join("token");
        fs::write(&token, secret("token-of-the-metrics-listener-0123456789"))
            .expect("the root is ours");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&token, private).expect("the root is ours");
        format!(
            "[audit]\nto = \"file\"\nfile = {audit:?}\nexec_sync = true\n[log]\nlevel = \"trace\"\n\
             [admin]\ncontainer_metrics = \"network\"\nmetrics_listen = \"127.0.0.1:0\"\n\
             metrics_bearer_token_file = {token:?}\n"
        )
    })
}

/// Gives secrets to every frontend, in each field that may have one. Returns a pod, the id of a container in it, and
/// a task, all running.
fn plant<'a>(node: &'a TestNode, agent: &Agent) -> (TestPod<'a>, String, TaskSetup) {
    let password = secret("password");
    let access = Access::Bearer {
        credentials: Some(("user".into(), password.clone())),
    };
    let registry = Registry::start_behind_proxy(access);
    registry.push(
        "private/image:1",
        &busybox().env("OF_IMAGE", &secret("env-of-image")).build(),
    );
    let image = registry.reference("private/image:1");
    node.cri()
        .pull(&image, auth("user", &secret("wrong-password")))
        .expect_err("the password is wrong");
    node.cri()
        .pull(&image, auth("user", &password))
        .expect("that is the password");

    let pod = node.pod_with("secretive", |pod| {
        pod.annotations
            .insert("example.org/applied".into(), secret("annotation"));
    });
    let mut container = node.container(
        "main",
        &["sh", "-c", "exec sleep 1000", &secret("argument")],
    );
    container.image = Some(switchyard_tests::cri::image_spec(&image));
    container.envs.push(cri::KeyValue {
        key: "PASSWORD".into(),
        value: secret("env").into(),
    });
    container
        .annotations
        .insert("example.org/applied".into(), secret("annotation"));
    let id = pod.start(&container);
    assert_eq!(
        node.cri()
            .sh(&id, &format!(": {}; echo ok", secret("exec-argument"))),
        "ok"
    );
    let script = format!(": {}", secret("exec-argument"));
    assert_eq!(
        StreamSession::exec(node.cri(), &id, &["sh", "-c", &script], OUTPUTS).wait_exit_code(),
        0
    );
    let mut broken = node.container("broken", &["/no/such/program", &secret("argument")]);
    broken.envs.clone_from(&container.envs);
    let broken = pod.create(&broken);
    node.cri()
        .start(&broken)
        .expect_err("there is no such program");

    let config = json!({
        "image": image, "command": "sh", "args": ["-c", "exec sleep 1000", secret("argument")],
        "network_mode": "host", "auth": { "username": "user", "password": password },
    });
    let mut task = TaskSetup::new(node.root(), agent, "secretive-task", &config);
    task.config.env.insert("PASSWORD".into(), secret("env"));
    agent.driver().start(&task.config).expect("it starts");
    let mut refused = TaskSetup::new(node.root(), agent, "refused-task", &config);
    refused.config.env.insert("PASSWORD".into(), secret("env"));
    refused.config.alloc_dir = "relative".into();
    agent
        .driver()
        .start(&refused.config)
        .expect_err("its directory is not absolute");
    (pod, id, task)
}

/// The secret in this text, in plain form or as base64, with what is around it.
fn found(text: &str) -> Option<String> {
    // Whatever the position in the encoded text is, the middle of the word is encoded as one of these.
    let encoded = ["", "x", "xx"].map(|before| {
        let skipped = before.len();
        let whole = STANDARD.encode(format!("{before}{PLANTED}"));
        whole[if skipped == 0 { 0 } else { 4 }..whole.len() - 4].to_owned()
    });
    let at = [PLANTED.to_owned()]
        .iter()
        .chain(&encoded)
        .find_map(|word| text.find(word.as_str()))?;
    let from = text[..at]
        .rfind('\n')
        .map_or(0, |end| end + 1)
        .max(at.saturating_sub(400));
    Some(
        text.get(from..(at + 100).min(text.len()))
            .unwrap_or(PLANTED)
            .to_owned(),
    )
}

#[track_caller]
fn assert_absent(what: &str, text: &str) {
    assert_eq!(found(text), None, "{what} shows a secret");
}

/// Every command that shows something of the node.
fn commands(node: &TestNode, container: &str) {
    let config = node.root().config().display().to_string();
    for words in [
        &["status", "--verbose"][..],
        &["ps"],
        &["events"],
        &["history"],
        &["devices"],
        &["images"],
        &["inspect", container, "tests/secretive"],
        &["config", "dump", "--running"],
        &["config", "dump", "--running", "--origin"],
        &["log", "level"],
    ] {
        assert_absent(&format!("{words:?}"), &node.output(words));
        if !matches!(words[0], "config") {
            let json = [words, &["--output", "json"]].concat();
            assert_absent(&format!("{json:?}"), &node.output(&json));
        }
    }
    let dumped = Command::new(switchyard_tests::daemon::binary())
        .args(["config", "dump", "--config", &config])
        .output()
        .expect("the binary exists");
    assert!(dumped.status.success(), "{dumped:?}");
    assert_absent("config dump", &String::from_utf8_lossy(&dumped.stdout));
    for format in ["text", "json"] {
        // Its exit status shows whether anything is worse than a note.
        let done = node.call(&["doctor", "--config", &config, "--output", format]);
        assert!(!done.stdout.is_empty(), "{done:?}");
        assert_absent("doctor", &String::from_utf8_lossy(&done.stdout));
    }
    let archive = node.root().path().join("bundle.tar.gz");
    let path = archive.display().to_string();
    node.output(&[
        "support-bundle",
        "--config",
        &config,
        "--output-file",
        &path,
    ]);
    let parts = unpacked(node.root(), &archive);
    assert!(
        parts
            .iter()
            .any(|(name, text)| name.ends_with("switchyard.log") && text.contains("TRACE"))
    );
    for (name, text) in &parts {
        assert_absent(&format!("the bundle's {name}"), text);
    }
    fs::remove_file(archive).expect("it was written");
}

fn assert_file_absent(file: &Path) {
    let text = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert_absent(&file.display().to_string(), &String::from_utf8_lossy(&text));
}

#[test]
fn secrets_of_clients_are_in_no_output_page_or_log() {
    let node = talkative_node();
    let agent = Agent::start(node.root(), &json!({}));
    let (pod, container, task) = plant(&node, &agent);
    commands(&node, &container);
    for path in [
        "/statusz",
        "/metrics",
        "/metrics/containers",
        "/v1/objects",
        "/v1/images",
        "/v1/volumes",
        &format!("/v1/inspect?name={container}"),
        "/v1/devices",
        "/v1/operations",
        "/v1/debug",
        "/v1/events",
        "/v1/history",
        "/v1/config?origin",
        "/readyz?verbose",
    ] {
        let (status, text) = node.daemon().get(path);
        assert_eq!(status, 200, "{path}: {text}");
        assert_absent(path, &text);
    }
    agent
        .driver()
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    node.daemon().restart();
    commands(&node, &container);
    let state = node.root().state();
    for log in [
        node.root().daemon_log(),
        node.root().path().join("audit/audit.log"),
        state.join("containerd/containerd.log"),
        state.join("logkeeper.log"),
    ] {
        assert_file_absent(&log);
    }
    let log = fs::read_to_string(node.root().daemon_log()).expect("it has one");
    assert!(log.contains("TRACE"), "the daemon does not log everything");
    drop(pod);
}
