//! A vendor's device plugin that registers with the daemon: a kubelet and a Nomad agent share its devices
//! through one ledger, with real containers, while the plugin is restarted and the daemon is killed.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::{Value, json};
use switchyard_kubelet::vendor::{VENDOR_DEVICES, VendorPlugin};
use switchyard_kubelet::{Kubelet, Options, RunOptions};
use switchyard_proto::kubelet::device_plugin::v1beta1;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use tokio::runtime::Runtime;

use super::orchestrators::{container_with, end, report, task_with};
use crate::nomad::devices::LaunchedDevicePlugin;

/// The resource that the plugin registers.
const GPU: &str = "acme.com/gpu";
/// The vendor's ids of its devices, which are ids here too.
const IDS: [&str; 2] = ["GPU-8a2f3c11-0", "GPU-8a2f3c11-1"];
/// Numbers of the devices' nodes: as `/dev/fuse` and `/dev/net/tun`, which no container may open by
/// itself.
const NUMBERS: [(u64, u64); 2] = [(10, 229), (10, 200)];
/// Path of the device's node in a container.
const INSIDE: &str = "/dev/acme-gpu";
/// A variable that differs from one plugin to the next.
const DRIVER: &str = "VENDOR_DRIVER";
/// Time for news to arrive.
const SOON: Duration = Duration::from_secs(20);

/// A node at which plugins can register.
struct PluginNode {
    node: TestNode,
    runtime: Runtime,
}

impl PluginNode {
    fn start() -> Self {
        let node = TestNode::start_configured(|root| {
            let dir = root.path().join("dev");
            fs::create_dir(&dir).expect("the root can be written");
            for (number, (major, minor)) in NUMBERS.into_iter().enumerate() {
                let mode = Mode::S_IRUSR | Mode::S_IWUSR;
                mknod(
                    &dir.join(format!("gpu{number}")),
                    SFlag::S_IFCHR,
                    mode,
                    makedev(major, minor),
                )
                .expect("tests make device nodes and so must run as root");
            }
            let kubelet = root.path().join("kubelet");
            format!(
                "[devices]\nrestart_grace_seconds = 1\n[devices.kubelet]\ndirectory = \"{0}/device-plugins\"\n\
                 pod_resources_socket = \"{0}/pod-resources/kubelet.sock\"\n\
                 [devices.host]\nenabled = true\ndirectory = \"{1}/host\"\n",
                kubelet.display(),
                root.path().display()
            )
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self {
            node,
            runtime: runtime.expect("a runtime can be made"),
        }
    }

    /// A plugin that has registered; its answers name the driver that each container belongs to.
    fn vendor(&self, driver: &str) -> VendorPlugin {
        let directory = self.node.root().path().join("host");
        let registry = directory.join("kubelet.sock");
        assert!(
            eventually(SOON, || registry.exists()),
            "plugins cannot register"
        );
        let socket = directory.join("gpu.sock");
        let _ = fs::remove_file(&socket);
        let vendor = VendorPlugin::start(&directory, "gpu.sock", GPU, &IDS);
        vendor.set_behaviour(|behaviour| {
            behaviour
                .answer
                .envs
                .insert(DRIVER.to_owned(), driver.to_owned());
            let node = |number: usize| v1beta1::DeviceSpec {
                container_path: INSIDE.to_owned(),
                host_path: self.path(number),
                permissions: "rw".to_owned(),
            };
            behaviour.nodes = IDS
                .iter()
                .enumerate()
                .map(|(at, id)| ((*id).to_owned(), node(at)))
                .collect();
        });
        self.runtime
            .block_on(vendor.register())
            .expect("it is taken");
        vendor
    }

    fn path(&self, number: usize) -> String {
        self.node
            .root()
            .path()
            .join(format!("dev/gpu{number}"))
            .display()
            .to_string()
    }

    fn kubelet(&self) -> Kubelet {
        let directory: PathBuf = self.node.root().path().join("kubelet/device-plugins");
        let _runtime = self.runtime.enter();
        Kubelet::start(&directory, Options::default())
    }

    /// Waits until a kubelet sees both devices, so many of them healthy.
    fn wait_healthy(&self, kubelet: &Kubelet, healthy: usize) {
        let what = format!("{healthy} of 2 devices are healthy");
        self.runtime
            .block_on(kubelet.wait_until(&what, |kubelet| kubelet.capacity(GPU) == (2, healthy)));
    }

    fn admit(&self, kubelet: &Kubelet, pod: &str) -> Result<RunOptions, String> {
        self.runtime
            .block_on(kubelet.admit(pod, "main", &[(GPU, 1)]))
    }

    /// A device in the output of `switchyard devices`.
    #[track_caller]
    fn slot(&self, id: &str) -> Value {
        let report = report(&self.node);
        let slots = report["slots"].as_array().expect("it is a list");
        slots
            .iter()
            .find(|slot| slot["id"] == id)
            .unwrap_or_else(|| panic!("{id}: {report:#}"))
            .clone()
    }

    /// That a device is held by one alone, which a sandbox has, and by whom.
    #[track_caller]
    fn assert_held_by(&self, id: &str, owner: &str, name: &str) {
        let slot = self.slot(id);
        let [holder] = &slot["holders"].as_array().expect("it is a list")[..] else {
            panic!("{slot:#}")
        };
        assert_eq!(
            (&holder["owner"], &holder["state"]),
            (&json!(owner), &json!("bound")),
            "{slot:#}"
        );
        assert!(
            holder["name"]
                .as_str()
                .is_some_and(|held| held.contains(name)),
            "{name}: {slot:#}"
        );
    }

    /// The pod `trainer` has one device, and a task the other.
    fn assert_both_held(&self, of_pod: &str, of_task: &str, task: &TaskSetup) {
        self.assert_held_by(of_pod, "kubernetes", "trainer");
        self.assert_held_by(of_task, "nomad", task.id());
    }

    /// Waits until both devices are so, for this reason.
    #[track_caller]
    fn wait_health(&self, healthy: bool, reason: &str) {
        let so = |id: &str| {
            let slot = self.slot(id);
            slot["healthy"] == healthy
                && slot["reason"]
                    .as_str()
                    .is_some_and(|text| text.contains(reason))
        };
        assert!(
            eventually(SOON, || IDS.iter().all(|id| so(id))),
            "{:#}",
            report(&self.node)
        );
    }

    #[track_caller]
    fn assert_free(&self, id: &str) {
        assert!(
            eventually(SOON, || self.slot(id)["holders"]
                .as_array()
                .is_some_and(Vec::is_empty)),
            "{:#}",
            self.slot(id)
        );
    }

    /// That a container has a device of a driver: its variables, and its node, which it can open.
    #[track_caller]
    fn assert_pod_has(&self, container: &str, id: &str, driver: &str) {
        assert_eq!(
            self.node.cri().sh(container, &inspect_script()),
            expected(id, driver)
        );
    }

    /// The same for a task.
    #[track_caller]
    fn assert_task_has(agent: &Agent, task: &TaskSetup, id: &str, driver: &str) {
        let seen = agent
            .driver()
            .exec(task.id(), &["sh", "-c", &inspect_script()], SOON)
            .expect("it runs");
        assert_eq!(seen.stdout.trim(), expected(id, driver), "{seen:?}");
    }
}

/// Prints what a container has of a device.
fn inspect_script() -> String {
    format!(
        "echo ${VENDOR_DEVICES} ${DRIVER} $(stat -c %t:%T {INSIDE}); : <>{INSIDE} && echo opened"
    )
}

/// The output of [`inspect_script`].
fn expected(id: &str, driver: &str) -> String {
    let number = IDS
        .iter()
        .position(|known| *known == id)
        .expect("it is the vendor's");
    let (major, minor) = NUMBERS[number];
    format!("{id} {driver} {major:x}:{minor:x}\nopened")
}

/// The other device.
fn other(id: &str) -> &'static str {
    if id == IDS[0] { IDS[1] } else { IDS[0] }
}

#[test]
fn hosted_plugin_devices_stay_allocated_through_plugin_and_daemon_restart() {
    let fixture = PluginNode::start();
    let kubelet = fixture.kubelet();
    let vendor = fixture.vendor("one");
    fixture.wait_healthy(&kubelet, 2);

    // One to a pod, the other to a task.
    let options = fixture.admit(&kubelet, "trainer").expect("there are two");
    let of_pod = options.ids[GPU][0].clone();
    let of_task = other(&of_pod);
    let pod = fixture.node.pod("trainer");
    let main = container_with(&fixture.node, "main", &options);
    let container = pod.start(&main);
    fixture.assert_pod_has(&container, &of_pod, "one");
    let devices = LaunchedDevicePlugin::launch(fixture.node.root());
    let agent = Agent::start(fixture.node.root(), &json!({}));
    let mut task = start_task_with_free_device(&fixture, &devices, &agent, &of_pod, of_task);
    PluginNode::assert_task_has(&agent, &task, of_task, "one");
    fixture.assert_both_held(&of_pod, of_task, &task);
    fixture.wait_healthy(&kubelet, 1);
    let refused = fixture.admit(&kubelet, "late").expect_err("none is left");
    assert!(refused.contains("Available: 0"), "{refused}");
    assert_eq!(vendor.calls("Allocate").len(), 2, "once for each");

    // The plugin exits: running containers continue, a restarted container gets the recorded answer, and no
    // other can get a device.
    drop(vendor);
    fixture.wait_health(false, "the plugin of its vendor has ended");
    fixture.wait_healthy(&kubelet, 0);
    fixture.assert_pod_has(&container, &of_pod, "one");
    PluginNode::assert_task_has(&agent, &task, of_task, "one");
    fixture
        .node
        .cri()
        .remove(&container)
        .expect("it can be removed");
    let mut again = main.clone();
    again.metadata.as_mut().expect("it has some").attempt = 1;
    let container = pod.start(&again);
    fixture.assert_pod_has(&container, &of_pod, "one");

    // The daemon is killed as well: both devices are held by their holders before the plugin has registered
    // again.
    fixture.node.daemon().kill9();
    fixture.node.daemon().restart();
    fixture.assert_both_held(&of_pod, of_task, &task);
    fixture.assert_pod_has(&container, &of_pod, "one");
    let agent = Agent::start(fixture.node.root(), &json!({}));
    PluginNode::assert_task_has(&agent, &task, of_task, "one");
    fixture
        .node
        .cri()
        .remove(&container)
        .expect("it can be removed");
    again.metadata.as_mut().expect("it has some").attempt = 2;
    let refused = pod
        .try_create(&again)
        .expect_err("nobody says what it gets");
    assert!(
        refused
            .message()
            .contains("if its vendor's plugin has not registered yet"),
        "{refused}"
    );

    // A newer plugin: the devices are healthy and have the same holders, and newly started containers get its
    // answers.
    let vendor = fixture.vendor("two");
    fixture.wait_health(true, "");
    fixture.assert_both_held(&of_pod, of_task, &task);
    let devices = LaunchedDevicePlugin::launch(fixture.node.root());
    let refused = devices
        .reserve(&[&of_pod])
        .expect_err("the pod has it still");
    assert!(refused.message().contains("kubernetes"), "{refused}");
    let container = pod.start(&again);
    fixture.assert_pod_has(&container, &of_pod, "two");
    start_again(&agent, &mut task);
    PluginNode::assert_task_has(&agent, &task, of_task, "two");
    fixture.assert_held_by(of_task, "nomad", task.id());
    assert_eq!(
        vendor.calls("Allocate").len(),
        2,
        "once for each, also after a restart"
    );

    end(&agent, task);
    fixture.assert_free(of_task);
    drop(pod);
    kubelet.remove_pod("trainer");
    fixture.assert_free(&of_pod);
    assert_eq!(kubelet.crash(), None);
}

fn start_again(agent: &Agent, task: &mut TaskSetup) {
    agent
        .driver()
        .stop(task.id(), Duration::ZERO, "")
        .expect("it stops");
    agent
        .driver()
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.assign_new_id();
    agent.driver().start(&task.config).expect("it starts again");
}

/// Starts a task of Nomad, which gets the device that no pod has.
fn start_task_with_free_device(
    fixture: &PluginNode,
    devices: &LaunchedDevicePlugin,
    agent: &Agent,
    of_pod: &str,
    free: &str,
) -> TaskSetup {
    let refused = devices.reserve(&[of_pod]).expect_err("the pod has it");
    for word in [of_pod, "kubernetes", "trainer"] {
        assert!(refused.message().contains(word), "{word}: {refused}");
    }
    let given = devices.reserve(&[free]).expect("it is free");
    let task = task_with(&fixture.node, agent, &given);
    agent.driver().start(&task.config).expect("it starts");
    task
}
