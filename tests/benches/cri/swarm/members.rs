//! A manager, our daemon and dockerd as its workers, and the services that it places on them.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use switchyard_tests::host::random_name;
use switchyard_tests::http;
use switchyard_tests::image::busybox;
use switchyard_tests::registry::Registry;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;

use crate::failure::Failure;
use crate::memory::Resident;
use crate::pair::Pair;

/// Time for which the daemon rests before its memory is read.
pub(super) const REST: Duration = Duration::from_secs(3);
/// Tasks that run already when memory is looked at first.
pub(super) const BASELINE_TASKS: u32 = 40;
/// Tasks that are assigned at once outside of measurements.
const AT_ONCE: u32 = 8;
/// Limit for the manager's answers.
const LIMIT: Duration = Duration::from_secs(120);
/// Interval at which it is queried.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// Between services: what is left of the one before is of nobody.
const COOLDOWN: Duration = Duration::from_millis(200);

/// The members of a swarm. Dropping it ends and removes everything.
#[derive(Debug)]
pub(super) struct Members {
    worker: SwarmWorker,
    /// The id of our node, once it has joined.
    ours: String,
    /// The number and the node's id of the dockerd that is a worker, if there is one.
    theirs: Option<(usize, String)>,
    /// The image of services, by its digest.
    image: String,
    _registry: Registry,
    // Last: its drop removes the network namespace of the others.
    cluster: SwarmCluster,
}

// === impl Members ===

impl Members {
    /// Starts a manager, a registry, and our daemon, which is no member yet.
    pub(super) fn start() -> Result<Self, Failure> {
        let cluster = SwarmCluster::new();
        let started = cluster.within(|| {
            let registry = Registry::start();
            let digest = registry.push("library/busybox:1", &busybox().build());
            let image = format!("{}@{digest}", registry.reference("library/busybox"));
            (registry, image)
        });
        let (registry, image) = started
            .join()
            .map_err(|_| "the registry did not start: see above")?;
        let worker = SwarmWorker::start(&cluster, |_| String::new());
        Ok(Self {
            worker,
            ours: String::new(),
            theirs: None,
            image,
            _registry: registry,
            cluster,
        })
    }

    /// The daemon's resident memory at rest, in MiB.
    pub(super) fn memory(&mut self) -> Result<f64, Failure> {
        thread::sleep(REST);
        Ok(Resident::of(u32::try_from(self.worker.daemon().pid())?)?.rss_mib())
    }

    /// Joins our daemon; how long it takes from the command until the manager says that the node is ready.
    pub(super) fn join(&mut self) -> Result<Duration, Failure> {
        let token = self.cluster.token("worker");
        let begin = Instant::now();
        let took = thread::scope(|scope| {
            let joining = scope.spawn(|| self.worker.join(&self.cluster, &token));
            let ready = until("the node is ready", || self.ready_worker());
            let took = begin.elapsed();
            joining.join().map_err(|_| "the join failed: see above")?;
            ready.map(|id| (took, id))
        });
        let (took, id) = took?;
        self.ours = id;
        Ok(took)
    }

    /// Ends that.
    pub(super) fn leave(&mut self) -> Result<(), Failure> {
        self.worker.output(&["swarm", "leave"]);
        until("the node is down", || {
            Ok(self.ready_worker()?.is_none().then_some(()))
        })
    }

    /// Joins a dockerd as a second worker.
    pub(super) fn add_dockerd(&mut self) -> Result<(), Failure> {
        let number = self.cluster.add_worker();
        let id = self
            .cluster
            .docker_on(number, &["info", "--format", "{{.Swarm.NodeID}}"]);
        self.theirs = Some((number, id.trim().to_owned()));
        Ok(())
    }

    /// A service of one task on each worker. Who comes first alternates.
    pub(super) fn round(&self, round: u32) -> Result<Pair<Duration>, Failure> {
        let (number, theirs) = self.theirs.as_ref().ok_or("there is no other worker")?;
        let dockerd = || {
            let took = self.service(theirs)?;
            let is_gone = || {
                Ok(self
                    .cluster
                    .docker_on(*number, &["ps", "-aq"])
                    .is_empty()
                    .then_some(()))
            };
            until("dockerd has removed the task", is_gone)?;
            thread::sleep(COOLDOWN);
            Ok::<_, Failure>(took)
        };
        let own = || {
            let took = self.service(&self.ours)?;
            self.until_empty()?;
            thread::sleep(COOLDOWN);
            Ok::<_, Failure>(took)
        };
        if round.is_multiple_of(2) {
            let theirs = dockerd()?;
            return Ok(Pair {
                theirs,
                ours: own()?,
            });
        }
        let ours = own()?;
        Ok(Pair {
            theirs: dockerd()?,
            ours,
        })
    }

    /// Measures the growth of the daemon's memory with many tasks, beside others, in MiB, after as many have
    /// run and ended: memory that the first starts allocate for good belongs to the daemon itself.
    pub(super) fn grow(&mut self, count: u32) -> Result<f64, Failure> {
        let first = self.run(count, count)?;
        self.remove_all(first)?;
        let mut services = self.run(BASELINE_TASKS, AT_ONCE)?;
        let before = self.memory()?;
        services.extend(self.run(count, AT_ONCE)?);
        let after = self.memory()?;
        self.remove_all(services)?;
        Ok(after - before)
    }

    fn remove_all(&self, services: Vec<String>) -> Result<(), Failure> {
        for service in services {
            self.remove(&service)?;
        }
        self.until_empty()
    }

    /// Runs many tasks, so many at once; the names of their services.
    fn run(&self, count: u32, at_once: u32) -> Result<Vec<String>, Failure> {
        let mut services = Vec::new();
        let mut left = count;
        while left > 0 {
            let replicas = left.min(at_once);
            let service = self.create(&self.ours, replicas)?;
            self.until_running(&service, replicas)?;
            services.push(service);
            left -= replicas;
        }
        Ok(services)
    }

    fn service(&self, node: &str) -> Result<Duration, Failure> {
        let begin = Instant::now();
        let name = self.create(node, 1)?;
        self.until_running(&name, 1)?;
        let took = begin.elapsed();
        self.remove(&name)?;
        Ok(took)
    }

    fn create(&self, node: &str, replicas: u32) -> Result<String, Failure> {
        let name = random_name();
        let service = json!({
            "Name": name,
            "TaskTemplate": {
                "ContainerSpec": { "Image": self.image, "Command": ["sleep", "100000"], "StopGracePeriod": 1_000_000 },
                "Placement": { "Constraints": [format!("node.id=={node}")] },
                "Networks": [{ "Target": "host" }],
            },
            "Mode": { "Replicated": { "Replicas": replicas } },
        });
        let made = http::post_unix(
            &self.cluster.socket(0),
            "/services/create",
            &service.to_string(),
        )?;
        if made.status == 201 {
            return Ok(name);
        }
        Err(format!("the manager does not create a service: {}", made.text()).into())
    }

    fn remove(&self, service: &str) -> Result<(), Failure> {
        http::delete_unix(&self.cluster.socket(0), &format!("/services/{service}"))?;
        Ok(())
    }

    /// Waits until so many tasks of a service run.
    fn until_running(&self, service: &str, count: u32) -> Result<(), Failure> {
        // As `{"service": {NAME: true}}`, with what a path may not have.
        let path = format!("/tasks?filters=%7B%22service%22%3A%7B%22{service}%22%3Atrue%7D%7D");
        until("the tasks run", || {
            let tasks = self.asked(&path)?;
            let running = tasks
                .iter()
                .filter(|task| task["Status"]["State"] == "running")
                .count();
            let failed = tasks.iter().find(|task| !task["Status"]["Err"].is_null());
            match failed {
                Some(task) => Err(format!("a task does not run: {}", task["Status"]).into()),
                None => Ok((running == usize::try_from(count)?).then_some(())),
            }
        })
    }

    fn until_empty(&self) -> Result<(), Failure> {
        until("the daemon has removed the tasks", || {
            Ok(self.worker.swarm_tasks().is_empty().then_some(()))
        })
    }

    /// The id of a worker that is ready.
    fn ready_worker(&self) -> Result<Option<String>, Failure> {
        let is_ready =
            |node: &&Value| node["Spec"]["Role"] == "worker" && node["Status"]["State"] == "ready";
        let nodes = self.asked("/nodes")?;
        Ok(nodes
            .iter()
            .find(is_ready)
            .and_then(|node| node["ID"].as_str())
            .map(str::to_owned))
    }

    fn asked(&self, path: &str) -> Result<Vec<Value>, Failure> {
        let answer = http::get_unix(&self.cluster.socket(0), path)?;
        if answer.status != 200 {
            return Err(format!(
                "the manager answers {path} with {}: {}",
                answer.status,
                answer.text()
            )
            .into());
        }
        Ok(serde_json::from_slice(&answer.body)?)
    }
}

/// Looks until there is something.
fn until<T>(
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let begin = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if begin.elapsed() > LIMIT {
            return Err(format!("{what}: not within {LIMIT:?}").into());
        }
        thread::sleep(LOOK_PAUSE);
    }
}
