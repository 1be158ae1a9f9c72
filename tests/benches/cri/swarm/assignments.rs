//! The time from an assignment to the start of its process, beside bare starts of the same container on the
//! same containerd.
//!
//! Managers do not report when they send an assignment. So it is handed over as a session does it, in this
//! process, to the executor and the backend that the daemon has.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use swarm::TaskState;
use switchyard_core::id::Owner;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_swarm::Change;
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::host::random_name;
use switchyard_tests::image::busybox;
use switchyard_tests::leak_scan::NAMESPACE;
use switchyard_tests::swarm::node::{LIMIT, SwarmNode, assigned, task};

use super::SwarmSize;
use crate::bridge_driver::BridgeDriver;
use crate::failure::Failure;
use crate::pair::Pair;
use crate::report::progress;
use crate::side::channel;
use crate::tasks::bare::{BareContainerd, BarePlace, open_fifos};
use crate::tasks::cni::Cni;
use crate::tasks::nomad::{INSIDE, TaskNetwork, free_port, on_own_thread};
use crate::tasks::{COOLDOWN, next_network};

/// Interval of the checks whether a task runs.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// Both sides.
struct AssignmentSides {
    node: SwarmNode,
    bare: BareContainerd,
    /// The image, by its digest.
    image: String,
    world: BackendFixture,
}

/// Starts on the host's network, and on the gateway's bridge.
pub(super) fn measure(size: SwarmSize) -> Result<[Vec<Pair<Duration>>; 2], Failure> {
    let SwarmSize {
        starts,
        warm_up,
        driver,
        ..
    } = size;
    on_own_thread(|| {
        // The fixture needs a runtime with threads.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let sides = AssignmentSides::start(driver).await?;
            let host = sides.pairs(starts, warm_up, false).await?;
            let own = sides.pairs(starts, warm_up, true).await?;
            sides.end().await;
            Ok([host, own])
        })
    })?
}

// === impl AssignmentSides ===

impl AssignmentSides {
    async fn start(driver: BridgeDriver) -> Result<Self, Failure> {
        let world = tokio::task::block_in_place(|| {
            BackendFixture::with(|settings| settings.network.bridge.driver = Some(driver.choice()))
        });
        let repository = "library/busybox";
        let digest = world
            .registry()
            .push(&format!("{repository}:latest"), &busybox().build());
        let image = format!("{}@{digest}", world.registry().reference(repository));
        let node = SwarmNode::over(&world).await;
        // The model of the bare ones, which runs all the while. On the bridge, so that its configuration is on disk.
        let model = named_task(
            &world,
            &image,
            "model",
            TaskNetwork::Own { port: free_port()? },
        );
        node.apply(true, vec![assigned(model)]).await;
        node.reported("model", TaskState::Running).await;
        let core = channel(&world.settings().address).await?;
        let namespaces = Pair {
            theirs: NAMESPACE,
            ours: NAMESPACE,
        };
        let cni = Cni::of(world.root(), None)?;
        let dir = world.root().path().join("bare");
        let bare = BareContainerd::modelled_on(core, namespaces, |_| true, cni, dir).await?;
        Ok(Self {
            node,
            bare,
            image,
            world,
        })
    }

    async fn pairs(
        &self,
        starts: u32,
        warm_up: u32,
        own: bool,
    ) -> Result<Vec<Pair<Duration>>, Failure> {
        let mut pairs = Vec::new();
        for round in 0..warm_up + starts {
            let pair = Pair::in_turns(round, self.theirs(own), self.ours(own)).await?;
            if let Some(done) = (round + 1).checked_sub(warm_up).filter(|done| *done > 0) {
                pairs.push(pair);
                progress(
                    if own {
                        "assignments, bridge"
                    } else {
                        "assignments"
                    },
                    done,
                    starts,
                );
            }
        }
        Ok(pairs)
    }

    async fn theirs(&self, own: bool) -> Result<Duration, Failure> {
        let name = random_name();
        let fifo = |stream: &str| -> Result<PathBuf, Failure> {
            let path = self.world.root().path().join(format!("{name}.{stream}"));
            mkfifo(&path, Mode::S_IRWXU)?;
            Ok(path)
        };
        let [stdout, stderr] = [fifo("out")?, fifo("err")?].map(|path| path.display().to_string());
        let fifos = open_fifos([&stdout, &stderr])?;
        let place = BarePlace {
            network: next_network(own)?,
            stdout: &stdout,
            stderr: &stderr,
        };
        let change = |text: String| {
            let mut spec: Value = serde_json::from_str(&text)?;
            let cgroup = spec["linux"]["cgroupsPath"]
                .as_str()
                .ok_or("the spec has no cgroup")?;
            spec["linux"]["cgroupsPath"] = json!(format!("{cgroup}-{name}"));
            Ok(spec)
        };
        let mut bare = self.bare.clone();
        let (took, running) = bare
            .start(place, |model, _, netns| model.spec_of(netns, change))
            .await?;
        bare.assert_runs(&running).await?;
        bare.remove(running).await?;
        drop(fifos);
        for fifo in [&stdout, &stderr] {
            fs::remove_file(fifo)?;
        }
        tokio::time::sleep(COOLDOWN).await;
        Ok(took)
    }

    async fn ours(&self, own: bool) -> Result<Duration, Failure> {
        let id = random_name();
        let task = named_task(&self.world, &self.image, &id, next_network(own)?);
        let begin = Instant::now();
        self.node.apply(false, vec![assigned(task)]).await;
        let took = tokio::time::timeout(LIMIT, self.until_running(&id)).await??;
        let took = took - begin;
        self.node
            .apply(false, vec![Change::TaskGone(id.clone())])
            .await;
        let scope = self.node.gateway.scope(Owner::Swarm);
        let gone = async {
            while scope.tasks().named(&id)?.is_some() {
                tokio::time::sleep(LOOK_PAUSE).await;
            }
            Ok::<(), Failure>(())
        };
        tokio::time::timeout(LIMIT, gone).await??;
        tokio::time::sleep(COOLDOWN).await;
        Ok(took)
    }

    /// Waits until the task runs, and returns the time at which that was seen.
    async fn until_running(&self, id: &str) -> Result<Instant, Failure> {
        loop {
            if let Some(status) = self.node.reports.latest(id) {
                if status.state > TaskState::Running.into() {
                    return Err(format!("a task of a swarm does not run: {status:?}").into());
                }
                if status.state == i32::from(TaskState::Running) {
                    return Ok(Instant::now());
                }
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    async fn end(self) {
        let Self {
            node,
            bare: _,
            image: _,
            world,
        } = self;
        node.end().await;
        drop(world);
    }
}

fn named_task(world: &BackendFixture, image: &str, id: &str, network: TaskNetwork) -> swarm::Task {
    let mut made = task(world, id, "exec sleep 100000", |container| {
        image.clone_into(&mut container.image)
    });
    match network {
        TaskNetwork::Host => made.networks.push(host_network()),
        TaskNetwork::Own { port } => {
            let port = swarm::PortConfig {
                protocol: swarm::port_config::Protocol::Tcp.into(),
                target_port: INSIDE.into(),
                published_port: port.into(),
                publish_mode: swarm::port_config::PublishMode::Host.into(),
                ..Default::default()
            };
            made.endpoint = Some(swarm::Endpoint {
                ports: vec![port],
                ..Default::default()
            });
        }
    }
    made
}

/// The host's network, as managers describe it.
fn host_network() -> swarm::NetworkAttachment {
    let labels = [("com.docker.swarm.predefined".to_owned(), "true".to_owned())].into();
    let annotations = Some(swarm::Annotations {
        name: "host".into(),
        labels,
        ..Default::default()
    });
    let network = swarm::Network {
        spec: Some(swarm::NetworkSpec {
            annotations,
            ..Default::default()
        }),
        driver_state: Some(swarm::Driver {
            name: "host".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    swarm::NetworkAttachment {
        network: Some(network),
        ..Default::default()
    }
}
