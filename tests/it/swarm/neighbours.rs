//! A kubelet, a Nomad agent and a manager of a swarm on one daemon: many tasks of all of them over a kill, and the last
//! device and the last port.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::nomad::device::ContainerReservation;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::host::{eventually, number};
use switchyard_tests::nomad::{Agent, TaskSetup};
use switchyard_tests::registry::Registry;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::{SwarmWorker, WorkerTask};
use tonic::Status;

use super::resources::{Pod, is_waiting, running};
use super::services::{create, registry, tasks, wait_all_removed};
use crate::nomad::devices::{LaunchedDevicePlugin, make_device};

/// Number of tasks of each orchestrator; `SWITCHYARD_TEST_TASKS` sets another number.
const TASKS: usize = 8;
/// The kind of the device.
const TPU: &str = "acme/tpu/v2";
/// A port that no other program has in the network namespace of the managers.
const PORT: u16 = 8080;
/// Time for a device or a port to be free.
const SOON: Duration = Duration::from_secs(20);
/// Number of races of all three.
const ROUNDS: u32 = 3;

/// Number of these tasks that an owner has.
fn count(tasks: &[WorkerTask], owner: &str) -> usize {
    tasks
        .iter()
        .filter(|task| task.owner == owner && task.pid.is_some())
        .count()
}

/// A task of Nomad on the host's network, which sleeps.
fn nomad_task(worker: &SwarmWorker, agent: &Agent, image: &str, port: Option<u16>) -> TaskSetup {
    let ports: &[&str] = if port.is_some() { &["http"] } else { &[] };
    let config = json!({
        "image": image, "command": "sleep", "args": ["1000"], "network_mode": "host", "ports": ports,
    });
    let mut task = TaskSetup::new(worker.root(), agent, "web", &config);
    if let Some(port) = port {
        let given = nomad::PortMapping {
            label: "http".into(),
            value: port.into(),
            to: 0,
            host_ip: String::new(),
        };
        task.config
            .resources
            .as_mut()
            .expect("it has some")
            .ports
            .push(given);
    }
    task
}

fn end(agent: &Agent, mut task: TaskSetup) {
    task.end(&agent.driver());
}

#[test]
fn tasks_of_all_orchestrators_outlive_a_kill_of_the_daemon_beside_each_other() {
    let each = number("SWITCHYARD_TEST_TASKS", TASKS);
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    create(
        &cluster,
        "many",
        &["--replicas", &each.to_string()],
        &image,
        "exec sleep 1000",
    );
    let agent = Agent::start(worker.root(), &json!({}));
    let jobs: Vec<TaskSetup> = (0..each)
        .map(|_| nomad_task(&worker, &agent, &image, None))
        .collect();
    let pods: Vec<Pod> = thread::scope(|scope| {
        scope.spawn(|| {
            for job in &jobs {
                agent.driver().start(&job.config).expect("it starts");
            }
        });
        let pods = (0..each).map(|_| {
            let pod = Pod::run(&worker, &image);
            let container = pod.create(|_| {}).expect("it is created");
            pod.cri().start(&container).expect("it starts");
            pod
        });
        pods.collect()
    });
    cluster.wait_until("all tasks run", || running(&cluster, "many") == each);
    let mut before = worker.tasks();
    before.sort();
    for owner in ["kubernetes", "nomad", "swarm"] {
        assert_eq!(count(&before, owner), each, "{owner}: {before:?}");
    }
    let listed = tasks(&cluster, "many");

    worker.daemon().kill9();
    worker.daemon().restart();
    cluster.wait_until("a session is open", || {
        worker.status()["manager"] == cluster.address(0)
    });
    let mut after = worker.tasks();
    after.sort();
    assert_eq!(after, before);
    assert_eq!(
        tasks(&cluster, "many").len(),
        listed.len(),
        "no task has a successor"
    );
    let agent = Agent::start(worker.root(), &json!({}));
    for job in jobs {
        end(&agent, job);
    }
    assert_eq!(count(&worker.tasks(), "nomad"), 0);
    drop(pods);
    assert_eq!(count(&worker.tasks(), "kubernetes"), 0);
    assert_eq!(count(&worker.tasks(), "swarm"), each);
    cluster.docker(&["service", "rm", "many"]);
    wait_all_removed(&cluster, &worker);
}

/// Creates a service with a port of the node, which is not tried again.
fn publish(cluster: &SwarmCluster, name: &str, image: &str) {
    let options = [
        "service",
        "create",
        "--detach",
        "--no-resolve-image",
        "--restart-condition",
        "none",
    ];
    let port = format!("mode=host,published={PORT},target=80");
    let place = [
        "--constraint",
        "node.role==worker",
        "--network",
        "bridge",
        "--publish",
        &port,
    ];
    cluster.docker(
        &[
            &options[..],
            &place,
            &["--name", name, image, "sleep", "1000"],
        ]
        .concat(),
    );
}

/// A pod that claims the port.
fn pod_with_port(worker: &SwarmWorker, image: &str) -> Result<Pod, Status> {
    let port = i32::from(PORT);
    Pod::try_run(worker, image, |config| {
        config.port_mappings = vec![cri::PortMapping {
            container_port: port,
            host_port: port,
            ..Default::default()
        }];
    })
}

#[test]
fn last_port_goes_to_one_orchestrator_and_the_others_are_told_which() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    let agent = Agent::start(worker.root(), &json!({}));
    let job = nomad_task(&worker, &agent, &image, Some(PORT));
    let is_refused_by = |text: &str, owner: &str| {
        assert!(
            text.contains(&format!("{PORT}/tcp")) && text.contains(&format!("of {owner}")),
            "{text}"
        );
    };
    let rejected_by = |service: &str, owner: &str| {
        publish(&cluster, service, &image);
        let is_rejected = || {
            tasks(&cluster, service)
                .iter()
                .any(|task| task.contains(" Rejected "))
        };
        cluster.wait_until("it is rejected", is_rejected);
        is_refused_by(&tasks(&cluster, service).concat(), owner);
        cluster.docker(&["service", "rm", service]);
    };

    let pod = pod_with_port(&worker, &image).expect("the port is free");
    is_refused_by(
        agent
            .driver()
            .start(&job.config)
            .expect_err("a pod has it")
            .message(),
        "kubernetes",
    );
    rejected_by("after-pod", "kubernetes");
    drop(pod);

    agent.driver().start(&job.config).expect("the port is free");
    is_refused_by(
        pod_with_port(&worker, &image)
            .err()
            .expect("a job has it")
            .message(),
        "nomad",
    );
    rejected_by("after-job", "nomad");
    end(&agent, job);

    publish(&cluster, "web", &image);
    cluster.wait_until("it runs", || running(&cluster, "web") == 1);
    let job = nomad_task(&worker, &agent, &image, Some(PORT));
    is_refused_by(
        agent
            .driver()
            .start(&job.config)
            .expect_err("a service has it")
            .message(),
        "swarm",
    );
    is_refused_by(
        pod_with_port(&worker, &image)
            .err()
            .expect("a service has it")
            .message(),
        "swarm",
    );
    cluster.docker(&["service", "rm", "web"]);
    wait_all_removed(&cluster, &worker);
    agent.driver().start(&job.config).expect("the port is free");
    end(&agent, job);
    worker.output(&["swarm", "leave"]);
}

/// The only device of a node, which all three may use.
struct SharedDevice {
    agent: Agent,
    plugin: LaunchedDevicePlugin,
    /// A pod without the device.
    pod: Pod,
    /// The device, as a container asks for it.
    device: cri::Device,
    /// The device, as an agent asks for it.
    id: String,
    image: String,
    worker: SwarmWorker,
    _registry: Registry,
    // Last: its drop removes the network namespace of the others.
    cluster: SwarmCluster,
}

impl SharedDevice {
    fn start() -> Self {
        let cluster = SwarmCluster::new();
        let (registry, image) = registry(&cluster);
        let worker = SwarmWorker::start(&cluster, |root| {
            let dir = root.path().join("dev");
            fs::create_dir(&dir).expect("the root can be written");
            make_device(&dir.join("acme0"));
            format!(
                "[devices]\nrestart_grace_seconds = 1\nnamed = \"refuse\"\n[[devices.groups]]\nvendor = \"acme\"\n\
                 type = \"tpu\"\nname = \"v2\"\npaths = [\"{}/acme[0-9]\"]\n",
                dir.display()
            )
        });
        worker.join(&cluster, &cluster.token("worker"));
        let agent = Agent::start(worker.root(), &json!({}));
        let plugin = LaunchedDevicePlugin::launch(worker.root());
        let path = worker.root().path().join("dev/acme0").display().to_string();
        let device = cri::Device {
            host_path: path.clone(),
            container_path: path,
            permissions: "rw".to_owned(),
        };
        let pod = Pod::run(&worker, &image);
        let mut id = None;
        let is_found = || {
            id = devices(&worker)["slots"][0]["id"]
                .as_str()
                .map(str::to_owned);
            id.is_some()
        };
        assert!(eventually(SOON, is_found), "there is no device");
        let id = id.expect("it was found");
        Self {
            agent,
            plugin,
            pod,
            device,
            id,
            image,
            worker,
            _registry: registry,
            cluster,
        }
    }

    /// Creates a container of the pod with the device.
    fn create_container(&self) -> Result<String, Status> {
        self.pod
            .create(|config| config.devices = vec![self.device.clone()])
    }

    fn remove_container(&self, container: &str) {
        self.pod.cri().remove(container).expect("it can be removed");
    }

    /// Reserves the device for a task, as an agent does.
    fn reserve(&self) -> Result<ContainerReservation, Status> {
        self.plugin.reserve(&[&self.id])
    }

    /// Runs the task for which the device is reserved, and ends it.
    fn run_and_end(&self, reserved: &ContainerReservation) {
        let mut job = nomad_task(&self.worker, &self.agent, &self.image, None);
        job.config.device_env.extend(reserved.envs.clone());
        job.config.env.extend(reserved.envs.clone());
        self.agent
            .driver()
            .start(&job.config)
            .expect("it starts with the device");
        assert_eq!(self.holders(), ["nomad"]);
        end(&self.agent, job);
    }

    /// Creates a service whose task wants the device.
    fn create_service(&self, name: &str) {
        let wanted = format!("{TPU}=1");
        create(
            &self.cluster,
            name,
            &["--generic-resource", &wanted],
            &self.image,
            "exec sleep 1000",
        );
    }

    /// The owners of what has the device.
    fn holders(&self) -> Vec<String> {
        let report = devices(&self.worker);
        let holders = report["slots"][0]["holders"]
            .as_array()
            .unwrap_or_else(|| panic!("{report:#}"));
        holders
            .iter()
            .map(|holder| holder["owner"].as_str().expect("it is text").to_owned())
            .collect()
    }

    #[track_caller]
    fn wait_free(&self) {
        assert!(
            eventually(SOON, || self.holders().is_empty()),
            "{:?}",
            self.holders()
        );
    }
}

/// The output of `switchyard devices`.
fn devices(worker: &SwarmWorker) -> Value {
    serde_json::from_str(&worker.output(&["devices", "--output", "json"])).expect("it is JSON")
}

#[test]
fn last_device_goes_to_one_orchestrator_and_the_others_wait_or_are_told_which() {
    let node = SharedDevice::start();
    let container = node.create_container().expect("the device is free");
    assert_eq!(node.holders(), ["kubernetes"]);
    let refused = node.reserve().expect_err("a pod has it");
    assert!(refused.message().contains("kubernetes"), "{refused:?}");
    node.create_service("waiting");
    node.cluster
        .wait_until("the service waits", || is_waiting(&node.cluster, "waiting"));
    node.remove_container(&container);
    node.cluster.wait_until("the service has the device", || {
        running(&node.cluster, "waiting") == 1
    });
    assert_eq!(node.holders(), ["swarm"]);
    let refused = node.reserve().expect_err("a service has it");
    assert!(refused.message().contains("swarm"), "{refused:?}");
    let refused = node.create_container().expect_err("a service has it");
    let text = refused.message();
    assert!(
        text.contains("waiting.1 [") && text.contains("of swarm"),
        "{refused:?}"
    );
    node.cluster.docker(&["service", "rm", "waiting"]);
    node.wait_free();
    let reserved = node.reserve().expect("the device is free");
    let refused = node.create_container().expect_err("a job has it");
    assert!(refused.message().contains("nomad"), "{refused:?}");
    node.run_and_end(&reserved);
    node.wait_free();
    for round in 0..ROUNDS {
        race(&node, round);
    }
    node.worker.output(&["swarm", "leave"]);
}

/// All three want the device at once.
fn race(node: &SharedDevice, round: u32) {
    let name = format!("race{round}");
    // A service takes longer until it asks: with a head start each wins now and then.
    let pause = Duration::from_millis(400 * u64::from(round));
    let (reserved, container) = thread::scope(|scope| {
        let reserving = scope.spawn(|| {
            thread::sleep(pause);
            node.reserve()
        });
        scope.spawn(|| node.create_service(&name));
        thread::sleep(pause);
        let container = node.create_container();
        (reserving.join().expect("it answers"), container)
    });
    match (&reserved, &container) {
        (Ok(_), Ok(_)) => panic!("both have it: {reserved:?}, {container:?}"),
        (Err(_), Err(_)) => {
            node.cluster.wait_until("the service has the device", || {
                running(&node.cluster, &name) == 1
            });
            assert_eq!(node.holders(), ["swarm"]);
        }
        (Ok(_), Err(_)) | (Err(_), Ok(_)) => assert_eq!(node.holders().len(), 1),
    }
    node.cluster.docker(&["service", "rm", &name]);
    if let Ok(reserved) = reserved {
        node.run_and_end(&reserved);
    }
    if let Ok(container) = container {
        node.remove_container(&container);
    }
    node.wait_free();
}
