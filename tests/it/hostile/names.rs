//! Names of every length and byte, in every field of every frontend that takes one. Each is used unchanged or
//! refused with the name of its field; none leads out of a directory, and none crashes a process of ours.

use std::fs;
use std::path::Path;

use nix::unistd::Pid;
use serde_json::json;
use switchyard_proto::cri::v1::{
    ContainerConfig, DnsConfig, Int64Value, KeyValue, Mount, PodSandboxConfig, SeLinuxOption,
};
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::cri::{context, image_spec, namespaces, security};
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use tonic::{Code, Status};

mod tables;

use tables::{CONTAINERS, OPTIONS, PODS, TASKS};

/// In every text that could become a path, to find what it became.
const MARK: &str = "made-by-a-name";

/// The most bytes of a refusal: it goes in a trailer, of which clients take few.
const MOST_WORDS: usize = switchyard_core::STATUS_TEXT_MAX;

/// A field, by the word that a refusal has (several have `|` between), and how it is set.
type Field<T> = (&'static str, fn(&mut T, &str));

/// Texts that a refusal of an option may have instead of its name: that of the runtime, or the step that was
/// taken for it.
const REFUSAL_ALTERNATIVES: [(&str, &str); 2] = [("image", "pull"), ("work_dir", "mkdir")];

/// Texts of every kind and length that something gives a meaning.
fn texts() -> Vec<String> {
    let up = format!("../../../../../../../../../../../../{MARK}");
    let mut texts: Vec<String> = [
        "",
        ".",
        "..",
        "/",
        "\0",
        "a\0b",
        "\n",
        "a\nb",
        "\"quoted\"",
        "a'b",
        "a;b=c,d",
        "$(id)",
        "{id}",
        "\u{1b}[2J",
        "\u{fffd}",
        "\u{202e}gnp",
        "e\u{301}",
        "\u{10ffff}",
        "\u{feff}a",
        " a ",
        "-rf",
    ]
    .map(str::to_owned)
    .into();
    texts.extend([
        up.clone(),
        format!("/{MARK}"),
        format!("a/{up}"),
        format!("/proc/self/fd/0/{MARK}"),
    ]);
    for length in [64, 65, 128, 253, 254, 255, 256, 4_096, 65_536] {
        texts.push("n".repeat(length));
    }
    texts.push(format!("/{}", "n".repeat(5_000)));
    texts.extend([
        "é".repeat(127),
        "é".repeat(128),
        "\0".repeat(65_536),
        "\u{1f980}".repeat(16_384),
    ]);
    texts
}

/// One text of each kind, for what takes a while.
fn few_texts() -> Vec<String> {
    let up = format!("../../../../../../../../../../../../{MARK}");
    let texts = [
        "",
        "\0",
        "a\nb",
        "\u{202e}gnp",
        &up,
        &format!("/{MARK}"),
        &"n".repeat(256),
        &"n".repeat(65_536),
    ];
    texts.map(str::to_owned).into()
}

/// The processes that a name must not end.
#[derive(Debug, PartialEq, Eq)]
struct NodeServerPids {
    daemon: i32,
    containerd: Pid,
    logkeeper: Option<Pid>,
}

impl NodeServerPids {
    fn now(node: &TestNode) -> Self {
        let daemon = node.daemon().pid();
        assert!(
            Path::new(&format!("/proc/{daemon}/exe")).exists(),
            "the daemon is gone:\n{}",
            node.daemon().tail()
        );
        Self {
            daemon,
            containerd: node.containerd_pid(),
            logkeeper: node.root().managed("logkeeper"),
        }
    }
}

/// Paths that a name made outside of the directories that are for it.
fn paths_made_by_names(node: &TestNode) -> Vec<String> {
    let root = node.root().path();
    let mut dirs: Vec<_> = root.ancestors().map(Path::to_owned).collect();
    dirs.extend([
        root.join("run"),
        root.join("state"),
        "/etc".into(),
        "/var/log".into(),
        "/sys/fs/cgroup".into(),
    ]);
    let names = dirs
        .iter()
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flatten()
        .flatten();
    let marked = names.filter(|entry| entry.file_name().to_string_lossy().contains(MARK));
    marked
        .map(|entry| entry.path().display().to_string())
        .collect()
}

/// A text as a failure message shows it.
fn shown(text: &str) -> String {
    let start: String = text.chars().take(40).collect();
    format!("{start:?} of {} bytes", text.len())
}

/// The fault of a refusal, if there is one: its code must blame the client, and its text must name the field
/// and fit into a trailer.
fn wrong(field: &str, text: &str, status: &Status) -> Option<String> {
    let codes = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::FailedPrecondition,
        Code::Unimplemented,
        Code::ResourceExhausted,
    ];
    let fits = status.message().len() <= MOST_WORDS;
    let named = field.split('|').any(|word| status.message().contains(word));
    let right = codes.contains(&status.code()) && named && fits;
    (!right).then(|| {
        format!(
            "{field} = {}: {:?}: {}",
            shown(text),
            status.code(),
            shown(status.message())
        )
    })
}

#[test]
fn arbitrary_pod_names_are_used_or_rejected_by_field() {
    let node = TestNode::start();
    let alive = NodeServerPids::now(&node);
    let mut faults = Vec::new();
    for (field, set) in PODS {
        for text in texts() {
            let mut config = node.pod_config("hostile");
            namespaces(&mut config).network = if *field == "sysctl" { 0 } else { 2 };
            set(&mut config, &text);
            match node.cri().run_pod(&config) {
                Ok(id) => {
                    let status = node.cri().pod_status(&id).expect("it has just been made");
                    let as_asked = status.metadata == config.metadata
                        && status.labels == config.labels
                        && status.annotations == config.annotations;
                    faults.extend(
                        (!as_asked)
                            .then(|| format!("{field} = {}: reported otherwise", shown(&text))),
                    );
                    node.cri().remove_pod(&id).expect("it can be removed");
                }
                Err(status) => faults.extend(wrong(field, &text, &status)),
            }
        }
        assert_eq!(NodeServerPids::now(&node), alive, "after {field}");
    }
    for text in texts().iter().filter(|text| !text.is_empty()) {
        let refused = node
            .cri()
            .run_pod_with(&node.pod_config("handler"), text)
            .expect_err("there is none");
        faults.extend(wrong("runtime_handler", text, &refused));
    }
    faults.extend(
        paths_made_by_names(&node)
            .iter()
            .map(|path| format!("{path} was made")),
    );
    assert!(faults.is_empty(), "{faults:#?}");
    node.assert_clean();
}

#[test]
fn arbitrary_container_names_are_used_or_rejected_by_field() {
    let node = TestNode::shared();
    let pod = node.pod_with("hostile", |config| namespaces(config).network = 2);
    let alive = NodeServerPids::now(&node);
    let mut faults = Vec::new();
    for (field, set) in CONTAINERS {
        for text in texts() {
            let mut config = node.container("hostile", &["true"]);
            set(&mut config, &text);
            match pod.try_create(&config) {
                Ok(id) => {
                    let status = node.cri().status(&id).expect("it has just been made");
                    let as_asked = status.metadata == config.metadata
                        && status.labels == config.labels
                        && status.annotations == config.annotations;
                    faults.extend(
                        (!as_asked)
                            .then(|| format!("{field} = {}: reported otherwise", shown(&text))),
                    );
                    if *field == "config.log_path" {
                        faults.extend(check_log_path(&node, &id, &status.log_path, &text));
                    }
                    node.cri().remove(&id).expect("it can be removed");
                }
                Err(status) => {
                    // The directory to start in is checked where the image's own is, by its name in the
                    // runtime's configuration.
                    let is_of_runtime =
                        *field == "config.working_dir" && status.message().starts_with("cwd: ");
                    faults.extend(wrong(
                        if is_of_runtime { "cwd" } else { field },
                        &text,
                        &status,
                    ));
                }
            }
        }
        assert_eq!(NodeServerPids::now(&node), alive, "after {field}");
    }
    faults.extend(
        paths_made_by_names(&node)
            .iter()
            .map(|path| format!("{path} was made")),
    );
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Starts a container whose log has a strange name; returns what is wrong with the location of the log.
fn check_log_path(node: &TestNode, id: &str, path: &str, name: &str) -> Option<String> {
    if let Err(status) = node.cri().start(id) {
        return wrong("log", name, &status);
    }
    let _ = node.cri().wait_exit(id);
    let within = Path::new(path).starts_with(node.root().log_dir());
    (!(name.is_empty() || within && Path::new(path).is_file()))
        .then(|| format!("the log {} is not at {path:?}", shown(name)))
}

#[test]
fn arbitrary_ids_are_not_found_with_short_errors() {
    let node = TestNode::shared();
    let alive = NodeServerPids::now(&node);
    let client = node.cri();
    let mut faults = Vec::new();
    for text in texts() {
        let answers = [
            ("status", client.status(&text).map(drop)),
            ("pod status", client.pod_status(&text).map(drop)),
            ("start", client.start(&text)),
            ("exec", client.exec(&text, &["true"], 1).map(drop)),
            ("stats", client.stats(&text).map(drop)),
            ("reopen", client.reopen_log(&text)),
            ("update", client.update(&text, Default::default())),
            (
                "port forward",
                client.port_forward_url(&text, &[80]).map(drop),
            ),
            ("remove volume", client.remove_volume(&text)),
        ];
        for (call, answer) in answers {
            match answer {
                Ok(()) => {
                    faults.extend(
                        (call != "remove volume")
                            .then(|| format!("{call} of {}: done", shown(&text))),
                    );
                }
                Err(status) => faults.extend(wrong("", &text, &status)),
            }
        }
        // What is gone is stopped and removed already.
        for (call, answer) in [
            ("stop", client.stop(&text, 0)),
            ("remove", client.remove(&text)),
            ("stop pod", client.stop_pod(&text)),
        ] {
            faults.extend(
                answer
                    .err()
                    .map(|status| format!("{call} of {}: {status}", shown(&text))),
            );
        }
    }
    assert_eq!(NodeServerPids::now(&node), alive);
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn arbitrary_volume_names_stay_in_the_volume_directory() {
    let node = TestNode::shared();
    let pod = node.pod_with("volumes", |config| namespaces(config).network = 2);
    let mut faults = Vec::new();
    for text in texts().iter().filter(|text| !text.is_empty()) {
        let plain = node.container("hostile", &["true"]);
        let config = old::ContainerConfig {
            metadata: plain.metadata,
            image: plain.image,
            command: plain.command,
            mounts: vec![old::Mount {
                name: text.clone(),
                container_path: "/v".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        match node.cri().create_v1alpha2(pod.id(), &config) {
            Ok(id) => {
                node.cri().remove(&id).expect("it can be removed");
                node.cri().remove_volume(text).expect("nobody has it");
            }
            Err(status) => faults.extend(wrong("config.mounts[0].name", text, &status)),
        }
    }
    faults.extend(
        paths_made_by_names(&node)
            .iter()
            .map(|path| format!("{path} was made")),
    );
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn arbitrary_task_names_are_used_or_rejected_by_field() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    let alive = NodeServerPids::now(&node);
    let mut faults = Vec::new();
    let plain = || json!({ "image": node.image(), "command": "true", "network_mode": "host" });
    let mut start = |field: &str, text: &str, mut task: TaskSetup| {
        let driver = agent.driver();
        match driver.start(&task.config) {
            Ok(_) => driver
                .destroy(&task.config.id, true)
                .expect("it can be destroyed"),
            Err(status) => faults.extend(wrong(field, text, &status)),
        }
        task.remove_cgroups();
    };
    for text in few_texts() {
        for (field, set) in TASKS {
            let mut task = TaskSetup::new(node.root(), &agent, "task", &plain());
            set(&mut task.config, &text);
            start(field, &text, task);
        }
        for option in OPTIONS {
            let mut config = plain();
            config[option] = json!(text);
            let instead = REFUSAL_ALTERNATIVES
                .iter()
                .find(|(name, _)| *name == option)
                .map_or(option, |(_, word)| word);
            start(
                &format!("{option}|{instead}"),
                &text,
                TaskSetup::new(node.root(), &agent, "task", &config),
            );
        }
        let mut config = plain();
        config["labels"] = json!([{ text.clone(): text }]);
        start(
            "labels",
            &text,
            TaskSetup::new(node.root(), &agent, "task", &config),
        );
    }
    assert_eq!(NodeServerPids::now(&node), alive);
    faults.extend(
        paths_made_by_names(&node)
            .iter()
            .map(|path| format!("{path} was made")),
    );
    assert!(faults.is_empty(), "{faults:#?}");
    node.assert_clean();
}

#[test]
fn out_of_range_numbers_are_rejected_or_ignored() {
    let node = TestNode::shared();
    let pod = node.pod_with("numbers", |config| namespaces(config).network = 2);
    let alive = NodeServerPids::now(&node);
    let id = pod.start_shell("main", "trap 'exit 0' TERM; while :; do sleep 0.1; done");
    let mut faults = Vec::new();
    for number in [
        i64::MIN,
        -1,
        i64::from(i32::MAX),
        i64::from(u32::MAX),
        i64::MAX,
    ] {
        let mut config = node.container("hostile", &["true"]);
        context(&mut config).run_as_user = Some(Int64Value { value: number });
        match pod.try_create(&config) {
            Ok(made) => node.cri().remove(&made).expect("it can be removed"),
            Err(status) => faults.extend(wrong("run_as_user", &number.to_string(), &status)),
        }
        if let Err(status) = node.cri().exec(&id, &["true"], number) {
            faults.extend(wrong("timeout", &number.to_string(), &status));
        }
    }
    // The container heeds the signal, so the time that it has is never waited for.
    node.cri().stop(&id, i64::MAX).expect("it is stopped");
    assert_eq!(NodeServerPids::now(&node), alive);
    assert!(faults.is_empty(), "{faults:#?}");
}
