//! Nomad tasks in the cgroup v2 that the agent created: through a kill of the daemon, and when they use too
//! much memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::daemon::binary;
use switchyard_tests::host::eventually;
use switchyard_tests::nomad::{Agent, AgentPaths, TaskRunner, TaskSetup};

use crate::daemon::kill_main;
use crate::node::{GuestFact, GuestNode, LIMIT, run};

pub(crate) const FACTS: &[GuestFact] = &[
    (
        "nomad_tasks_run_in_the_agents_cgroup_and_survive_daemon_kill",
        tasks_run_in_the_agents_cgroup,
    ),
    (
        "nomad_task_oom_kill_is_reported_and_its_cgroup_is_emptied",
        oom_kill_is_reported,
    ),
];

/// The memory limit of a task.
const LIMIT_BYTES: u64 = 64 << 20;
/// Counts until it is stopped, and exits with 5.
const COUNT: &str =
    "n=0; while [ ! -e /local/end ]; do n=$((n+1)); echo $n; sleep 0.05; done; exit 5";

/// The paths of the guest's agent: its cgroup is the one that Nomad creates.
pub(crate) fn agent_paths() -> AgentPaths {
    AgentPaths {
        dir: "/var/lib/guest-nomad".into(),
        socket: "/run/switchyard/nomad.sock".into(),
        cgroup: "nomad.slice".to_owned(),
        program: binary(),
    }
}

/// An agent of the guest's daemon.
pub(crate) fn agent() -> Agent {
    Agent::start(
        agent_paths(),
        &json!({ "allow_runtimes": ["runc", "crun"] }),
    )
}

/// A task that runs `sh -c script`, with more configuration.
pub(crate) fn task(agent: &Agent, image: &str, script: &str, more: Value) -> TaskSetup {
    let mut config = json!({ "image": image, "command": "sh", "args": ["-c", script] });
    let Value::Object(more) = more else {
        panic!("{more} is no block")
    };
    config.as_object_mut().expect("it is one").extend(more);
    TaskSetup::new(agent_paths(), agent, "task", &config)
}

/// The cgroup that the agent has created for a task.
fn task_cgroup(task: &nomad::TaskConfig) -> PathBuf {
    let name = format!(
        "nomad.slice/share.slice/{}.{}.scope",
        task.alloc_id, task.name
    );
    Path::new("/sys/fs/cgroup").join(name)
}

fn file(task: &nomad::TaskConfig, name: &str) -> String {
    let path = task_cgroup(task).join(name);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim_end().to_owned()
}

fn tasks_run_in_the_agents_cgroup(node: &GuestNode) {
    let agent = Arc::new(agent());
    let mut task = task(&agent, &node.image(), COUNT, json!({}));
    let started = agent.driver().start(&task.config).expect("it starts");
    let runner = TaskRunner::start(&agent, started.handle.expect("it has a handle"));
    let seen = |task: &TaskSetup| {
        (
            file(&task.config, "cgroup.procs"),
            file(&task.config, "memory.max"),
        )
    };
    let before = seen(&task);
    assert!(!before.0.is_empty(), "nothing is in the group");
    assert_eq!(before.1, LIMIT_BYTES.to_string());
    let inside = agent
        .driver()
        .exec(task.id(), &["cat", "/proc/self/cgroup"], LIMIT)
        .expect("it runs");
    // The root of the task's cgroup namespace.
    assert_eq!(inside.stdout, "0::/\n", "{inside:?}");
    // systemd does not know this cgroup, and writes its own values again when units are reloaded.
    run(&["systemctl", "daemon-reload"]);
    kill_main("switchyard");
    node.wait_ready();
    let so_far = task.stdout().len();
    task.wait_stdout(|text| text.len() > so_far + 10);
    let main = |procs: &str| procs.lines().next().map(str::to_owned);
    let after = seen(&task);
    assert_eq!((main(&after.0), after.1), (main(&before.0), before.1));
    fs::write(task.task_dir().join("local/end"), "").expect("the disk can be written");
    let ended = runner.join();
    assert_eq!(
        (ended.result.exit_code, ended.recovered),
        (5, 1),
        "{ended:?}"
    );
    let printed = task.stdout();
    assert!(
        printed
            .lines()
            .zip(1..)
            .all(|(line, number)| *line == format!("{number}")),
        "{printed}"
    );
    agent
        .driver()
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
}

fn oom_kill_is_reported(node: &GuestNode) {
    let agent = agent();
    let driver = agent.driver();
    // The kernel kills the main process or a child of it.
    let all = [
        (
            "runc",
            "exec dd if=/dev/zero of=/dev/null bs=200M count=10",
            137,
        ),
        (
            "crun",
            "dd if=/dev/zero of=/dev/null bs=200M count=10; exit 9",
            9,
        ),
    ];
    for (runtime, script, code) in all {
        let more = json!({ "network_mode": "host", "runtime": runtime });
        let mut task = task(&agent, &node.image(), script, more);
        driver
            .start(&task.config)
            .unwrap_or_else(|status| panic!("{runtime}: {status}"));
        let result = driver.wait(task.id(), LIMIT).expect("it ends");
        assert!(result.oom_killed, "{runtime}: {result:?}");
        assert_eq!(result.exit_code, code, "{runtime}");
        let group = task_cgroup(&task.config);
        assert!(
            eventually(LIMIT, || file(&task.config, "cgroup.procs").is_empty()),
            "{runtime}"
        );
        driver
            .destroy(task.id(), true)
            .expect("it can be destroyed");
        task.remove_cgroups();
        assert!(!group.exists(), "{runtime}");
    }
}
