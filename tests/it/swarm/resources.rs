//! Resources of the node that a real manager schedules: processors, memory and devices, shared with pods.

use std::fs;

use serde_json::Value;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::{Cri, image_spec, limits, namespaces};
use switchyard_tests::host::random_name;
use switchyard_tests::root::PrivateRoot;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;
use tonic::Status;

use super::services::{create, ids, registry, tasks};
use crate::nomad::devices::make_device;

/// The kind of the devices.
const TPU: &str = "acme/tpu/v2";

/// Message of a manager about a task that it rejects because of its node.
const ENFORCED: &str = "assigned node no longer meets constraints";

/// A pod beside the tasks of the swarm, on the host's network. Dropping it removes it.
pub(crate) struct Pod {
    cri: Cri,
    id: String,
    config: cri::PodSandboxConfig,
    image: String,
}

impl Pod {
    pub(crate) fn run(worker: &SwarmWorker, image: &str) -> Self {
        Self::try_run(worker, image, |_| {}).expect("a pod can be run")
    }

    /// As [`Pod::run`], with a changed configuration.
    pub(crate) fn try_run(
        worker: &SwarmWorker,
        image: &str,
        change: impl FnOnce(&mut cri::PodSandboxConfig),
    ) -> Result<Self, Status> {
        let cri = Cri::new(&worker.root().cri_socket());
        cri.pull(image, None).expect("the registry serves");
        let metadata = cri::PodSandboxMetadata {
            name: "pod".to_owned(),
            uid: random_name(),
            namespace: "tests".to_owned(),
            attempt: 0,
        };
        let linux = cri::LinuxPodSandboxConfig {
            cgroup_parent: worker.root().cgroup_parent(),
            ..Default::default()
        };
        let mut config = cri::PodSandboxConfig {
            metadata: Some(metadata),
            linux: Some(linux),
            ..Default::default()
        };
        namespaces(&mut config).set_network(cri::NamespaceMode::Node);
        change(&mut config);
        let id = cri.run_pod(&config)?;
        Ok(Self {
            cri,
            id,
            config,
            image: image.to_owned(),
        })
    }

    /// The client.
    pub(crate) const fn cri(&self) -> &Cri {
        &self.cri
    }

    /// Creates a container.
    pub(crate) fn create(
        &self,
        change: impl FnOnce(&mut cri::ContainerConfig),
    ) -> Result<String, Status> {
        let mut config = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: "main".to_owned(),
                attempt: 0,
            }),
            image: Some(image_spec(&self.image)),
            command: ["sleep", "1000"].map(str::to_owned).to_vec(),
            ..Default::default()
        };
        change(&mut config);
        self.cri.create(&self.id, &config, &self.config)
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let removed = self
            .cri
            .stop_pod(&self.id)
            .and_then(|()| self.cri.remove_pod(&self.id));
        if !std::thread::panicking() {
            removed.expect("a pod can be removed");
        }
    }
}

/// The id of the worker.
fn node_id(cluster: &SwarmCluster) -> String {
    let workers = cluster.workers();
    let id = workers[0].split(' ').next().expect("it has an id");
    id.to_owned()
}

/// A part of what the manager knows of the worker's resources.
fn known(cluster: &SwarmCluster, part: &str) -> Value {
    let node = node_id(cluster);
    let shown = cluster.docker(&[
        "node",
        "inspect",
        "--format",
        "{{json .Description.Resources}}",
        &node,
    ]);
    let resources: Value = serde_json::from_str(&shown).expect("it is JSON");
    resources[part].clone()
}

/// Number of devices that the manager knows.
fn devices(cluster: &SwarmCluster) -> usize {
    let devices = known(cluster, "GenericResources")
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert!(
        devices
            .iter()
            .all(|device| device["NamedResourceSpec"]["Kind"] == TPU),
        "{devices:?}"
    );
    devices.len()
}

/// The number of tasks of a service that run.
pub(super) fn running(cluster: &SwarmCluster, service: &str) -> usize {
    tasks(cluster, service)
        .iter()
        .filter(|task| task.contains(" Running "))
        .count()
}

/// Returns whether a task of a service waits for a node that has more.
pub(super) fn is_waiting(cluster: &SwarmCluster, service: &str) -> bool {
    tasks(cluster, service)
        .iter()
        .any(|task| task.contains(" Pending ") && task.contains("insufficient"))
}

#[test]
fn devices_are_scheduled_and_those_of_pods_are_not_offered() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, with_two_devices);
    worker.join(&cluster, &cluster.token("worker"));
    cluster.wait_until("both devices are offered", || devices(&cluster) == 2);
    let wanted = format!("{TPU}=1");
    let options = ["--replicas", "3", "--generic-resource", &wanted];
    create(
        &cluster,
        "tpu",
        &options,
        &image,
        "stat -c %t:%T $ACME_DEVICES; exec sleep 1000",
    );
    let two_of_three = || running(&cluster, "tpu") == 2 && is_waiting(&cluster, "tpu");
    cluster.wait_until("two have a device, and the third waits", two_of_three);

    // A pod does not get one, and neither is one taken from a task.
    let path = worker.root().path().join("dev/acme0").display().to_string();
    let device = cri::Device {
        host_path: path.clone(),
        container_path: path,
        permissions: "rw".to_owned(),
    };
    let pod = Pod::run(&worker, &image);
    let refused = pod
        .create(|config| config.devices = vec![device.clone()])
        .expect_err("it is held");
    assert!(refused.message().contains("of swarm"), "{refused:?}");
    let offered = devices(&cluster);
    kill_and_restart(&cluster, &mut worker);
    assert_eq!(devices(&cluster), offered, "as before, and at once");
    cluster.wait_until("they continue", two_of_three);
    await_two_of_three_again(&cluster, &two_of_three);
    let before = ids(&tasks(&cluster, "tpu"));
    assert_no_task_ends(&cluster, &image, "later", &before);

    // The next daemon begins with what this one has learned of the managers.
    let offered = devices(&cluster);
    kill_and_restart(&cluster, &mut worker);
    assert_eq!(devices(&cluster), offered, "as before, and at once");
    assert_no_task_ends(&cluster, &image, "after-restart", &before);

    // What a pod has is not offered, and comes back.
    cluster.docker(&["service", "scale", "--detach", "tpu=0"]);
    cluster.wait_until("none runs", || running(&cluster, "tpu") == 0);
    let mut made = None;
    cluster.wait_until("the pod has a device", || {
        made = pod
            .create(|config| config.devices = vec![device.clone()])
            .ok();
        made.is_some()
    });
    cluster.wait_until("one device is offered", || devices(&cluster) == 1);
    cluster.docker(&["service", "scale", "--detach", "tpu=2"]);
    let one_of_two = || running(&cluster, "tpu") == 1 && is_waiting(&cluster, "tpu");
    cluster.wait_until("one has a device, and the second waits", one_of_two);
    drop(pod);
    cluster.wait_until("both have a device", || running(&cluster, "tpu") == 2);
    cluster.docker(&["service", "rm", "tpu"]);
    worker.output(&["swarm", "leave"]);
}

/// Kills the daemon, and waits for a session of the next one.
fn kill_and_restart(cluster: &SwarmCluster, worker: &mut SwarmWorker) {
    worker.daemon().kill9();
    worker.daemon().restart();
    cluster.wait_until("a session is open", || {
        worker.status()["manager"] == cluster.address(0)
    });
}

/// Changes something of the node, for which a manager may check all of its tasks, and lets the manager go on until a new
/// service of this name has run. Fails unless the tasks with devices are these all the time.
#[track_caller]
fn assert_no_task_ends(cluster: &SwarmCluster, image: &str, name: &str, before: &[String]) {
    let label = format!("{name}=b");
    let node = node_id(cluster);
    cluster.docker(&["node", "update", "--label-add", &label, &node]);
    create(
        cluster,
        name,
        &["--restart-condition", "none"],
        image,
        "true",
    );
    let is_done = || {
        tasks(cluster, name)
            .iter()
            .any(|task| task.contains(" Complete "))
    };
    cluster.wait_until("the manager has gone on", is_done);
    let listed = tasks(cluster, "tpu");
    assert_eq!(ids(&listed), before, "{name}: {listed:?}");
}

/// Managers of this version reject a task because its devices are offered (moby#44378), until the node has noticed it.
/// Nothing else ends one.
fn await_two_of_three_again(cluster: &SwarmCluster, two_of_three: &dyn Fn() -> bool) {
    let listed = tasks(cluster, "tpu");
    let ended = listed
        .iter()
        .filter(|task| !task.contains(" Running ") && !task.contains(" Pending "));
    let mut ended = ended.peekable();
    if ended.peek().is_some() {
        assert!(ended.all(|task| task.contains(ENFORCED)), "{listed:?}");
        cluster.wait_until("devices of tasks are offered no more", || {
            devices(cluster) == 0
        });
        cluster.wait_until("two have a device again", two_of_three);
    }
}

/// Makes two devices, and returns the configuration that offers them.
fn with_two_devices(root: &PrivateRoot) -> String {
    let dir = root.path().join("dev");
    fs::create_dir(&dir).expect("the root can be written");
    for name in ["acme0", "acme1"] {
        make_device(&dir.join(name));
    }
    format!(
        "[devices]\nrestart_grace_seconds = 1\nnamed = \"refuse\"\n[[devices.groups]]\nvendor = \"acme\"\n\
             type = \"tpu\"\nname = \"v2\"\npaths = [\"{}/acme[0-9]\"]\nenv = \"ACME_DEVICES\"\n",
        dir.display()
    )
}

#[test]
fn pod_that_takes_everything_ends_no_task() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    let reserved = ["--reserve-cpu", "0.5", "--reserve-memory", "64M"];
    create(&cluster, "web", &reserved, &image, "exec sleep 1000");
    cluster.wait_until("it runs", || running(&cluster, "web") == 1);
    let before = ids(&tasks(&cluster, "web"));
    let (_, body) = worker.daemon().get("/v1/devices");
    let report: Value =
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    let capacity = |part: &str| {
        report["compute"]["capacity"][part]
            .as_i64()
            .expect("it is known")
    };

    let pod = Pod::run(&worker, &image);
    let taken = pod.create(|config| {
        let limits = limits(config);
        limits.memory_limit_in_bytes = capacity("memory_bytes");
        limits.cpu_shares = capacity("cpu_milli") * 1024 / 1000;
    });
    taken.expect("each orchestrator plans for itself");
    let is_tight =
        || known(&cluster, "MemoryBytes") == 64 << 20 && known(&cluster, "NanoCPUs") == 500_000_000;
    cluster.wait_until("the manager knows that nothing is left", is_tight);
    create(&cluster, "more", &reserved, &image, "true");
    cluster.wait_until("there is no place for another one", || {
        is_waiting(&cluster, "more")
    });
    assert_eq!(ids(&tasks(&cluster, "web")), before);

    // After a restart the node describes itself before it knows what is assigned.
    worker.daemon().kill9();
    worker.daemon().restart();
    cluster.wait_until("a session is open", || {
        worker.status()["manager"] == cluster.address(0)
    });
    cluster.wait_until("nothing has changed", || {
        is_tight() && running(&cluster, "web") == 1
    });
    assert_eq!(ids(&tasks(&cluster, "web")), before);
    drop(pod);
    cluster.wait_until("there is a place again", || {
        tasks(&cluster, "more")
            .iter()
            .any(|task| task.contains(" Complete "))
    });
    assert_eq!(ids(&tasks(&cluster, "web")), before);
    worker.output(&["swarm", "leave"]);
}
