//! The Debian package: its upgrades and downgrades while pods and tasks run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::{Value, json};
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::eventually;
use switchyard_tests::nomad::{Agent, TaskRunner, TaskSetup};

use crate::daemon::{COUNT, assert_counts_on, kill_main};
use crate::node::{GuestFact, GuestNode, GuestPod, LIMIT, cgroup_file, property, run};
use crate::nomad::{agent, task};

pub(crate) const FACTS: &[GuestFact] = &[
    ("units_survive_ten_kills_in_a_row", units_survive_ten_kills),
    (
        "package_upgrade_and_downgrade_change_no_process",
        upgrades_change_no_process,
    ),
    (
        "logkeeper_starts_and_containers_go_on_under_an_invalid_configuration",
        invalid_configuration,
    ),
];

/// The package that is installed, and one of the same tree with a lower number.
pub(crate) const NOW: &str = "/tests/packages/now.deb";
pub(crate) const BEFORE: &str = "/tests/packages/before.deb";

/// The variables of both units.
pub(crate) const VARIABLES: &str = "/etc/default/switchyard";

/// Counts until it is stopped, and exits with 5.
const COUNT_UNTIL_END: &str =
    "n=0; while [ ! -e /local/end ]; do n=$((n+1)); echo $n; sleep 0.05; done; exit 5";

pub(crate) fn dpkg(words: &[&str]) -> Output {
    let mut command = Command::new("dpkg");
    command
        .args(words)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .expect("it can be run")
}

/// The output of dpkg, which succeeds.
#[track_caller]
pub(crate) fn dpkg_succeeds(words: &[&str]) -> String {
    let output = dpkg(words);
    let text = text(&output);
    assert!(output.status.success(), "{words:?}: {text}");
    text
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// A pod that counts, and the processes that serve it.
pub(crate) struct Counting<'n> {
    node: &'n GuestNode,
    pub(crate) pod: GuestPod<'n>,
    pub(crate) container: String,
}

impl<'n> Counting<'n> {
    pub(crate) fn start(node: &'n GuestNode, name: &str) -> Self {
        Self::start_in(node, node.pod(name), |_| {})
    }

    /// The same in this pod, with a container that `change` changes.
    pub(crate) fn start_in(
        node: &'n GuestNode,
        pod: GuestPod<'n>,
        change: impl FnOnce(&mut cri::ContainerConfig),
    ) -> Self {
        let container = pod.start_shell_with("counting", COUNT, change);
        assert_counts_on(&pod);
        Self {
            node,
            pod,
            container,
        }
    }

    /// The main process of the container.
    pub(crate) fn process(&self) -> String {
        cgroup_file(&self.container, "cgroup.procs")
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    }

    /// Checks that it counts on, with a daemon that serves.
    #[track_caller]
    pub(crate) fn assert_goes_on(&self, process: &str) {
        self.node.wait_ready();
        assert_eq!(self.process(), process);
        assert_counts_on(&self.pod);
        assert_eq!(self.node.cri.sh(&self.container, "echo reached"), "reached");
    }
}

/// A task of Nomad that counts, and its agent.
pub(crate) struct CountingTask {
    agent: Arc<Agent>,
    task: TaskSetup,
    runner: TaskRunner,
    attributes: BTreeMap<String, String>,
}

// === impl CountingTask ===

impl CountingTask {
    pub(crate) fn start(node: &GuestNode) -> Self {
        let agent = Arc::new(agent());
        let task = task(&agent, &node.image(), COUNT_UNTIL_END, json!({}));
        let started = agent.driver().start(&task.config).expect("it starts");
        let runner = TaskRunner::start(&agent, started.handle.expect("it has a handle"));
        let attributes = attributes(&agent, &task);
        Self {
            agent,
            task,
            runner,
            attributes,
        }
    }

    /// Fails unless it counts on as the same process, recovered by its agent after this many replacements of the daemon.
    #[track_caller]
    pub(crate) fn assert_goes_on(&self, replacements: u32) {
        self.runner.wait_recovered(replacements);
        let so_far = self.task.stdout().len();
        self.task.wait_stdout(|text| text.len() > so_far + 10);
        assert_eq!(attributes(&self.agent, &self.task), self.attributes);
        // The plugin outlives a replacement before that.
        self.runner.wait_recovery_over();
    }

    /// Lets it end, and fails unless its output has no gap and its exit is that of its command.
    #[track_caller]
    pub(crate) fn end(mut self, replacements: u32) {
        fs::write(self.task.task_dir().join("local/end"), "").expect("the disk can be written");
        let ended = self.runner.join();
        assert_eq!(
            (ended.result.exit_code, ended.recovered),
            (5, replacements),
            "{ended:?}"
        );
        let printed = self.task.stdout();
        assert!(
            printed
                .lines()
                .zip(1..)
                .all(|(line, number)| *line == format!("{number}")),
            "{printed}"
        );
        let destroyed = self.agent.driver().destroy(self.task.id(), true);
        destroyed.expect("it can be destroyed");
        self.task.remove_cgroups();
    }
}

/// The attributes of a task, among them its process.
#[track_caller]
fn attributes(agent: &Agent, task: &TaskSetup) -> BTreeMap<String, String> {
    let inspected = agent.driver().inspect(task.id()).expect("it runs");
    inspected.driver.expect("the driver has it").attributes
}

/// The processes of the logkeeper and of containerd.
pub(crate) fn helpers() -> [String; 2] {
    let file =
        fs::read_to_string("/run/switchyard/containerd/containerd.pid").expect("it is managed");
    let containerd = file
        .split_whitespace()
        .next()
        .expect("it names a process")
        .to_owned();
    [property("switchyard-logkeeper", "MainPID"), containerd]
}

/// The parts whose program was replaced.
fn replaced() -> Vec<String> {
    let status: Value = serde_json::from_str(&run(&["switchyard", "status", "--output", "json"]))
        .expect("it is JSON");
    let programs = status["programs"]
        .as_array()
        .expect("it lists programs")
        .iter();
    assert_eq!(programs.len(), 3, "{status}");
    let replaced = programs.filter(|program| program["replaced"] == true);
    replaced
        .map(|program| program["part"].as_str().expect("it has a name").to_owned())
        .collect()
}

fn units_survive_ten_kills(node: &GuestNode) {
    let counting = Counting::start(node, "kills");
    let process = counting.process();
    // systemd gives up after five starts within ten seconds, unless the unit says otherwise.
    for _ in 0..10 {
        kill_main("switchyard-logkeeper");
    }
    for _ in 0..6 {
        // The next one need not be ready.
        let before = property("switchyard", "MainPID");
        run(&[
            "systemctl",
            "kill",
            "--kill-whom=main",
            "--signal=KILL",
            "switchyard",
        ]);
        let again =
            || !["0", before.as_str()].contains(&property("switchyard", "MainPID").as_str());
        assert!(
            eventually(LIMIT, again),
            "systemd does not start the daemon again"
        );
    }
    counting.assert_goes_on(&process);
}

fn upgrades_change_no_process(node: &GuestNode) {
    let counting = Counting::start(node, "upgraded");
    let process = counting.process();
    let task = CountingTask::start(node);
    let helpers_before = helpers();
    assert_eq!(replaced(), Vec::<String>::new());

    assert_upgrade_replaces_the_daemon_only(&counting, &process, &helpers_before);

    assert_upgrade_of_containerd_is_noticed();

    assert_restarts_replace_both(&helpers_before);
    counting.assert_goes_on(&process);

    task.assert_goes_on(1);

    dpkg_succeeds(&["--install", NOW]);
    counting.assert_goes_on(&process);
    task.assert_goes_on(2);
    task.end(2);
}

fn assert_restarts_replace_both(helpers_before: &[String; 2]) {
    let [keeper, containerd] = helpers_before;
    let said = run(&["switchyard", "restart", "logkeeper"]);
    assert!(
        said.starts_with(&format!("logkeeper: process {keeper} before, process ")),
        "{said}"
    );
    assert_eq!(replaced(), ["containerd"]);
    let said = run(&["switchyard", "restart", "containerd"]);
    assert!(
        said.starts_with(&format!(
            "containerd: process {containerd} before, process "
        )),
        "{said}"
    );
    assert_eq!(replaced(), Vec::<String>::new());
    assert!(
        helpers()
            .iter()
            .zip(helpers_before)
            .all(|(now, before)| now != before)
    );
}

fn assert_upgrade_of_containerd_is_noticed() {
    // As an upgrade of containerd does it.
    run(&[
        "sh",
        "-c",
        "cp -p /usr/bin/containerd /usr/bin/new && mv /usr/bin/new /usr/bin/containerd",
    ]);
    run(&[
        "dpkg-trigger",
        "--no-await",
        "--by-package=containerd",
        "/usr/bin/containerd",
    ]);
    let said = dpkg_succeeds(&["--triggers-only", "--pending"]);
    assert!(
        said.contains("'switchyard restart containerd' replaces it"),
        "{said}"
    );
    assert_eq!(replaced(), ["containerd", "logkeeper"]);
}

fn assert_upgrade_replaces_the_daemon_only(
    counting: &Counting<'_>,
    process: &str,
    helpers_before: &[String; 2],
) {
    let daemon = property("switchyard", "MainPID");
    let said = dpkg_succeeds(&["--install", BEFORE]);
    assert_ne!(
        property("switchyard", "MainPID"),
        daemon,
        "the new program is in place"
    );
    assert!(
        said.contains("'switchyard restart logkeeper' replaces it"),
        "{said}"
    );
    counting.assert_goes_on(process);
    assert_eq!(helpers(), *helpers_before);
    assert_eq!(replaced(), ["logkeeper"]);
    let metrics =
        switchyard_tests::http::get_unix(Path::new("/run/switchyard/admin.sock"), "/metrics");
    let metrics = metrics.expect("they are served").text();
    assert!(
        metrics.contains("switchyard_replaced_programs{part=\"logkeeper\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("switchyard_replaced_programs{part=\"containerd\"} 0"),
        "{metrics}"
    );
}

fn invalid_configuration(node: &GuestNode) {
    let counting = Counting::start(node, "invalid");
    let process = counting.process();
    let drop_in = Path::new("/etc/switchyard/config.d/90-invalid.toml");
    // Of the next daemon.
    let variables = Path::new(VARIABLES);
    fs::write(variables, "SWITCHYARD_EXEC__MAX_PER_CONTAINER=79\n").expect("root may");
    fs::write(drop_in, "version = 1\n[admin]\nno_such_key = 1\n").expect("root may");
    kill_main("switchyard-logkeeper");
    counting.assert_goes_on(&process);
    let keeper = property("switchyard-logkeeper", "MainPID");
    let environment = fs::read(format!("/proc/{keeper}/environ")).expect("it runs");
    let mut has = environment.split(|byte| *byte == 0);
    assert!(
        has.any(|variable| variable == b"SWITCHYARD_EXEC__MAX_PER_CONTAINER=79"),
        "{}",
        String::from_utf8_lossy(&environment)
    );
    for part in ["logkeeper", "containerd"] {
        let said = run(&["switchyard", "restart", part]);
        assert!(said.starts_with(&format!("{part}: process ")), "{said}");
    }
    counting.assert_goes_on(&process);

    // The next daemon refuses it, and neither the logkeeper nor the container needs one.
    run(&[
        "systemctl",
        "kill",
        "--kill-whom=main",
        "--signal=KILL",
        "switchyard",
    ]);
    let is_refused = || property("switchyard", "Result") == "exit-code";
    assert!(eventually(LIMIT, is_refused), "the daemon starts");
    kill_main("switchyard-logkeeper");
    assert_counts_on(&counting.pod);
    fs::remove_file(drop_in).expect("root may");
    let is_active = || property("switchyard", "ActiveState") == "active";
    assert!(eventually(LIMIT, is_active), "it is not started again");
    counting.assert_goes_on(&process);
    let in_force = run(&["switchyard", "config", "dump", "--running"]);
    assert!(in_force.contains("max_per_container = 79\n"), "{in_force}");
    let log = run(&[
        "journalctl",
        "--boot",
        "--output",
        "cat",
        "--unit",
        "switchyard-logkeeper",
    ]);
    assert!(
        log.contains("the configuration is invalid") && log.contains("90-invalid.toml:3"),
        "{log}"
    );
    fs::remove_file(variables).expect("root may");
    run(&["systemctl", "restart", "switchyard"]);
    counting.assert_goes_on(&process);
}
