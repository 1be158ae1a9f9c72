//! Kills of the daemon during calls about a task: when the agent repeats the call, once, the request is
//! carried out exactly once.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use switchyard_crash_points::CrashPoint::{self, *};
use switchyard_crash_points::Operation;
use switchyard_tests::host::processes::Process;
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::leak_scan::{NAMESPACE, stored};
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::agent::CallFailure;
use switchyard_tests::nomad::{Agent, BlockingDriver, TaskSetup};
use switchyard_tests::shards::own_points_of_this_run;
use tonic::Status;

use super::networks::NATIVE;
use super::shell;
use crate::images::{save, with_file};

/// Maximum running time of a test's task.
const RUN: Duration = Duration::from_secs(60);

/// Prints once that it has begun, and exits with 5 when it is stopped.
const ONCE: &str = "echo begun; while [ ! -e /local/end ]; do sleep 0.02; done; exit 5";

/// Points at which the creation of its network may be cut off: by the plugin that is run then.
const NETWORKS: [(CrashPoint, u32); 5] = [
    (PluginAdded, 1),
    (ResultSaved, 1),
    (PluginAdded, 2),
    (PluginAdded, 3),
    (ResultSaved, 3),
];

/// Points at which the creation of its network without plugins may be cut off. The first sandbox alone makes the bridge.
fn attach_steps() -> impl Iterator<Item = (CrashPoint, u32)> {
    let steps = Operation::AttachToBridge.crash_points().iter().copied();
    let of_each = steps.filter(|step| *step != BridgeMade);
    let all = [BridgeMade].into_iter().chain(of_each).chain([ResultSaved]);
    all.map(|step| (step, 1))
}

/// Points at which a start may be cut off: the task of [`shell`] has neither a network nor an infra process
/// nor a volume of its image, and its agent makes and reads its FIFOs.
fn start_steps() -> impl Iterator<Item = CrashPoint> {
    let operations = [
        Operation::CreateSandbox,
        Operation::CreateTask,
        Operation::StartTask,
    ];
    operations
        .into_iter()
        .flat_map(Operation::crash_points)
        .copied()
        .filter(|step| {
            let taken = !matches!(
                step,
                SandboxAttached
                    | InfraCreated
                    | InfraStarted
                    | InfraPinned
                    | TaskViewed
                    | TaskVolumes
                    | TaskFifos
                    | TaskLogged
            );
            taken && step.can_fail()
        })
}

/// Points at which the loading of its image may be cut off: an archive of one image has no index.
fn load_steps() -> impl Iterator<Item = CrashPoint> {
    Operation::PullImage
        .crash_points()
        .iter()
        .copied()
        .filter(|step| *step != IndexWritten)
}

/// Points at which the end of a task may be cut off: the logkeeper does not read its output.
fn end_steps() -> impl Iterator<Item = CrashPoint> {
    Operation::EndTask
        .crash_points()
        .iter()
        .copied()
        .filter(|step| *step != TaskLogFinished)
}

/// Points at which the removal of a task may be cut off.
fn removal_steps() -> impl Iterator<Item = CrashPoint> {
    [Operation::RemoveTask, Operation::RemoveSandbox]
        .into_iter()
        .flat_map(Operation::crash_points)
        .copied()
}

/// Makes a call as an agent does: when the plugin ends over it, once more on a new one.
pub(super) fn as_agent<T>(agent: &Agent, call: impl Fn(&BlockingDriver) -> Result<T, Status>) -> T {
    let driver = agent.driver();
    let status = match call(&driver) {
        Ok(answer) => return answer,
        Err(status) => status,
    };
    match agent.classify_failure(&driver, status) {
        CallFailure::PluginShutdown => {
            call(&agent.dispense()).expect("it is done at the second try")
        }
        CallFailure::Status(status) => panic!("the agent gives up: {status}"),
    }
}

/// Kills the daemon at a step during `call`, and restarts it.
pub(super) fn amid<T: Send>(
    node: &TestNode,
    step: CrashPoint,
    call: impl FnOnce() -> T + Send,
) -> T {
    amid_nth(node, (step, 1), call)
}

/// The same, when the step is reached for this time.
fn amid_nth<T: Send>(node: &TestNode, at: (CrashPoint, u32), call: impl FnOnce() -> T + Send) -> T {
    node.daemon().kill_at(&[at]);
    std::thread::scope(|scope| {
        let calling = scope.spawn(call);
        let mut daemon = node.daemon();
        daemon.wait_killed();
        daemon.spawn();
        daemon.wait_ready();
        drop(daemon);
        calling
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(super) fn finish(agent: &Agent, mut task: TaskSetup) {
    agent
        .driver()
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
}

#[test]
fn task_start_interrupted_by_kill_is_completed_by_retry_once() {
    let node = TestNode::start();
    for step in own_points_of_this_run(start_steps()) {
        // One that has recovered a task lately has a plugin that repeats the start itself.
        let agent = Arc::new(Agent::start(node.root(), &json!({})));
        let task = shell(&node, &agent, ONCE);
        let plugin = agent.plugin().pid();
        let started = amid(&node, step, || {
            as_agent(&agent, |driver| driver.start(&task.config))
        });
        assert_ne!(
            agent.plugin().pid(),
            plugin,
            "{step:?}: the plugin repeated it"
        );
        let handle = started.handle.expect("it has a handle");
        agent.driver().recover(&handle).expect("it is there");
        task.wait_stdout(|text| text.contains("begun"));
        assert!(
            !task.has_output_ended(),
            "{step:?}: an agent would read no more of it"
        );
        std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
        assert_eq!(
            agent
                .driver()
                .wait(task.id(), RUN)
                .expect("it ends")
                .exit_code,
            5,
            "{step:?}"
        );
        assert_eq!(
            task.stdout(),
            "begun\n",
            "{step:?}: it has run more than once"
        );
        finish(&agent, task);
        node.assert_clean();
    }
}

#[test]
fn task_start_interrupted_by_kill_during_recovery_is_repeated_by_the_plugin() {
    let node = TestNode::start();
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    let recovered = shell(&node, &agent, ONCE);
    let started = agent.driver().start(&recovered.config).expect("it starts");
    let handle = started.handle.expect("it has a handle");
    let plugin = agent.plugin().pid();
    for step in [TaskPrepared, TaskStarted] {
        let task = shell(&node, &agent, ONCE);
        // The agent takes other tasks over, and starts this one meanwhile.
        agent.driver().recover(&handle).expect("it is there");
        amid(&node, step, || agent.driver().start(&task.config)).expect("the plugin repeats it");
        assert_eq!(agent.plugin().pid(), plugin, "{step:?}");
        task.wait_stdout(|text| text.contains("begun"));
        std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
        let ended = agent.driver().wait(task.id(), RUN).expect("it ends");
        assert_eq!(ended.exit_code, 5, "{step:?}");
        assert_eq!(
            task.stdout(),
            "begun\n",
            "{step:?}: it has run more than once"
        );
        finish(&agent, task);
    }
    assert_eq!(recovered.stdout(), "begun\n");
    finish(&agent, recovered);
    node.assert_clean();
}

/// Returns whether a process has the standard output of a task open.
fn has_output_open(pid: u32, task: &TaskSetup) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs");
    let output = std::path::Path::new(&task.config.stdout_path);
    files
        .filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
        .any(|path| path == output)
}

#[test]
fn output_of_a_task_has_no_end_while_its_start_is_interrupted() {
    let node = TestNode::start();
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    let recovered = shell(&node, &agent, ONCE);
    let started = agent.driver().start(&recovered.config).expect("it starts");
    let handle = started.handle.expect("it has a handle");
    agent.driver().recover(&handle).expect("it is there");
    let other = node.shim("");
    let task = shell(&node, &agent, ONCE);
    node.daemon().kill_at(&[(TaskCreated, 1)]);
    std::thread::scope(|scope| {
        let starting = scope.spawn(|| agent.driver().start(&task.config));
        let mut daemon = node.daemon();
        daemon.wait_killed();
        // As when a second daemon is killed that has removed it: nobody has the output open then but the plugin.
        let plugin = agent.plugin().pid();
        assert!(eventually(RUN, || has_output_open(plugin, &task)));
        let all = processes::belonging_to(node.root().path());
        let is_shim = |process: &&Process| process.command.contains("containerd-shim");
        let mut shims = all.iter().filter(is_shim);
        let of_task = shims.find(|shim| shim.pid != other.as_raw());
        let of_task = of_task.expect("it was started").pid;
        kill(Pid::from_raw(of_task), Signal::SIGKILL).expect("it runs");
        daemon.spawn();
        daemon.wait_ready();
        drop(daemon);
        let started = starting.join().expect("a call does not panic");
        started.expect("the plugin repeats it");
    });
    task.wait_stdout(|text| text.contains("begun"));
    assert!(
        !task.has_output_ended(),
        "an agent would read no more of it"
    );
    finish(&agent, task);
    finish(&agent, recovered);
    node.assert_clean();
}

#[test]
fn network_creation_interrupted_by_kill_is_rolled_back_and_repeated() {
    interrupt_networks(&TestNode::start(), own_points_of_this_run(NETWORKS));
}

#[test]
fn network_creation_without_plugins_interrupted_by_kill_is_rolled_back_and_repeated() {
    let node = TestNode::start_with(NATIVE, |_| {});
    interrupt_networks(&node, own_points_of_this_run(attach_steps()));
}

#[test]
fn network_removal_without_plugins_interrupted_by_kill_is_completed_by_retry() {
    let node = TestNode::start_with(NATIVE, |_| {});
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    let steps = Operation::DetachFromBridge.crash_points().iter().copied();
    for step in own_points_of_this_run(steps.chain([JournalRemoved])) {
        let mut task = bridged(&node, &agent);
        agent.driver().start(&task.config).expect("it starts");
        task.wait_stdout(|text| text.contains("begun"));
        amid(&node, step, || {
            as_agent(&agent, |driver| driver.destroy(task.id(), true))
        });
        task.remove_cgroups();
        drop(task);
        node.assert_clean();
    }
}

/// A task on the gateway's own bridge.
fn bridged(node: &TestNode, agent: &Agent) -> TaskSetup {
    let config = json!({ "image": node.image(), "command": "sh", "args": ["-c", "echo begun; exec sleep 1000"] });
    TaskSetup::new(node.root(), agent, "task", &config)
}

fn interrupt_networks(node: &TestNode, points: Vec<(CrashPoint, u32)>) {
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    for at in points {
        let task = bridged(node, &agent);
        let started = amid_nth(node, at, || {
            as_agent(&agent, |driver| driver.start(&task.config))
        });
        assert!(
            started
                .network_override
                .is_some_and(|network| !network.addr.is_empty()),
            "{at:?}"
        );
        task.wait_stdout(|text| text.contains("begun"));
        finish(&agent, task);
        // The scan also covers address leases, interfaces at the bridge, and packet rules.
        node.assert_clean();
    }
}

#[test]
fn image_load_interrupted_by_kill_is_completed_by_retry_once() {
    let node = TestNode::start();
    let agent = Arc::new(Agent::start(
        node.root(),
        &json!({ "gc": { "image_delay": "1s" } }),
    ));
    let socket = node
        .root()
        .containerd_socket()
        .expect("containerd has been started");
    let before = stored(&socket, NAMESPACE);
    for step in own_points_of_this_run(load_steps()) {
        let which = format!("{step:?}");
        let config = json!({
            "image": "brought:1", "load": "image.tar", "command": "cat", "args": ["/which"], "network_mode": "host"
        });
        let task = TaskSetup::new(node.root(), &agent, "task", &config);
        save(
            &with_file(&which).build(),
            "brought:1",
            &task.task_dir().join("local/image.tar"),
        );
        amid(&node, step, || {
            as_agent(&agent, |driver| driver.start(&task.config))
        });
        assert_eq!(
            agent
                .driver()
                .wait(task.id(), RUN)
                .expect("it ends")
                .exit_code,
            0,
            "{step:?}"
        );
        assert_eq!(
            task.wait_stdout(|text| text.ends_with('\n')),
            format!("{which}\n")
        );
        finish(&agent, task);
        node.assert_clean();
        // The image goes with the last task that used it, and nothing else of it is there.
        let mut new = Vec::new();
        let gone = eventually(RUN, || {
            new = stored(&socket, NAMESPACE);
            new.retain(|item| !before.contains(item));
            new.is_empty()
        });
        assert!(gone, "{step:?}: {new:#?}");
    }
}

#[test]
fn task_exit_interrupted_by_kill_is_reported_with_its_code() {
    let node = TestNode::start();
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    for step in own_points_of_this_run(end_steps()) {
        let task = shell(&node, &agent, ONCE);
        let handle = agent
            .driver()
            .start(&task.config)
            .expect("it starts")
            .handle
            .expect("it has a handle");
        task.wait_stdout(|text| text.contains("begun"));
        let result = amid(&node, step, || {
            std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
            as_agent(&agent, |driver| {
                driver.recover(&handle)?;
                driver.wait(task.id(), RUN)
            })
        });
        assert_eq!(result.exit_code, 5, "{step:?}");
        assert_eq!(task.stdout(), "begun\n", "{step:?}");
        finish(&agent, task);
        node.assert_clean();
    }
}

#[test]
fn task_removal_interrupted_by_kill_is_completed_by_retry() {
    let node = TestNode::start();
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    for step in own_points_of_this_run(removal_steps()) {
        let mut task = shell(&node, &agent, "echo begun; exec sleep 1000");
        agent.driver().start(&task.config).expect("it starts");
        task.wait_stdout(|text| text.contains("begun"));
        agent
            .driver()
            .stop(task.id(), Duration::ZERO, "")
            .expect("it stops");
        amid(&node, step, || {
            as_agent(&agent, |driver| driver.destroy(task.id(), true))
        });
        task.remove_cgroups();
        drop(task);
        node.assert_clean();
    }
}

#[test]
fn task_removal_interrupted_by_kill_is_completed_without_retry() {
    let node = TestNode::start();
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    for step in own_points_of_this_run(removal_steps()) {
        // One task that still runs, and one that has exited.
        for script in ["echo begun; exec sleep 1000", "echo begun"] {
            let mut task = shell(&node, &agent, script);
            agent.driver().start(&task.config).expect("it starts");
            task.wait_stdout(|text| text.contains("begun"));
            let driver = agent.driver();
            let cut_off = amid(&node, step, || driver.destroy(task.id(), true));
            let fault = agent.classify_failure(&driver, cut_off.expect_err("nobody answers"));
            assert!(
                matches!(fault, CallFailure::PluginShutdown),
                "{step:?}: {fault:?}"
            );
            let driver = agent.dispense();
            assert!(
                eventually(RUN, || driver.inspect(task.id()).is_err()),
                "{step:?}: it is still there"
            );
            task.remove_cgroups();
            drop(task);
            node.assert_clean();
        }
    }
}

#[test]
fn tasks_survive_containerd_kill_and_calls_resume() {
    let node = TestNode::start();
    let agent = Arc::new(Agent::start(node.root(), &json!({})));
    let task = shell(&node, &agent, ONCE);
    agent.driver().start(&task.config).expect("it starts");
    task.wait_stdout(|text| text.contains("begun"));
    let waiting = agent.driver();
    let id = task.id().to_owned();
    let wait = std::thread::spawn(move || waiting.wait(&id, RUN));
    node.kill_managed("containerd");
    std::fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
    assert_eq!(
        wait.join()
            .expect("it is answered")
            .expect("it ends")
            .exit_code,
        5
    );
    assert_eq!(task.stdout(), "begun\n");
    finish(&agent, task);
}
