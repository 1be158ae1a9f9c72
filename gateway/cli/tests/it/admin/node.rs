//! A node under test: a gateway over the in-memory backend, and components that a test controls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::{Body, to_bytes};
use futures::future::BoxFuture;
use http::StatusCode;
use parking_lot::Mutex;
use switchyard_config::{AdminConfig, AuditConfig, AuditTarget, ContainerMetrics, Sources, load};
use switchyard_contract::specs;
use switchyard_core::backend::{Backend as _, BackendStatus, Condition as BackendCondition};
use switchyard_core::device::{DeviceGroup, Inventory};
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::{LeaseToken, Owner};
use switchyard_core::image::{Credentials, PullRequest};
use switchyard_core::names::Names;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::operation::Caller;
use switchyard_core::spec::{Meta, Reserved, SandboxSpec, TaskSpec};
use switchyard_daemon::reload::Reloader;
use switchyard_daemon::reports::swarm::SwarmHandle;
use switchyard_daemon::wiring;
use switchyard_fake::{BUSYBOX, Fake, FakeImage};
use switchyard_linux::host_features::HostFeatures;
use switchyard_logkeeper::{Client, Config as KeeperConfig, Server};
use switchyard_operator::admin::AdminPages;
use switchyard_operator::control::{
    PluginHost, Reporter, RestartError, RestartableProcess, SwarmControl,
};
use switchyard_operator::history::History;
use switchyard_operator::metrics::{Metrics, ReportedFigures};
use switchyard_operator::node::{Node, NodeSources};
use switchyard_operator::owners::{OwnerFunctions, Owners};
use switchyard_operator::page::StatusPage;
use switchyard_operator::status::{Condition, Part};
use switchyard_operator_api::{HostView, RestartReport};
use switchyard_telemetry::LogLevel;
use tempfile::TempDir;
use tokio::sync::watch;
use tower::ServiceExt as _;

/// Images of the registry beside busybox, for tests that pull them.
pub(super) const IMAGES: [&str; 2] = ["docker.io/library/one:1", "docker.io/library/two:2"];

/// All processors and memory of the node.
pub(super) const CAPACITY: Reserved = Reserved {
    cpu_milli: 8000,
    memory_bytes: 16 << 30,
};

/// The name of the logkeeper's socket.
pub(super) const LOGKEEPER: &str = "logkeeper.sock";

/// The labels that [`TestNode::named_by_labels`] takes for names.
const NAME_LABELS: [&str; 2] = ["pod", "nomad_job"];

/// A node that has recovered, with a logkeeper, and busybox as its only image. It reports of no process and no frontend.
pub(super) struct TestNode {
    pub(super) fake: Fake,
    pub(super) gateway: Gateway,
    /// All files of the node.
    pub(super) dir: TempDir,
    /// Its parts come after those of the backend.
    pub(super) reporter: Arc<TestReporter>,
    owners: Owners,
    processes: Vec<Arc<dyn RestartableProcess>>,
    reporters: Vec<Arc<dyn Reporter>>,
    plugins: Arc<dyn PluginHost>,
    swarm: Option<Arc<dyn SwarmControl>>,
}

/// A component with the parts that a test sets, and with sessions of port-forward.
#[derive(Default)]
pub(super) struct TestReporter(Mutex<Vec<Part>>);

/// A process that the daemon needs, in the condition that a test sets; it is up at first.
pub(super) struct TestProcess {
    name: &'static str,
    pid: Option<i32>,
    condition: Mutex<Condition>,
    is_configuration_current: AtomicBool,
    restart: fn() -> Result<RestartReport, RestartError>,
}

/// Hosts no plugins.
struct NoPlugins;

/// A pod of Kubernetes, which people call `shop/web`.
pub(super) fn pod() -> SandboxSpec {
    let spec = specs::sandbox(Owner::Kubernetes, "web_shop_u1_0");
    let meta = spec.meta.clone();
    let meta = labelled(meta, "io.kubernetes.pod.name", "web");
    SandboxSpec {
        meta: labelled(meta, "io.kubernetes.pod.namespace", "shop"),
        ..spec
    }
}

/// A task that runs until it is killed.
pub(super) fn endless(owner: Owner, name: &str) -> TaskSpec {
    specs::task(owner, name, BUSYBOX, &["serve"])
}

/// Adds a label.
pub(super) fn labelled(mut meta: Meta, label: &str, value: &str) -> Meta {
    meta.labels.insert(label.to_owned(), value.to_owned());
    meta
}

/// A condition of a part of the backend that does not work.
pub(super) fn broken() -> BackendCondition {
    BackendCondition::False {
        reason: "Broken".to_owned(),
        message: "gone".to_owned(),
    }
}

/// The answer to a request of root on the unix socket, without that socket: for tests with a clock of their own, which
/// sockets would advance.
pub(super) async fn ask_as_root(
    router: &axum::Router,
    request: http::Request<Body>,
) -> (StatusCode, String) {
    let root = Caller {
        listener: "admin socket",
        uid: Some(0),
        pid: None,
    };
    let answer = root.scope(router.clone().oneshot(request)).await.unwrap();
    let (head, body) = answer.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    (head.status, String::from_utf8(body.to_vec()).unwrap())
}

/// The names in the labels of a task, or else in those of its sandbox.
fn names_in_labels(sandbox: &Meta, task: Option<&Meta>) -> Names {
    let label = |name: &str| {
        let of_task = task.and_then(|task| task.labels.get(name));
        of_task
            .or_else(|| sandbox.labels.get(name))
            .map(String::as_str)
    };
    let display = label("display").unwrap_or(&task.unwrap_or(sandbox).name);
    let names = Names::new(display);
    NAME_LABELS.into_iter().fold(names, |names, name| {
        names.with(name, label(name).unwrap_or_default())
    })
}

// === impl TestNode ===

impl TestNode {
    pub(super) async fn new() -> Self {
        let [one, two] = IMAGES;
        let fake = Fake::with_local_busybox().await;
        let fake = fake
            .with_image(one, FakeImage::default())
            .with_image(two, FakeImage::default());
        let limits = Limits {
            capacity: Some(CAPACITY),
            ..Limits::default()
        };
        let gateway = Gateway::new(Arc::new(fake.clone()), limits);
        gateway.recover().await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let logkeeper = KeeperConfig::new(dir.path().join(LOGKEEPER), dir.path().join("logkeeper"));
        let logkeeper = Server::start(&logkeeper).await.unwrap();
        tokio::spawn(logkeeper.serve(std::future::pending()));
        Self {
            fake,
            gateway,
            dir,
            reporter: Arc::default(),
            owners: wiring::owners(),
            processes: Vec::new(),
            reporters: Vec::new(),
            plugins: Arc::new(NoPlugins),
            swarm: None,
        }
    }

    /// The same node; `owners` knows its objects in place of the frontends.
    pub(super) fn with_owners(self, owners: Owners) -> Self {
        Self { owners, ..self }
    }

    /// The same node, on which the names of objects are in their labels: `display` is what people read.
    pub(super) fn named_by_labels(self) -> Self {
        self.with_owners(Owners::new(|_| OwnerFunctions {
            names: names_in_labels,
            ..OwnerFunctions::default()
        }))
    }

    /// The same node, which needs one more process.
    pub(super) fn with_process(mut self, process: &Arc<TestProcess>) -> Self {
        self.processes.push(Arc::clone(process) as _);
        self
    }

    /// The same node, of which one more component reports.
    pub(super) fn with_reporter(mut self, reporter: Arc<dyn Reporter>) -> Self {
        self.reporters.push(reporter);
        self
    }

    /// The same node with vendors' device plugins.
    pub(super) fn with_plugins(mut self, plugins: Arc<impl PluginHost + Reporter>) -> Self {
        self.reporters.push(Arc::clone(&plugins) as _);
        Self { plugins, ..self }
    }

    /// The same node, which may take part in a swarm.
    pub(super) fn with_swarm(mut self, swarm: Arc<SwarmHandle>) -> Self {
        self.reporters.push(Arc::clone(&swarm) as _);
        Self {
            swarm: Some(swarm),
            ..self
        }
    }

    /// The pages about this node, with the metrics of containers on these listeners.
    pub(super) fn pages(&self, containers: ContainerMetrics) -> AdminPages {
        let file = self.dir.path().join("config.toml");
        std::fs::write(&file, "version = 1\n").unwrap();
        let loaded = load(&Sources {
            file: Some(file),
            ..Sources::default()
        })
        .unwrap();
        let (reloader, _) = Reloader::new(loaded);
        let metrics = Arc::new(Metrics::new().unwrap());
        let audit = AuditConfig {
            to: AuditTarget::Off,
            ..AuditConfig::default()
        };
        AdminPages::new(
            Arc::new(self.node()),
            Arc::clone(&metrics),
            Arc::new(reloader),
            LogLevel::new("info", |_| {}),
            History::start(
                &audit,
                &metrics,
                self.owners,
                &self.dir.path().join("state"),
            ),
            containers,
            StatusPage::new(&AdminConfig::default(), self.dir.path()),
        )
    }

    /// The source of the pages.
    pub(super) fn node(&self) -> Node {
        let reporters = self
            .reporters
            .iter()
            .cloned()
            .chain([Arc::clone(&self.reporter) as _]);
        let mut features = HostFeatures::default();
        features.add("openat2", None);
        features.add("apparmor", Some("it is off".to_owned()));
        Node::new(NodeSources {
            gateway: self.gateway.clone(),
            owners: self.owners,
            logs: Client::new(self.dir.path().join(LOGKEEPER)),
            recovery_error: watch::Sender::new(None).subscribe(),
            processes: self.processes.clone(),
            reporters: reporters.collect(),
            plugins: Arc::clone(&self.plugins),
            swarm: self.swarm.clone(),
            features,
        })
    }

    /// Changes what the backend says of itself.
    pub(super) fn change_status(&self, change: impl FnOnce(&mut BackendStatus)) {
        let mut status = self.fake.status();
        change(&mut status);
        self.fake.set_status(status);
    }

    /// Asks for the node's network, as a kubelet does.
    pub(super) async fn use_network(&self) {
        drop(self.gateway.scope(Owner::Kubernetes).fresh_status().await);
    }

    pub(super) async fn pull(&self, owner: Owner, reference: &str) {
        let reference = reference.to_owned();
        let request = PullRequest {
            reference,
            credentials: Credentials::Anonymous,
            handler: String::new(),
            owner,
        };
        self.gateway.images().store().pull(&request).await.unwrap();
    }

    pub(super) async fn sandbox(&self, spec: SandboxSpec) -> Arc<Sandbox> {
        self.gateway
            .scope(spec.meta.owner)
            .sandboxes()
            .create(spec)
            .await
            .unwrap()
    }

    /// A task in this sandbox, before it is started.
    pub(super) async fn task(&self, sandbox: &Sandbox, spec: TaskSpec) -> Arc<Task> {
        self.gateway
            .scope(spec.meta.owner)
            .tasks()
            .create(&sandbox.id.to_string(), spec)
            .await
            .unwrap()
    }

    /// A running task in this sandbox.
    pub(super) async fn start(&self, sandbox: &Sandbox, spec: TaskSpec) -> Arc<Task> {
        let task = self.task(sandbox, spec).await;
        self.gateway
            .scope(task.meta.owner)
            .tasks()
            .start(&task.id.to_string())
            .await
            .unwrap();
        task
    }

    /// A running task in a sandbox of the same name.
    pub(super) async fn run(&self, spec: TaskSpec) -> Arc<Task> {
        let sandbox = self
            .sandbox(specs::sandbox(spec.meta.owner, &spec.meta.name))
            .await;
        self.start(&sandbox, spec).await
    }

    /// Finds these devices on the node. Call it once.
    pub(super) async fn add_devices(&self, groups: impl IntoIterator<Item = DeviceGroup>) {
        let found = watch::Sender::new(Some(Arc::new(Inventory::of(groups))));
        self.gateway.devices().watch(found.subscribe());
        self.gateway.scope(Owner::Host).devices().scanned().await;
    }

    pub(super) async fn lease(
        &self,
        owner: Owner,
        slot: &str,
    ) -> switchyard_core::Result<LeaseToken> {
        Ok(self
            .gateway
            .scope(owner)
            .devices()
            .lease(&[slot.parse().unwrap()])
            .await?
            .token)
    }
}

// === impl TestReporter ===

impl TestReporter {
    pub(super) fn set(&self, parts: impl Into<Vec<Part>>) {
        *self.0.lock() = parts.into();
    }
}

impl Reporter for TestReporter {
    fn parts(&self) -> Vec<Part> {
        self.0.lock().clone()
    }

    fn count(&self, figures: &mut ReportedFigures) {
        figures.streaming = vec![("portforward", 4)];
    }
}

// === impl TestProcess ===

impl TestProcess {
    pub(super) fn new(name: &'static str) -> Self {
        let condition = Mutex::new(super::up());
        Self {
            name,
            pid: None,
            condition,
            is_configuration_current: AtomicBool::new(true),
            restart: || Err(RestartError::Stopping),
        }
    }

    /// The same process with this pid.
    pub(super) fn with_pid(self, pid: i32) -> Self {
        Self {
            pid: Some(pid),
            ..self
        }
    }

    /// The same process; `restart` is what comes of a restart.
    pub(super) fn with_restart(self, restart: fn() -> Result<RestartReport, RestartError>) -> Self {
        Self { restart, ..self }
    }

    pub(super) fn set(&self, condition: Condition) {
        *self.condition.lock() = condition;
    }

    /// From now on it has read a former configuration.
    pub(super) fn set_former_configuration(&self) {
        self.is_configuration_current
            .store(false, Ordering::Relaxed);
    }
}

impl Reporter for TestProcess {
    fn parts(&self) -> Vec<Part> {
        vec![Part::needed(self.name, self.condition.lock().clone())]
    }
}

impl RestartableProcess for TestProcess {
    fn name(&self) -> &'static str {
        self.name
    }

    fn pid(&self) -> Option<i32> {
        self.pid
    }

    fn version(&self) -> Option<String> {
        Some("1.7.2".to_owned())
    }

    fn is_configuration_current(&self) -> Option<bool> {
        Some(self.is_configuration_current.load(Ordering::Relaxed))
    }

    fn restart(&self) -> BoxFuture<'_, Result<RestartReport, RestartError>> {
        Box::pin(std::future::ready((self.restart)()))
    }
}

// === impl NoPlugins ===

impl PluginHost for NoPlugins {
    fn view(&self) -> Option<HostView> {
        None
    }
}
