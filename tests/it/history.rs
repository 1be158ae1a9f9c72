//! History of a node, by owner: the audit log, events, and operations in flight.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::eventually;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::nomad::agent::Agent;
use switchyard_tests::nomad::task::TaskSetup;
use switchyard_tests::registry_proxy::RegistryFault;
use switchyard_tests::streams::{OUTPUTS, StreamSession};

use crate::images::with_file;

mod on_record;

/// Time for something to appear.
const LIMIT: Duration = Duration::from_secs(30);

/// Time for a task to end.
const RUN: Duration = Duration::from_secs(60);

/// A word that no record may contain.
pub(crate) const SECRET: &str = "planted-s3cr3t";

/// The lines of JSON in a file or an output.
fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect()
}

pub(crate) fn audited(file: &Path) -> Vec<Value> {
    lines(&fs::read_to_string(file).unwrap_or_default())
}

/// A node that writes its audit log to a file in its root, and the file.
pub(crate) fn audited_node() -> (TestNode, std::path::PathBuf) {
    let mut file = None;
    let node = TestNode::start_configured(|root| {
        let path = root.path().join("audit/audit.log");
        let section = format!(
            "[audit]\nto = \"file\"\nfile = {:?}\n",
            path.display().to_string()
        );
        file = Some(path);
        section
    });
    (node, file.expect("the configuration was made"))
}

/// The operations on objects with this value of a name, in order, without exits.
fn operations(lines: &[Value], label: &str, value: &str) -> Vec<String> {
    let of_object = lines
        .iter()
        .filter(|line| line["names"][label] == value && line["operation"] != "task_exited");
    of_object
        .map(|line| {
            line["operation"]
                .as_str()
                .expect("it has a word")
                .to_owned()
        })
        .collect()
}

#[test]
fn each_change_has_one_line_with_its_caller_and_no_secret() {
    let (node, file) = audited_node();
    let pod = node.pod("audited");
    make_changes(&node, &pod);

    let expected = [
        "create_task",
        "start_task",
        "exec",
        "stop_task",
        "remove_task",
    ];
    let complete = || {
        audited(&file)
            .iter()
            .any(|line| line["operation"] == "reload_config")
    };
    assert!(eventually(LIMIT, complete), "{:?}", audited(&file));
    let lines = audited(&file);
    assert_eq!(
        operations(&lines, "container", "main"),
        expected,
        "{lines:#?}"
    );
    let sandbox = lines
        .iter()
        .find(|line| line["operation"] == "create_sandbox")
        .expect("a pod was made");
    assert_eq!(
        (&sandbox["names"]["pod"], &sandbox["sandbox"]),
        (&json!("audited"), &json!(pod.id()))
    );
    let exec = lines
        .iter()
        .find(|line| line["operation"] == "exec")
        .expect("a command was run");
    assert_eq!(
        (&exec["argument"], &exec["listener"]),
        (&json!("sh"), &json!("cri"))
    );
    let pid = std::process::id();
    assert_eq!(
        (&exec["uid"], &exec["pid"], &exec["result"]),
        (&json!(0), &json!(pid), &json!("ok"))
    );
    let failed = lines
        .iter()
        .find(|line| line["names"]["container"] == "broken" && line["result"] != "ok");
    assert!(
        failed.is_some_and(|line| line["error"].is_string()),
        "{lines:#?}"
    );
    let level = lines
        .iter()
        .find(|line| line["operation"] == "set_log_level")
        .expect("it was set");
    assert_eq!(
        (&level["listener"], &level["uid"]),
        (&json!("admin socket"), &json!(0)),
        "{level}"
    );
    assert!(level["pid"].is_number(), "{level}");
    let text = fs::read_to_string(&file).expect("it is there");
    assert!(!text.contains(SECRET), "{text}");
    assert!(
        !node
            .output(&["events", "--output", "json"])
            .contains(SECRET)
    );
    assert!(!node.output(&["status", "--verbose"]).contains(SECRET));
}

/// Makes each kind of change, with a secret in whatever may have one.
fn make_changes(node: &TestNode, pod: &TestPod<'_>) {
    let mut config = node.container(
        "main",
        &["sh", "-c", &format!("echo {SECRET}; exec sleep 1000")],
    );
    config.envs.push(cri::KeyValue {
        key: "PASSWORD".into(),
        value: SECRET.into(),
    });
    let id = pod.start(&config);
    let mut session = StreamSession::exec(
        node.cri(),
        &id,
        &["sh", "-c", &format!("echo {SECRET}")],
        OUTPUTS,
    );
    assert_eq!(session.wait_exit_code(), 0);
    assert_eq!(node.cri().sh(&id, &format!("echo {SECRET}")), SECRET);
    let mut broken = node.container("broken", &["/no/such/program", SECRET]);
    broken.envs.clone_from(&config.envs);
    let broken = pod.create(&broken);
    node.cri()
        .start(&broken)
        .expect_err("there is no such program");
    node.cri().stop(&id, 0).expect("it stops");
    node.cri().remove(&id).expect("it is removed");
    node.output(&["log", "level", "debug", "--for", "10m"]);
    node.output(&["config", "reload"]);
}

#[test]
fn lines_continue_in_a_new_file_after_a_rotation_and_survive_the_end_of_the_daemon() {
    let (node, file) = audited_node();
    let first = node.pod("first");
    let of_first = |file: &Path| operations(&audited(file), "pod", "first");
    assert!(eventually(LIMIT, || of_first(&file) == ["create_sandbox"]));
    let rotated = file.with_extension("log.1");
    fs::rename(&file, &rotated).expect("it is there");
    drop(first);
    let ended = || of_first(&file).last().map(String::as_str) == Some("remove_sandbox");
    assert!(eventually(LIMIT, ended), "{:?}", audited(&file));
    assert_eq!(of_first(&rotated), ["create_sandbox"]);
    let lines = audited(&file);
    assert!(
        lines
            .iter()
            .all(|line| line["operation"] != "reload_config"),
        "{lines:#?}"
    );
    node.daemon().restart();
    assert_eq!(&audited(&file)[..lines.len()], lines);
}

#[test]
fn rotation_of_the_package_runs_no_command() {
    let rotation = include_str!("../../deploy/debian/logrotate");
    for needed in ["create 0640 root adm\n", "delaycompress\n"] {
        assert!(rotation.contains(needed), "{needed}");
    }
    // Whatever systemd the node has, and whether the daemon answers or not.
    for word in ["postrotate", "prerotate", "script", "copytruncate"] {
        assert!(!rotation.contains(word), "{word}");
    }
}

#[test]
fn events_of_all_owners_are_listed_and_followed() {
    let node = TestNode::start();
    let pod = node.pod("eventful");
    let id = pod.start(&node.container("main", &["sh", "-c", "exit 3"]));
    assert_eq!(node.cri().wait_exit(&id).exit_code, 3);
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let config = json!({ "image": node.image(), "command": "sh", "args": ["-c", "exit 4"], "network_mode": "host" });
    let mut task = TaskSetup::new(node.root(), &agent, "eventful-task", &config);
    driver.start(&task.config).expect("it starts");
    assert_eq!(driver.wait(task.id(), RUN).expect("it ends").exit_code, 4);

    let events = || lines(&node.output(&["events", "--output", "json"]));
    let of_pod = || -> Vec<String> {
        let own = events()
            .into_iter()
            .filter(|event| event["name"].as_str().unwrap().contains("eventful"));
        own.filter(|event| event["owner"] == "kubernetes")
            .map(|event| event["event"].as_str().unwrap().to_owned())
            .collect()
    };
    let expected = [
        "sandbox_ready",
        "task_created",
        "task_started",
        "task_exited",
    ];
    assert!(
        eventually(LIMIT, || of_pod() == expected),
        "{:#?}",
        events()
    );
    let nomad = lines(&node.output(&["events", "--owner", "nomad", "--output", "json"]));
    assert!(
        nomad.iter().all(|event| event["owner"] == "nomad"),
        "{nomad:#?}"
    );
    let ended = nomad
        .iter()
        .find(|event| event["event"] == "task_exited")
        .expect("it ended");
    let detail = ended["detail"].as_str().expect("it has one");
    assert!(detail.starts_with("code 4"), "{ended}");
    assert!(
        ended["name"]
            .as_str()
            .is_some_and(|name| name.contains("eventful-task")),
        "{ended}"
    );
    let table = node.output(&["events"]);
    assert!(
        table.starts_with("TIME") && table.contains("code 3"),
        "{table}"
    );

    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
    drop(task);
    agent.stop();

    // A follower that knows the last event of a former daemon learns that it is gone.
    let page = |path: &str| -> Value {
        let (status, body) = node.daemon().get(path);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("it is JSON")
    };
    let last = page("/v1/events");
    let path = format!(
        "/v1/events?run={}&after={}&wait=0",
        last["run"].as_str().unwrap(),
        last["next"]
    );
    assert_eq!(page(&path)["events"], json!([]));
    node.daemon().restart();
    assert_eq!(page(&path)["is_restarted"], true);
    let (status, why) = node.daemon().get("/v1/events?wait=3600");
    assert_eq!(status, 400, "{why}");
}

#[test]
fn operation_in_flight_is_shown_until_it_ends() {
    let node = TestNode::start();
    node.registry()
        .push("held/one:1", &with_file("one").build());
    node.registry()
        .proxy()
        .add_fault("held/one", RegistryFault::Hold);
    let reference = node.registry().reference("held/one:1");
    let operations = || -> Vec<Value> {
        let status: Value =
            serde_json::from_str(&node.output(&["status", "--verbose", "--output", "json"]))
                .unwrap();
        status["operations"]
            .as_array()
            .expect("they are asked for")
            .clone()
    };
    std::thread::scope(|threads| {
        let pull = threads.spawn(|| node.cri().pull(&reference, None));
        let is_pull = |operation: &Value| {
            operation["operation"] == "pull_image"
                && operation["subject"] == reference
                && operation["owner"] == "kubernetes"
                && operation["caller"] == format!("cri ({})", std::process::id())
        };
        assert!(
            eventually(LIMIT, || operations().iter().any(is_pull)),
            "{:#?}",
            operations()
        );
        let (_, metrics) = node.daemon().get("/metrics");
        let counted =
            "switchyard_operations_in_flight{operation=\"pull_image\",owner=\"kubernetes\"} 1";
        assert!(metrics.contains(counted), "{metrics}");
        let table = node.output(&["status", "--verbose"]);
        assert!(table.contains("pull_image"), "{table}");
        node.registry().proxy().release();
        pull.join()
            .expect("it does not panic")
            .expect("it succeeds");
    });
    assert_eq!(operations(), Vec::<Value>::new());
    let table = node.output(&["status", "--verbose"]);
    assert!(table.contains("No operation is in flight."), "{table}");
}

#[test]
fn follower_continues_with_the_next_daemon() {
    let node = TestNode::start();
    let mut follower = node
        .command(&["events", "--follow", "--output", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary exists");
    let seen = Arc::new(Mutex::new(String::new()));
    let readers = [
        collect(follower.stdout.take().expect("it is piped"), &seen),
        collect(follower.stderr.take().expect("it is piped"), &seen),
    ];
    let shows = |word: &str| eventually(LIMIT, || seen.lock().contains(word));
    let _before = node.pod("before-the-restart");
    let before = shows("before-the-restart");
    node.daemon().restart();
    let _after = node.pod("after-the-restart");
    let after = before && shows("after-the-restart");
    follower.kill().expect("it runs");
    follower.wait().expect("it is ours");
    for reader in readers {
        reader.join().expect("it does not panic");
    }
    let seen = seen.lock();
    assert!(
        // It waits only if the next daemon does not serve yet when it asks again.
        after && seen.contains("was restarted"),
        "{seen}"
    );
}

/// Collects the lines that a process prints.
pub(crate) fn collect(
    output: impl Read + Send + 'static,
    seen: &Arc<Mutex<String>>,
) -> JoinHandle<()> {
    let seen = Arc::clone(seen);
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            seen.lock().push_str(&line);
        }
    })
}
