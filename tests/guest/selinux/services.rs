//! Services that a real manager, Debian's dockerd beside the node, places on it: what each has been given is its own, and nothing of the
//! other one.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use switchyard_tests::host::eventually;
use switchyard_tests::image::busybox;
use switchyard_tests::swarm::SwarmCluster;

use super::{IDLE, assert_denied, assert_pair, label_of, level, trimmed};
use crate::node::{GuestNode, LIMIT, run};

/// An image that declares a volume.
const IMAGE: &str = "library/volume:latest";
/// The directory of the files of secrets and configs, of each task by its id in the swarm.
const FILES: &str = "/run/switchyard/swarm";
/// The directory of the volumes that images declare, of each task by its id here.
const TASKS: &str = "/var/lib/switchyard/tasks";
/// A type of the policy, as a label begins with it.
const FILE: &str = "system_u:object_r:container_file_t";

/// A task of a service, as seen from the node.
struct ServiceTask {
    name: String,
    label: String,
    /// The directory of its image's volume.
    volume: String,
    /// The files of its secret and of its config.
    files: [String; 2],
}

impl ServiceTask {
    /// Waits until the only task of a service runs.
    #[track_caller]
    fn of(cluster: &SwarmCluster, service: &str) -> Self {
        let name = format!("{service}.1");
        let mut id = None;
        cluster.wait_until("the task runs", || {
            id = running_task(&name);
            id.is_some()
        });
        let id = id.expect("it was found");
        let in_swarm = [
            "service",
            "ps",
            "--no-trunc",
            "--format",
            "{{.ID}}",
            service,
        ];
        let in_swarm = cluster.docker(&in_swarm);
        let file = |number: u8| format!("{FILES}/{}/{number}", in_swarm.trim());
        let (label, error, code) = exec(&name, "cat /proc/self/attr/current");
        assert_eq!(code, Some(0), "{error}");
        Self {
            name,
            label: trimmed(&label),
            volume: format!("{TASKS}/{id}/volumes/0"),
            files: [0, 1].map(file),
        }
    }

    /// The output of a script in it.
    #[track_caller]
    fn sh(&self, script: &str) -> String {
        let (output, error, code) = exec(&self.name, script);
        assert_eq!(code, Some(0), "{}: {script}: {error}", self.name);
        trimmed(&output)
    }

    /// Checks that it may not read a file at a path, by what a label of this class denies.
    #[track_caller]
    fn assert_denied(&self, path: &str, label: &str, class: &str) {
        assert_denied(&self.label, label, class, || {
            let (output, error, code) = exec(&self.name, &format!("cat {path}"));
            assert!(
                code != Some(0) && error.contains("Permission denied"),
                "{}: {path}: {code:?} {output} {error}",
                self.name
            );
        });
    }
}

/// The id of a running task by its name.
fn running_task(name: &str) -> Option<String> {
    let list = run(&["switchyard", "ps", "--output", "json"]);
    let objects: Value = serde_json::from_str(&list).expect("it is JSON");
    let tasks = objects["tasks"].as_array().expect("there is a list");
    let task = tasks
        .iter()
        .find(|task| task["display_name"] == name && task["state"] == "running")?;
    task["id"].as_str().map(str::to_owned)
}

/// The output of a script in a task, its errors, and its exit code.
fn exec(task: &str, script: &str) -> (String, String, Option<i32>) {
    let done = Command::new("/usr/bin/switchyard")
        .args(["exec", task, "sh", "-c", script])
        .output()
        .expect("it can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&done.stdout), text(&done.stderr), done.status.code())
}

/// Lets the node join.
#[track_caller]
fn join(cluster: &SwarmCluster) {
    let file = cluster.dir().join("token");
    fs::write(&file, cluster.token("worker")).expect("the directory is ours");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("the file is ours");
    let file = file.display().to_string();
    let manager = cluster.address(0);
    run(&[
        "switchyard",
        "swarm",
        "join",
        "--token-file",
        &file,
        &manager,
    ]);
    cluster.wait_until(
        "the worker is ready",
        || matches!(&cluster.workers()[..], [one] if one.contains(" Ready ")),
    );
}

/// Creates a service of one task, with a secret and a config that contain its name, and these mounts beside a volume that both share.
#[track_caller]
fn create(cluster: &SwarmCluster, name: &str, image: &str, mounts: &[String]) -> ServiceTask {
    let [secret, config] = ["secret", "config"].map(|kind| {
        let object = format!("{name}-{kind}");
        let file = cluster.dir().join(&object);
        fs::write(&file, name).expect("the directory is ours");
        cluster.docker(&[kind, "create", &object, &file.display().to_string()]);
        object
    });
    let mut words = vec!["service", "create", "--detach", "--no-resolve-image"];
    words.extend(["--constraint", "node.role==worker", "--network", "host"]);
    words.extend(["--stop-grace-period", "100ms", "--name", name]);
    words.extend(["--secret", &secret, "--config", &config]);
    words.extend(["--mount", "type=volume,source=shared,target=/shared"]);
    for mount in mounts {
        words.extend(["--mount", mount]);
    }
    words.extend([image, "sh", "-c", IDLE]);
    cluster.docker(&words);
    ServiceTask::of(cluster, name)
}

pub(super) fn services_are_confined_and_apart(node: &GuestNode) {
    node.registry.push(IMAGE, &busybox().volume("/own").build());
    let image = node.registry.reference(IMAGE);
    let cluster = SwarmCluster::in_this_network();
    join(&cluster);
    let one = create(&cluster, "one", &image, &[]);
    assert_eq!(one.sh("echo one > /own/file && cat /own/file"), "one");
    let bind = |source: &str, target: &str| format!("type=bind,source={source},target={target}");
    // All that the first one has, by paths of the node.
    let mounts = [
        bind(&one.volume, "/volume"),
        bind(&one.files[0], "/first"),
        bind(&one.files[1], "/second"),
    ];
    let two = create(&cluster, "two", &image, &mounts);
    assert_eq!(two.sh("echo two > /own/file && cat /own/file"), "two");

    let tasks = [&one, &two];
    let levels = tasks.map(|task| level(&task.label, "system_u:system_r:container_t"));
    for level in levels {
        assert_pair(level);
    }
    assert_ne!(levels[0], levels[1], "they are of two services");
    for ((task, level), name) in tasks.into_iter().zip(levels).zip(["one", "two"]) {
        for path in [
            format!("/run/secrets/{name}-secret"),
            format!("/{name}-config"),
        ] {
            assert_eq!(task.sh(&format!("cat {path}")), name, "{path}");
        }
        let written = format!("{}/file", task.volume);
        for path in [&task.volume, &written, &task.files[0], &task.files[1]] {
            assert_eq!(label_of(path), format!("{FILE}:{level}"), "{path}");
        }
        // A volume by name is for all tasks, as with dockerd. The policy of Debian gives a file the categories of the process that makes it,
        // so that each has one of its own.
        task.sh(&format!("echo {name} > /shared/{name}"));
    }
    for task in tasks {
        assert_eq!(task.sh("echo /shared/*"), "/shared/one /shared/two");
    }

    let of_one = format!("{FILE}:{}", levels[0]);
    two.assert_denied("/volume/file", &of_one, "dir");
    two.assert_denied("/first", &of_one, "file");
    two.assert_denied("/second", &of_one, "file");

    cluster.docker(&["service", "rm", "one", "two"]);
    cluster.wait_until("both tasks are gone", || {
        ["one.1", "two.1"]
            .iter()
            .all(|name| running_task(name).is_none())
    });
    run(&["switchyard", "swarm", "leave"]);
    let is_gone = || !Path::new(&one.volume).exists();
    assert!(eventually(LIMIT, is_gone), "its volume is left");
}
