//! One device that both a kubelet and a Nomad agent want: with real device nodes, real containers and a
//! daemon that is killed.

use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_kubelet::{Kubelet, Options, RunOptions};
use switchyard_proto::nomad::device;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::host::{eventually, random_name};
use switchyard_tests::http;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::nomad::config::encode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use tokio::runtime::Runtime;
use tonic::Status;

use super::orchestrators::{self, container_with, end, task_with};
use crate::nomad::devices::{LaunchedDevicePlugin, make_device};

mod device_node;

use device_node::DeviceNode;

/// The group's resource name for the kubelet.
const TPU: &str = "acme.com/tpu";
/// Time for news to arrive.
const SOON: Duration = Duration::from_secs(20);
/// Number of races of the two.
const ROUNDS: usize = 10;
/// Numbers of the device's node inside: as `/dev/null`.
const NUMBERS: &str = "1:3";

#[track_caller]
fn assert_has_device(fixture: &DeviceNode, agent: &Agent, task: &TaskSetup) {
    let seen = agent
        .driver()
        .exec(task.id(), &["stat", "-c", "%t:%T", &fixture.path()], SOON)
        .expect("it runs");
    assert_eq!(seen.stdout.trim(), NUMBERS);
}

fn remove(kubelet: &Kubelet, pod: TestPod<'_>, name: &str) {
    drop(pod);
    kubelet.remove_pod(name);
}

#[test]
fn last_device_goes_to_a_pod_or_a_task_never_both() {
    let fixture = DeviceNode::start();
    let mut won = [0, 0];
    for round in 0..ROUNDS {
        let kubelet = fixture.kubelet();
        let devices = LaunchedDevicePlugin::launch(fixture.node.root());
        let agent = Agent::start(fixture.node.root(), &json!({}));
        let name = format!("race-{}", random_name());
        let barrier = Barrier::new(2);
        // They take turns in going first, so that each wins some races whichever of them is faster.
        let turn = |first: bool| {
            barrier.wait();
            thread::sleep(Duration::from_millis(if first { 0 } else { 3 }));
        };
        let race = || {
            thread::scope(|scope| {
                let pods = scope.spawn(|| {
                    turn(round % 2 == 0);
                    fixture.admit(&kubelet, &name)
                });
                let tasks = scope.spawn(|| {
                    turn(round % 2 == 1);
                    devices.reserve(&[&fixture.id])
                });
                (
                    pods.join().expect("it answers"),
                    tasks.join().expect("it answers"),
                )
            })
        };
        // On a busy machine the same one may win each race: in the last two rounds one of them asks only
        // after the other has its answer.
        let (admitted, reserved) = match ROUNDS - round {
            2 => {
                let admitted = fixture.admit(&kubelet, &name);
                (admitted, devices.reserve(&[&fixture.id]))
            }
            1 => {
                let reserved = devices.reserve(&[&fixture.id]);
                (fixture.admit(&kubelet, &name), reserved)
            }
            _ => race(),
        };
        match (admitted, reserved) {
            (Ok(options), Err(refused)) => {
                won[0] += 1;
                assert_pod_has_won(&fixture, &kubelet, &name, &options, &refused);
            }
            (Err(refused), Ok(given)) => {
                won[1] += 1;
                assert_task_has_won(&fixture, &kubelet, &agent, &given, &refused);
            }
            (pod, task) => panic!("one of both must have the device: {pod:?}, {task:?}"),
        }
        fixture.assert_free();
        assert_eq!(kubelet.crash(), None);
    }
    assert!(
        won.iter().all(|won| *won > 0),
        "both must have won: {won:?}"
    );
}

fn assert_pod_has_won(
    fixture: &DeviceNode,
    kubelet: &Kubelet,
    name: &str,
    options: &RunOptions,
    refused: &Status,
) {
    let text = refused.message();
    assert!(
        text.contains(&fixture.id) && text.contains("kubernetes"),
        "{text}"
    );
    let pod = fixture.node.pod(name);
    let container = pod.start(&container_with(&fixture.node, "main", options));
    assert_eq!(fixture.numbers(&container), NUMBERS);
    fixture.assert_held_by("kubernetes", name);
    fixture.node.daemon().kill9();
    fixture.node.daemon().restart();
    fixture.assert_held_by("kubernetes", name);
    assert_eq!(fixture.numbers(&container), NUMBERS);
    fixture.wait_healthy(kubelet, 1);
    remove(kubelet, pod, name);
}

fn assert_task_has_won(
    fixture: &DeviceNode,
    kubelet: &Kubelet,
    agent: &Agent,
    given: &device::ContainerReservation,
    refused: &str,
) {
    let seen = refused.contains("nomad")
        || refused.contains("Available: 0")
        || refused.contains("unhealthy");
    assert!(seen, "{refused}");
    let task = task_with(&fixture.node, agent, given);
    agent.driver().start(&task.config).expect("it starts");
    assert_has_device(fixture, agent, &task);
    fixture.assert_held_by("nomad", task.id());
    fixture.wait_healthy(kubelet, 0);
    fixture.node.daemon().kill9();
    fixture.node.daemon().restart();
    fixture.assert_held_by("nomad", task.id());
    fixture.wait_healthy(kubelet, 0);
    let agent = Agent::start(fixture.node.root(), &json!({}));
    assert_has_device(fixture, &agent, &task);
    end(&agent, task);
}

#[test]
fn restarted_container_and_task_keep_their_device() {
    let fixture = DeviceNode::start();
    let kubelet = fixture.kubelet();
    let devices = LaunchedDevicePlugin::launch(fixture.node.root());
    let options = fixture.admit(&kubelet, "crashing").expect("it is admitted");
    let pod = fixture.node.pod("crashing");
    let mut first = container_with(&fixture.node, "main", &options);
    first.command = vec!["false".to_owned()];
    let crashed = pod.start(&first);
    assert_eq!(fixture.node.cri().wait_exit(&crashed).exit_code, 1);
    fixture
        .node
        .cri()
        .remove(&crashed)
        .expect("it can be removed");
    let refused = devices
        .reserve(&[&fixture.id])
        .expect_err("the pod has it still");
    assert!(refused.message().contains("crashing"), "{refused}");
    fixture.node.daemon().kill9();
    fixture.node.daemon().restart();
    let devices = LaunchedDevicePlugin::launch(fixture.node.root());
    let refused = devices
        .reserve(&[&fixture.id])
        .expect_err("also after a kill");
    assert!(refused.message().contains("kubernetes"), "{refused}");
    let mut second = container_with(&fixture.node, "main", &options);
    second.metadata.as_mut().expect("it has some").attempt = 1;
    let container = pod.start(&second);
    assert_eq!(fixture.numbers(&container), NUMBERS);
    remove(&kubelet, pod, "crashing");
    fixture.assert_free();

    let agent = Agent::start(fixture.node.root(), &json!({}));
    let given = devices.reserve(&[&fixture.id]).expect("it is free");
    let mut task = task_with(&fixture.node, &agent, &given);
    agent.driver().start(&task.config).expect("it starts");
    agent
        .driver()
        .stop(task.id(), Duration::ZERO, "")
        .expect("it stops");
    agent
        .driver()
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.assign_new_id();
    // As after a restart of the agent, which persists only the variables.
    task.config.devices.clear();
    agent.driver().start(&task.config).expect("it starts again");
    assert_has_device(&fixture, &agent, &task);
    fixture.assert_held_by("nomad", task.id());
    end(&agent, task);
    fixture.assert_free();
}

#[test]
fn stopped_task_regains_its_device_by_token_after_daemon_restart() {
    let fixture = DeviceNode::start();
    let kubelet = fixture.kubelet();
    let options = fixture.admit(&kubelet, "first").expect("it is admitted");
    let token = options
        .annotations
        .keys()
        .find_map(|key| key.strip_prefix("devices.switchyard.io/"));
    let first = fixture.node.pod("first");
    let container = first.start(&container_with(&fixture.node, "main", &options));
    assert_eq!(fixture.numbers(&container), NUMBERS);
    fixture
        .node
        .cri()
        .stop_pod(first.id())
        .expect("it can be stopped");
    fixture.assert_free();
    fixture.node.daemon().kill9();
    fixture.node.daemon().restart();
    fixture.assert_free();
    let second = fixture.node.pod("second");
    let mut config = container_with(&fixture.node, "main", &options);
    // A kubelet gets nothing but the token from a vendor's plugin, and so does an agent that was restarted:
    // the device is found by it.
    config.devices.clear();
    let _ = second.start(&config);
    fixture.assert_held_by("kubernetes", "second");
    assert_eq!(
        fixture.report()["slots"][0]["holders"][0]["token"].as_str(),
        token
    );
    drop(first);
    fixture.assert_held_by("kubernetes", "second");
    remove(&kubelet, second, "second");
    fixture.assert_free();
}

#[test]
fn failed_task_start_frees_its_device_and_a_restart_regains_it() {
    let fixture = DeviceNode::start();
    let devices = LaunchedDevicePlugin::launch(fixture.node.root());
    let agent = Agent::start(fixture.node.root(), &json!({}));
    let given = devices.reserve(&[&fixture.id]).expect("it is free");
    let mut task = task_with(&fixture.node, &agent, &given);
    let without_image = nomad::TaskConfig {
        msgpack_driver_config: encode(
            &agent.task_schema(),
            &json!({ "image": "127.0.0.1:1/none:1", "network_mode": "host" }),
        ),
        ..task.config.clone()
    };
    agent
        .driver()
        .start(&without_image)
        .expect_err("nobody has this image");
    // Nobody reports that the job was stopped meanwhile.
    fixture.assert_free();
    // A restart that comes late finds it free.
    agent.driver().start(&task.config).expect("it starts");
    fixture.assert_held_by("nomad", task.id());
    assert_has_device(&fixture, &agent, &task);
    task.end(&agent.driver());
    fixture.assert_free();
}

#[test]
fn operator_releases_only_leases_of_exited_tasks() {
    let fixture = DeviceNode::start();
    let devices = LaunchedDevicePlugin::launch(fixture.node.root());
    let agent = Agent::start(fixture.node.root(), &json!({}));
    let given = devices.reserve(&[&fixture.id]).expect("it is free");
    let task = task_with(&fixture.node, &agent, &given);
    agent.driver().start(&task.config).expect("it starts");
    let token = fixture.report()["slots"][0]["holders"][0]["token"]
        .as_str()
        .expect("it is held")
        .to_owned();
    let release = || {
        let socket = fixture.node.root().run().join("admin.sock");
        http::delete_unix(&socket, &format!("/v1/devices/leases/{token}")).expect("it answers")
    };
    let refused = release();
    assert_eq!(refused.status, 409, "{}", refused.text());
    fixture.assert_held_by("nomad", task.id());
    // Its agent is away, and destroys nothing.
    agent
        .driver()
        .signal(task.id(), "SIGKILL")
        .expect("it runs");
    agent.driver().wait(task.id(), SOON).expect("it ends");
    fixture.assert_held_by("nomad", task.id());
    assert_eq!(release().status, 204);
    fixture.assert_free();
    let kubelet = fixture.kubelet();
    fixture.admit(&kubelet, "pod").expect("it is free");
    kubelet.remove_pod("pod");
    end(&agent, task);
}

#[test]
fn successor_waits_for_the_pod_that_holds_its_device() {
    let fixture = DeviceNode::start();
    let kubelet = fixture.kubelet();
    let options = fixture.admit(&kubelet, "first").expect("it is admitted");
    let first = fixture.node.pod("first");
    let container = first.start(&container_with(&fixture.node, "main", &options));
    assert_eq!(fixture.numbers(&container), NUMBERS);
    // The kubelet takes a static pod that was removed for gone, while it runs on for its grace.
    kubelet.remove_pod("first");
    let options = fixture
        .admit(&kubelet, "second")
        .expect("the kubelet takes it for free");
    let second = fixture.node.pod("second");
    let refused = second
        .try_create(&container_with(&fixture.node, "main", &options))
        .expect_err("its predecessor runs");
    assert!(refused.message().contains("first"), "{refused}");
    let waited = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            fixture
                .runtime
                .block_on(kubelet.pre_start("second", "main"))
        });
        drop(first);
        waits.join().expect("it answers")
    });
    waited.expect("its predecessor has ended");
    let container = second.start(&container_with(&fixture.node, "main", &options));
    assert_eq!(fixture.numbers(&container), NUMBERS);
    fixture.assert_held_by("kubernetes", "second");
    remove(&kubelet, second, "second");
    fixture.assert_free();
}

#[test]
fn task_with_an_explicit_device_holds_it_exclusively() {
    let fixture = DeviceNode::start();
    let kubelet = fixture.kubelet();
    let agent = Agent::start(fixture.node.root(), &json!({}));
    let config = json!({
        "image": fixture.node.image(), "command": "sleep", "args": ["1000"], "network_mode": "host",
        "devices": [{ "host_path": fixture.path() }],
    });
    let task = TaskSetup::new(fixture.node.root(), &agent, "task", &config);
    agent.driver().start(&task.config).expect("it starts");
    fixture.assert_held_by("nomad", task.id());
    fixture.wait_healthy(&kubelet, 0);
    let mut other = TaskSetup::new(fixture.node.root(), &agent, "other", &config);
    let refused = agent
        .driver()
        .start(&other.config)
        .expect_err("the first has it");
    assert!(refused.message().contains(task.id()), "{refused}");
    other.remove_cgroups();
    end(&agent, task);
    fixture.assert_free();
    fixture.wait_healthy(&kubelet, 1);
}
