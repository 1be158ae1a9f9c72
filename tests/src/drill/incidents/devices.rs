//! Devices, their plugins, and the kubelet that gives them out.

use std::fs;
use std::time::Duration;

use serde_json::json;
use switchyard_kubelet::vendor::VendorPlugin;
use switchyard_kubelet::{Kubelet, Options};
use switchyard_proto::nomad::drivers::proto as nomad;
use tokio::runtime::{Builder, Runtime};

use crate::devices::{container_with_device, device_path, make_device};
use crate::drill::incident::{Incident, Sign};
use crate::drill::load::Load;
use crate::drill::node::DrillNode;
use crate::host::eventually;
use crate::nomad::{Agent, TaskSetup};
use crate::root::PrivateRoot;

/// The resource of the plugin of a vendor, and the ids of its devices.
const GPU: (&str, [&str; 2]) = ("acme.com/gpu", ["GPU-8a2f3c11-0", "GPU-8a2f3c11-1"]);
/// The resource of a group.
const TPU: &str = "acme.com/tpu";
/// A minute of a drill, less the time for which the plugin is away.
const ALIVE: Duration = Duration::from_millis(1700);
/// The rest of it.
const AWAY: Duration = Duration::from_millis(300);
/// Time for a socket to appear, or for a registration.
const SOON: Duration = Duration::from_secs(30);

/// A job of Nomad has the device that a pod wants.
///
/// # Panics
/// When the job does not start.
pub(crate) fn held_by_job(node: &DrillNode) -> Incident {
    let agent = Agent::start(node.root(), &json!({}));
    let path = device_path(node.root());
    let config = json!({
        "image": node.test_node().image(), "command": "sleep", "args": ["100000"], "network_mode": "host",
    });
    let mut task = TaskSetup::new(node.root(), &agent, "train", &config);
    task.config.job_name = "nightly".to_owned();
    task.config.devices = vec![nomad::Device {
        task_path: path.clone(),
        host_path: path,
        cgroup_permissions: "rw".to_owned(),
    }];
    agent.driver().start(&task.config).expect("it starts");
    let pod = node.app("vision", "infer-1", "exec sleep 100000");
    let container = container_with_device(node.test_node(), "model");
    let starts = node.starting(&pod, container, Duration::from_secs(3));
    Incident::new("infer-1", Sign::Alert("SwitchyardDeviceRefused"))
        .with(starts)
        .with(task)
        .with(agent)
}

/// Lets plugins of vendors register.
pub(crate) fn with_device_host(root: &PrivateRoot) -> String {
    format!(
        "[devices.kubelet]\nenabled = false\n[devices.host]\nenabled = true\ndirectory = \"{}/host\"\n",
        root.path().display()
    )
}

/// The plugin of a vendor dies each minute, and registers again.
///
/// # Panics
/// When plugins cannot register.
pub(crate) fn plugin_dies(node: &DrillNode) -> Incident {
    let directory = node.root().path().join("host");
    let registry = directory.join("kubelet.sock");
    assert!(
        eventually(SOON, || registry.exists()),
        "plugins cannot register: {}",
        node.test_node().daemon().tail()
    );
    let report = node.report().clone();
    let lives = Load::start(AWAY, move || {
        // That of its former life.
        let _ = fs::remove_file(directory.join("gpu.sock"));
        let vendor = VendorPlugin::start(&directory, "gpu.sock", GPU.0, &GPU.1);
        let registered = runtime().block_on(vendor.register());
        if let Err(error) = registered {
            report.say("kube-system/acme-device-plugin", &format!("{error}"));
        }
        std::thread::sleep(ALIVE);
        drop(vendor);
        report.say(
            "kube-system/acme-device-plugin",
            "Back-off restarting failed container: exit code 139",
        );
    });
    Incident::new("acme-device-plugin", Sign::Lasts(SOON)).with(lives)
}

/// Offers the devices of a group to a kubelet.
///
/// # Panics
/// When the root cannot be written.
pub(crate) fn with_kubelet(root: &PrivateRoot) -> String {
    let dir = root.path().join("dev");
    fs::create_dir(&dir).expect("the root can be written");
    make_device(&dir.join("acme0"));
    format!(
        "[devices.kubelet]\ndirectory = \"{0}/device-plugins\"\n\
         pod_resources_socket = \"{0}/pod-resources/kubelet.sock\"\n\
         [[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\nname = \"v2\"\nresource = \"{TPU}\"\n\
         paths = [\"{1}/acme[0-9]\"]\n",
        root.path().join("kubelet").display(),
        dir.display()
    )
}

/// The kubelet was restarted, and no longer answers registrations.
///
/// # Panics
/// When the daemon does not register with the first one.
pub(crate) fn kubelet_does_not_register(node: &DrillNode) -> Incident {
    let directory = node.root().path().join("kubelet/device-plugins");
    let runtime = runtime();
    let kubelet = {
        let _entered = runtime.enter();
        let first = Kubelet::start(&directory, Options::default());
        runtime.block_on(first.wait_until("the device is there", |kubelet| {
            kubelet.capacity(TPU) == (1, 1)
        }));
        node.wait_scraped("switchyard_backend_up{part=\"kubelet devices\"} == 1");
        drop(first.kill());
        let options = Options {
            hangs: true,
            ..Options::default()
        };
        Kubelet::start(&directory, options)
    };
    let report = node.report().clone();
    let schedules = Load::start(Duration::from_secs(5), move || {
        let text = format!("FailedScheduling: 0/1 nodes are available: 1 Insufficient {TPU}");
        report.say("vision/infer-1", &text);
    });
    Incident::new("infer-1", Sign::Lasts(SOON))
        .with(schedules)
        .with(kubelet)
        .with(runtime)
}

/// A runtime with one thread besides the caller's.
fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be made")
}
