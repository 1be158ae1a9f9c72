//! Reports of the command line on sandboxes, tasks and images of all owners, by user.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::eventually;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::nomad::agent::Agent;
use switchyard_tests::nomad::task::TaskSetup;
use switchyard_tests::prereq;

use crate::history::{SECRET, audited, audited_node, collect};

/// Time for something to appear.
const LIMIT: Duration = Duration::from_secs(30);

/// A user without rights, and groups without names.
const NOBODY: &str = "65534";
const MEMBERS: &str = "64123";
const OTHERS: &str = "64124";

/// The JSON that a command prints.
#[track_caller]
fn shown(node: &TestNode, words: &[&str]) -> Value {
    serde_json::from_str(&node.output(words)).expect("it is JSON")
}

/// The only object with this name.
#[track_caller]
fn inspected(node: &TestNode, words: &[&str]) -> Value {
    let found = shown(node, &[&["inspect", "--output", "json"], words].concat());
    assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
    found[0].clone()
}

/// The error of a command that failed.
#[track_caller]
fn refused(done: &Output) -> String {
    let error = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(
        done.status.code(),
        Some(1),
        "{error}{}",
        String::from_utf8_lossy(&done.stdout)
    );
    error
}

/// The command line for another user, who can execute it wherever it was built.
fn client_of_others(node: &TestNode) -> PathBuf {
    let copy = node.root().path().join("client");
    let install = prereq::require("install", "coreutils");
    let binary = switchyard_tests::daemon::binary();
    let done = Command::new(install)
        .args(["-m", "0755"])
        .arg(binary)
        .arg(&copy)
        .status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "the binary cannot be copied"
    );
    copy
}

/// Runs a command as a user without rights whose supplementary group is this one.
fn call_as(node: &TestNode, client: &Path, group: &str, words: &[&str]) -> Output {
    let setpriv = prereq::require("setpriv", "util-linux");
    let ids = [
        "--reuid", NOBODY, "--regid", NOBODY, "--groups", group, "--",
    ];
    let mut command = Command::new(setpriv);
    command
        .args(ids)
        .arg(client)
        .args(words)
        .arg("--socket")
        .arg(node.root().run().join("admin.sock"));
    command.output().expect("setpriv was found")
}

#[test]
fn members_of_the_socket_group_read_and_root_alone_changes() {
    let node = TestNode::start_with(&format!("[admin]\nsocket_group = \"{MEMBERS}\"\n"), |_| {});
    let client = client_of_others(&node);
    let pod = node.pod("seen");
    let mut config = node.container("main", &["sleep", "1000"]);
    config.envs.push(cri::KeyValue {
        key: "PASSWORD".into(),
        value: SECRET.into(),
    });
    let id = pod.start(&config);
    let lease = "0".repeat(32);
    let reads: [&[&str]; 13] = [
        &["status", "--verbose"],
        &["ps"],
        &["images"],
        &["devices"],
        &["events"],
        &["history"],
        &["inspect", &id],
        &["inspect", "tests/seen", "--output", "json"],
        &["log", "level"],
        &["config", "dump", "--running"],
        &["top", "--once"],
        &["volume", "ls"],
        &["swarm", "status"],
    ];
    for words in reads {
        let done = call_as(&node, &client, MEMBERS, words);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(
            done.status.success() && !text.is_empty(),
            "{words:?}: {done:?}"
        );
        assert!(
            !text.contains(SECRET),
            "{words:?} shows members a secret: {text}"
        );
        let error = refused(&call_as(&node, &client, OTHERS, words));
        assert!(
            error.contains("cannot connect") && error.contains("Permission denied"),
            "{words:?}: {error}"
        );
    }
    let socket = node.root().run().join("admin.sock").display().to_string();
    let changes: [&[&str]; 11] = [
        &["inspect", "--env", &id],
        &["config", "reload"],
        &["log", "level", "debug"],
        &["log", "level", "--reset"],
        &["restart", "logkeeper"],
        &["devices", "release", &lease],
        &["volume", "rm", "none"],
        &["images", "rm", "none"],
        // What follows the task is the command's.
        &["exec", "--socket", &socket, &id, "true"],
        &["swarm", "leave"],
        &["page"],
    ];
    for words in changes {
        let error = refused(&call_as(&node, &client, MEMBERS, words));
        assert!(
            error.contains("only root may") && error.contains("user 65534"),
            "{words:?}: {error}"
        );
        assert!(error.contains("run this as root"), "{words:?}: {error}");
    }
    assert!(node.output(&["inspect", "--env", &id]).contains(SECRET));
    node.output(&["config", "reload"]);
    // The connections of the daemon itself, on which the watchdog depends, are not affected.
    assert!(
        !node.daemon().tail().contains("does not answer itself"),
        "{}",
        node.daemon().tail()
    );
}

#[test]
fn inspect_withholds_secrets_unless_root_asks_for_them() {
    let (node, file) = audited_node();
    let secret = |key: &str| [(key.to_owned(), SECRET.to_owned())].into();
    let pod = node.pod_with("inspected", |config| {
        config.annotations = secret("last-applied")
    });
    let mut config = node.container(
        "main",
        &["sh", "-c", &format!("echo {SECRET}; exec sleep 1000")],
    );
    config.envs.push(cri::KeyValue {
        key: "PASSWORD".into(),
        value: SECRET.into(),
    });
    config.annotations = secret("note");
    config.labels = secret("label");
    let id = pod.start(&config);
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let options = json!({
        "image": node.image(), "command": "sh", "args": ["-c", format!("echo {SECRET}; exec sleep 1000")],
        "labels": [{ "label": SECRET }],
    });
    let mut task = TaskSetup::new(node.root(), &agent, "secretive", &options);
    task.config.env.insert("TOKEN".into(), SECRET.into());
    driver.start(&task.config).expect("it starts");

    assert_pod_is_described(&node, &pod, &id);
    let tasks = shown(&node, &["ps", "--owner", "nomad", "--output", "json"]);
    let of_job = &tasks["tasks"][0];
    let name = of_job["display_name"]
        .as_str()
        .expect("it has a name")
        .to_owned();
    assert_eq!(
        inspected(&node, &[&name])["id"],
        of_job["id"],
        "the task, and not its sandbox"
    );

    let all = ["tests/inspected", "tests/inspected/main", &id[..20], &name];
    for words in [&["inspect"][..], &["inspect", "-o", "json"]] {
        let text = node.output(&[words, &all].concat());
        assert!(
            !text.contains(SECRET) && text.contains("PASSWORD") && text.contains("TOKEN"),
            "{text}"
        );
    }
    for words in [
        &["ps"][..],
        &["ps", "-o", "json"],
        &["images", "-o", "json"],
        &["devices", "-o", "json"],
    ] {
        assert!(!node.output(words).contains(SECRET), "{words:?}");
    }
    for name in all {
        assert!(
            node.output(&["inspect", "--env", name]).contains(SECRET),
            "{name}"
        );
        let whole = inspected(&node, &["--env", name]);
        assert!(whole.to_string().contains(SECRET), "{whole}");
    }
    assert_each_look_is_audited(&node, &file, &id);

    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
    drop(task);
    agent.stop();
}

fn assert_each_look_is_audited(node: &TestNode, file: &Path, id: &str) {
    let shown = |lines: &[Value]| {
        lines
            .iter()
            .filter(|line| line["operation"] == "show_secrets")
            .count()
    };
    assert!(
        eventually(LIMIT, || shown(&audited(file)) == 8),
        "{:#?}",
        audited(file)
    );
    let text = std::fs::read_to_string(file).expect("it is there");
    assert!(!text.contains(SECRET), "{text}");
    let lines = audited(file);
    let line = lines
        .iter()
        .find(|line| line["operation"] == "show_secrets" && line["task"] == json!(id));
    let line = line.expect("the container was shown");
    assert_eq!(
        (&line["uid"], &line["listener"]),
        (&json!(0), &json!("admin socket")),
        "{line}"
    );
    assert_eq!(line["names"]["container"], "main", "{line}");
    assert!(
        !std::fs::read_to_string(node.root().daemon_log())
            .expect("it has one")
            .contains(SECRET)
    );
}

fn assert_pod_is_described(node: &TestNode, pod: &TestPod<'_>, id: &str) {
    let main = inspected(node, &["tests/inspected/main"]);
    assert_eq!(
        (&main["kind"], &main["id"], &main["state"]),
        (&json!("task"), &json!(id), &json!("running"))
    );
    assert_eq!(main["names"]["pod"], "inspected");
    assert_eq!(
        (&main["environment"]["PASSWORD"], &main["labels"]["label"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        (&main["command"]["program"], &main["command"]["arguments"]),
        (&json!("sh"), &json!(2))
    );
    assert!(
        main["pid"].is_number() && main["started_at"].is_string(),
        "{main}"
    );
    assert!(
        main["cgroup"]
            .as_str()
            .is_some_and(|path| path.contains(id)),
        "{main}"
    );
    assert!(
        main["log"]
            .as_str()
            .is_some_and(|path| path.ends_with("main.log")),
        "{main}"
    );
    let mounts = main["mounts"].as_array().expect("there are some");
    assert!(
        mounts.iter().any(|mount| mount["target"] == "/etc/hosts"),
        "{main}"
    );
    let sandbox = inspected(node, &["tests/inspected"]);
    assert_eq!(
        (&sandbox["kind"], &sandbox["tasks"][id]),
        (&json!("sandbox"), &json!("tests/inspected/main"))
    );
    assert_eq!(sandbox["annotations"], json!({ "last-applied": null }));
    assert_eq!(sandbox["network"]["ips"][0], json!(pod.ip()));
}

#[test]
fn ambiguous_and_unknown_names_are_refused_with_candidates() {
    let node = TestNode::shared();
    let pod = node.pod("ambiguous");
    let first = pod.create(&node.container("main", &["true"]));
    let mut again = node.container("main", &["true"]);
    again.metadata = Some(cri::ContainerMetadata {
        name: "main".into(),
        attempt: 1,
    });
    let second = pod.create(&again);
    let error = refused(&node.call(&["inspect", "tests/ambiguous/main"]));
    for part in ["can mean 2 objects", &first, &second, "give more of an id"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(inspected(&node, &[&first[..30]])["state"], "created");
    for unknown in [
        "tests/none",
        "",
        &"f".repeat(64),
        "\u{1b}[2J",
        &"x".repeat(5000),
        "a b&env=true",
    ] {
        let error = refused(&node.call(&["inspect", unknown]));
        assert!(!error.contains('\u{1b}'), "{error:?}");
    }
    // What was found is shown beside what was not.
    let done = node.call(&["inspect", "tests/none", &second]);
    assert!(refused(&done).contains("nothing has the name \"tests/none\""));
    assert!(String::from_utf8_lossy(&done.stdout).contains(&second));
}

#[test]
fn images_have_their_holders_and_users() {
    let node = TestNode::start();
    let pod = node.pod("user");
    let _id = pod.start(&node.container("main", &["sleep", "1000"]));
    let reference = node.image();
    let find = |words: &[&str]| -> Option<Value> {
        let images = shown(&node, &[&["images", "--output", "json"], words].concat());
        let images = images.as_array().expect("it is a list").clone();
        images
            .into_iter()
            .find(|image| image["tags"] == json!([reference]))
    };
    let image = find(&[]).expect("it was pulled");
    assert_eq!(
        (&image["holders"], &image["task_count"]),
        (&json!({ "kubernetes": "open" }), &json!(1))
    );
    assert_eq!(image["tasks"][0]["owner"], "kubernetes");
    assert!(
        image["stored_at"].is_string() && image["size_bytes"].as_u64() > Some(1000),
        "{image}"
    );
    assert_eq!(
        (
            find(&["--owner", "kubernetes"]),
            find(&["--owner", "nomad"])
        ),
        (Some(image), None)
    );
    let table = node.output(&["images"]);
    let row = table
        .lines()
        .find(|line| line.contains(&reference))
        .expect("it is there");
    assert!(
        table.starts_with("IMAGE ") && row.ends_with("kubernetes"),
        "{table}"
    );
}

#[test]
fn watch_goes_on_over_a_restart_of_the_daemon() {
    let node = TestNode::start();
    let mut watch = node
        .command(&["ps", "--watch=0.2", "--output", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary exists");
    let (lists, errors) = (
        Arc::new(Mutex::new(String::new())),
        Arc::new(Mutex::new(String::new())),
    );
    let readers = [
        collect(watch.stdout.take().expect("it is piped"), &lists),
        collect(watch.stderr.take().expect("it is piped"), &errors),
    ];
    let shows = |word: &str| eventually(LIMIT, || lists.lock().contains(word));
    let _before = node.pod("before-the-restart");
    let before = shows("before-the-restart");
    node.daemon().kill9();
    let told = before && eventually(LIMIT, || errors.lock().contains("waiting for the daemon"));
    node.daemon().restart();
    let _after = node.pod("after-the-restart");
    let after = told && shows("after-the-restart");
    watch.kill().expect("it runs");
    watch.wait().expect("it is ours");
    for reader in readers {
        reader.join().expect("it does not panic");
    }
    let errors = errors.lock();
    assert!(
        after && errors.matches("waiting for the daemon").count() == 1,
        "{after} {errors}"
    );
}

#[test]
fn command_of_an_operator_ends_with_the_daemon_that_carries_it() {
    let node = TestNode::start();
    let pod = node.pod("carrying");
    let id = pod.start(&node.container("main", &["sleep", "1000"]));
    let exec = |script: &str| {
        let mut command = Command::new(switchyard_tests::daemon::binary());
        command
            .args(["exec", "--socket"])
            .arg(node.root().run().join("admin.sock"))
            .arg(&id)
            .args(["sh", "-c", script]);
        command
    };
    let commands = || {
        let listed = exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").output();
        String::from_utf8_lossy(&listed.expect("the binary exists").stdout).into_owned()
    };
    for is_killed in [true, false] {
        let mut client = exec("echo begun; exec sleep 77777")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary exists");
        let output = client.stdout.as_mut().expect("it is piped");
        output.read_exact(&mut [0; 6]).expect("it prints");
        assert!(commands().contains("sleep 77777"));
        if is_killed {
            node.daemon().kill9();
        }
        node.daemon().restart();
        let error = refused(&client.wait_with_output().expect("it is ours"));
        assert!(
            error.contains("the session has ended before the command"),
            "{error}"
        );
        let is_gone = eventually(LIMIT, || {
            let text = commands();
            text.contains("sleep 1000") && !text.contains("sleep 77777")
        });
        assert!(is_gone, "{is_killed}: {}", commands());
    }
}
