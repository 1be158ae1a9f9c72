//! The backend itself: what all parts share, and the `Backend` trait on top of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use switchyard_cgroup as cgroup;
use switchyard_cni as cni;
use switchyard_core::backend::{
    Backend, BackendStatus, CgroupDriver, ExecProcess, Handler, Inspection, Recovered, SandboxDetails,
    SandboxStats, Started, TaskDetails,
};
use switchyard_core::blocking_pool::{self, BlockingPool};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::ImageStore;
use switchyard_core::spec::{
    CgroupPlacement, CheckpointSpec, ExecSpec, SandboxSpec, Signal, Subnet, TaskSpec, TaskUpdate,
};
use switchyard_core::state::Exit;
use switchyard_core::stats::{InterfaceStats, TaskMetrics, TaskStats};
use switchyard_core::stream::{AttachSpec, Attachment, Dialled};
use switchyard_core::{Error, Result, threads};
use switchyard_runtime_spec::cgroups_path::{CgroupLocation, cgroups_path};
use switchyard_runtime_spec::{self as runtime_spec, Host};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::apparmor::DEFAULT_PROFILE;
use crate::bundle::CreatesInFlight;
use crate::busy_cgroups::BusyCgroups;
use crate::cleanup::CleanupQueue;
use crate::client::Client;
use crate::config::{Runtime, Settings};
use crate::containerd_features::ContainerdFeatures;
use crate::disks::Disks;
use crate::exec::predecessor::PredecessorFifos;
use crate::fs::read_kernel_sysctl;
use crate::health::{Contact, Health};
use crate::image::{ContainerdImageStore, layer_sync::LayerSync, lease::Leases};
use crate::image_reader::ImageReader;
use crate::layout::Layout;
use crate::lifeline::SharedSocket;
use crate::quota::Projects;
use crate::runtime_probes::RuntimeProbes;
use crate::sandbox::bridge::BridgeNetwork;
use crate::sandbox::pod_cgroups::PodCgroups;
use crate::sandbox::ranges::Ranges;
use crate::sandbox::{SandboxEntry, infra};
use crate::shim::Lifelines;
use crate::stats::LayerUsageCache;
use crate::steps::Faults;
use crate::task::{PodShims, TaskEntry, UnresponsiveShims};
use crate::trees::Trees;
use crate::volumes::Volumes;

mod setup;

use setup::{cgroup_driver, instance, policy_of, registry_of, snapshotters};

/// The shim of runc and what is like it: processes of tasks are processes of the node.
pub(crate) const RUNC_TYPE: &str = "io.containerd.runc.v2";
/// Scopes and default slices of ours are called so.
const CGROUP_PREFIX: &str = "switchyard";
/// How long recovery waits for containerd before it says that it is away.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs sandboxes and tasks on containerd.
///
/// Dropping it stops its background work; sandboxes and tasks stay as they are.
#[derive(Debug)]
pub struct Containerd {
    pub(crate) inner: Arc<Inner>,
    _stop: tokio_util::sync::DropGuard,
}

/// What all parts share.
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) client: Client,
    pub(crate) layout: Layout,
    pub(crate) images: ContainerdImageStore,
    pub(crate) image_reader: ImageReader,
    pub(crate) host: Host,
    /// One at a time loads the default AppArmor profile: who comes next finds it.
    pub(crate) profile_lock: Semaphore,
    /// That SELinux options are ignored was said.
    pub(crate) selinux_warned: Once,
    pub(crate) host_name: String,
    /// Names this boot of the node.
    pub(crate) boot: String,
    pub(crate) logkeeper: switchyard_logkeeper::Client,
    pub(crate) cni_conf: cni::ConfDir,
    pub(crate) cni_plugins: cni::Plugins,
    /// The gateway's own network.
    pub(crate) bridge: BridgeNetwork,
    pub(crate) ranges: Arc<Ranges>,
    pub(crate) cgroups: Arc<cgroup::Reader>,
    moves: Arc<cgroup::Moves>,
    pub(crate) layer_usage: LayerUsageCache,
    pub(crate) pod_cgroups: Arc<PodCgroups>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) trees: Arc<Trees>,
    pub(crate) projects: Projects,
    pub(crate) containerd_features: ContainerdFeatures,
    pub(crate) health: Health,
    pub(crate) disks: Disks,
    pub(crate) runtime_probes: RuntimeProbes,
    pub(crate) tracker: TaskTracker,
    /// What containerd deletes for us after an end: it calls that off for whoever waits no more, so those who wait do not do it themselves.
    pub(crate) exit_cleanups: TaskTracker,
    pub(crate) faults: Faults,
    pub(crate) cleanup: Arc<CleanupQueue>,
    pub(crate) busy_cgroups: BusyCgroups,
    pub(crate) looks: BlockingPool,
    pub(crate) creates_in_flight: CreatesInFlight,
    pub(crate) pod_shims: PodShims,
    pub(crate) unresponsive_shims: UnresponsiveShims,
    pub(crate) lifelines: Arc<Lifelines>,
    /// Cancelled, as it were, when recovery is done.
    pub(crate) recovered: CancellationToken,
    pub(crate) predecessor_fifos: PredecessorFifos,
    /// Containers that a predecessor may have been starting.
    predecessor_calls: Mutex<HashSet<String>>,
    /// CNI plugins that a predecessor ran, by sandbox.
    predecessor_plugins: Mutex<HashMap<SandboxId, Vec<switchyard_process::ProcessId>>>,
    sandboxes: Mutex<HashMap<SandboxId, Arc<SandboxEntry>>>,
    tasks: Mutex<HashMap<TaskId, Arc<TaskEntry>>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Containerd").field("address", &self.client.address()).finish_non_exhaustive()
    }
}

impl Containerd {
    /// A backend with these settings. containerd need not be there yet: it is looked for from now on. One that is ours to start is
    /// started after this: it finds the FIFOs of a predecessor's execs open.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `InvalidArgument` for settings that cannot work; `Internal` if the node's own files cannot be read or written.
    pub fn connect(settings: Settings) -> Result<Self> {
        Self::build(settings, Faults::default())
    }

    /// The same, with a handle by which a test makes steps fail.
    ///
    /// # Errors
    /// As [`Containerd::connect`].
    #[cfg(feature = "faults")]
    pub fn connect_with_faults(settings: Settings, faults: Faults) -> Result<Self> {
        Self::build(settings, faults)
    }

    fn build(settings: Settings, faults: Faults) -> Result<Self> {
        let config = &settings.containerd;
        if !config.runtimes.contains_key(&config.default_runtime) {
            return Err(Error::invalid(
                "containerd.default_runtime",
                format!("there is no containerd.runtimes.{}", config.default_runtime),
            ));
        }
        let health = Health::new(config.answer_timeout());
        let instance = instance(&settings.state)?;
        let shared_socket = SharedSocket::new();
        let client =
            Client::new(&settings.address, &config.namespace, &instance, &health, shared_socket.clone())?;
        let layout = Layout::new(&settings.state, &settings.run);
        layout.create_private_dirs()?;
        infra::install(&layout.infra())?;
        let driver = cgroup_driver(settings.cgroup.driver);
        let mut host = Host::detect(driver, DEFAULT_PROFILE)
            .map_err(|fault| Error::internal("the node's abilities cannot be read").with_source(fault))?;
        host.selinux = host.selinux.filter(|_| config.selinux);
        let snapshotters = snapshotters(config);
        let tracker = TaskTracker::new();
        let abilities = ContainerdFeatures::default();
        let leftovers = Arc::default();
        let limit = Duration::from_secs(settings.network.plugin_timeout_seconds.max(1));
        let boot = read_kernel_sysctl("random/boot_id")?;
        let cgroups = cgroup::Reader::detect()?;
        let inner = Arc::new(Inner {
            images: ContainerdImageStore::new(
                client.clone(),
                registry_of(&settings),
                snapshotters,
                abilities.clone(),
                policy_of(&settings),
                Leases::new(client.clone(), tracker.clone(), Arc::clone(&leftovers)),
                LayerSync::new(client.clone(), &boot, tracker.clone()),
            ),
            image_reader: ImageReader::new(
                client.clone(),
                layout.views(),
                settings.images.max_account_file_bytes,
            ),
            host,
            profile_lock: Semaphore::new(1),
            selinux_warned: Once::new(),
            host_name: read_kernel_sysctl("hostname")?,
            boot,
            logkeeper: switchyard_logkeeper::Client::new(&settings.logkeeper),
            bridge: BridgeNetwork::new(&settings.network.bridge, &layout)?,
            cni_conf: cni::ConfDir::new(&settings.network.conf_dir),
            cni_plugins: cni::Plugins::new(
                settings.network.bin_dirs.clone(),
                cni::Limits { plugin: limit, undo: limit },
            ),
            ranges: Arc::new(Ranges::load(layout.ranges())),
            moves: Arc::new(cgroup::Moves::new(cgroups.hierarchy().clone())),
            cgroups: Arc::new(cgroups),
            layer_usage: LayerUsageCache::default(),
            pod_cgroups: Arc::default(),
            volumes: Arc::new(Volumes::new(layout.volumes())),
            trees: Arc::new(Trees::new(layout.state(), layout.run())),
            projects: Projects::default(),
            health,
            disks: Disks::default(),
            containerd_features: abilities,
            runtime_probes: RuntimeProbes::default(),
            cleanup: leftovers,
            busy_cgroups: BusyCgroups::default(),
            looks: BlockingPool::new(threads::BACKEND_POOL, blocking_pool::LIMIT),
            creates_in_flight: CreatesInFlight::default(),
            pod_shims: PodShims::default(),
            unresponsive_shims: UnresponsiveShims::default(),
            lifelines: Lifelines::new(&settings.logkeeper, tracker.clone()),
            recovered: CancellationToken::new(),
            predecessor_fifos: PredecessorFifos::open(&layout.all_task_run()),
            predecessor_calls: Mutex::default(),
            predecessor_plugins: Mutex::default(),
            sandboxes: Mutex::default(),
            tasks: Mutex::default(),
            client,
            layout,
            tracker,
            exit_cleanups: TaskTracker::new(),
            faults,
            settings,
        });
        let stop = CancellationToken::new();
        inner.spawn_background(shared_socket, &stop);
        Ok(Self { inner, _stop: stop.drop_guard() })
    }
}

impl Inner {
    /// Starts what goes on beside the requests, until `stop`.
    fn spawn_background(self: &Arc<Self>, shared_socket: SharedSocket, stop: &CancellationToken) {
        let keeper = &self.settings.logkeeper;
        self.tracker.spawn(self.health.clone().watch(self.client.without_health_check(), stop.clone()));
        self.tracker.spawn(self.health.clone().watch_logkeeper(keeper.clone(), stop.clone()));
        self.tracker.spawn(Arc::clone(self).watch_disks(stop.clone()));
        self.tracker.spawn(Arc::clone(self).run_cleanup(stop.clone()));
        self.tracker.spawn(Arc::clone(self).watch_runtime_features(stop.clone()));
        self.tracker.spawn(Arc::clone(self).watch_orphans(stop.clone()));
        self.tracker.spawn(Arc::clone(self).watch_unread(stop.clone()));
        self.tracker.spawn(shared_socket.share_with_logkeeper(keeper.clone(), stop.clone()));
    }

    pub(crate) fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<SandboxEntry>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tasks(&self) -> MutexGuard<'_, HashMap<TaskId, Arc<TaskEntry>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn predecessor_calls(&self) -> MutexGuard<'_, HashSet<String>> {
        self.predecessor_calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn predecessor_plugins(
        &self,
    ) -> MutexGuard<'_, HashMap<SandboxId, Vec<switchyard_process::ProcessId>>> {
        self.predecessor_plugins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runtime handler of this name; empty for the default.
    pub(crate) fn runtime(&self, handler: &str) -> Result<&Runtime> {
        let config = &self.settings.containerd;
        let name = if handler.is_empty() { &config.default_runtime } else { handler };
        config.runtimes.get(name).ok_or_else(|| {
            let known: Vec<&str> = config.runtimes.keys().map(String::as_str).collect();
            Error::invalid(
                "runtime_handler",
                format!("{name:?} is not configured; there are: {}", known.join(", ")),
            )
        })
    }

    /// Has the kernel ready for a process that a runtime is about to put into a cgroup, until what this gives is dropped.
    pub(crate) fn expect_move(&self) -> cgroup::ExpectedMove {
        let expected = self.moves.expect();
        let moves = Arc::clone(&self.moves);
        self.tracker.spawn_blocking(move || moves.keep_ready());
        expected
    }

    /// Where the cgroup of an object of a sandbox goes.
    pub(crate) fn cgroup_of(&self, sandbox: &SandboxEntry, id: &str) -> Result<CgroupLocation> {
        self.cgroup_at(&sandbox.cgroup(&self.settings.cgroup.default_parent), id)
    }

    pub(crate) fn cgroup_at(&self, placement: &CgroupPlacement, id: &str) -> Result<CgroupLocation> {
        let placement = match (placement, self.host.cgroup_driver) {
            // The default parent is a name; with systemd it is a slice.
            (CgroupPlacement::Parent(parent), runtime_spec::CgroupDriver::Systemd)
                if *parent == std::path::Path::new(&self.settings.cgroup.default_parent)
                    && parent.extension().is_none() =>
            {
                CgroupPlacement::Parent(parent.with_extension("slice"))
            }
            (placement, _) => placement.clone(),
        };
        cgroups_path(&placement, id, self.host.cgroup_driver, CGROUP_PREFIX)
    }
}

#[async_trait]
impl Backend for Containerd {
    fn status(&self) -> BackendStatus {
        let inner = &self.inner;
        let version = match inner.health.current() {
            Contact::Up { version } => format!("containerd {version}"),
            Contact::Down { .. } => "containerd (away)".to_owned(),
        };
        let mut facts = BTreeMap::from([
            ("containerd.address".to_owned(), inner.client.address().display().to_string()),
            ("containerd.namespace".to_owned(), inner.settings.containerd.namespace.clone()),
            ("stateDir".to_owned(), inner.settings.state.display().to_string()),
            ("network.confDir".to_owned(), inner.cni_conf.dir().display().to_string()),
            ("network.bridge".to_owned(), inner.bridge.summary()),
        ]);
        facts.extend(inner.ranges.summary().map(|ranges| ("network.ranges".to_owned(), ranges)));
        facts.extend(inner.unresponsive_shims.summary().map(|tasks| ("shims.silent".to_owned(), tasks)));
        facts.extend(inner.unrecorded_exits().map(|tasks| ("exits.unrecorded".to_owned(), tasks)));
        facts.extend(inner.busy_cgroups.summary().map(|groups| ("cgroups.left".to_owned(), groups)));
        facts.extend(inner.trees.summary().map(|trees| ("trees.setAside".to_owned(), trees)));
        BackendStatus {
            runtime: inner.runtime_condition(),
            network: inner.network_condition(),
            disk: inner.disks.condition(),
            version,
            cgroup_driver: match inner.host.cgroup_driver {
                runtime_spec::CgroupDriver::Systemd => CgroupDriver::Systemd,
                runtime_spec::CgroupDriver::Fs => CgroupDriver::Cgroupfs,
            },
            network_config: inner.network_config(),
            bridge_address: Some(inner.bridge.host()),
            facts,
            advisories: inner.advisories(),
        }
    }

    fn handlers(&self) -> Vec<Handler> {
        let config = &self.inner.settings.containerd;
        let handler = |(name, runtime): (&String, &Runtime)| Handler {
            name: name.clone(),
            recursive_readonly_mounts: self.inner.recursive_readonly(runtime),
            user_namespaces: self.inner.userns_unavailable(runtime).is_none(),
        };
        let (mut first, rest): (Vec<_>, Vec<_>) =
            config.runtimes.iter().map(handler).partition(|handler| handler.name == config.default_runtime);
        first.extend(rest);
        first
    }

    async fn recover(&self) -> Result<Recovered> {
        self.inner.health.wait_up(CONTACT_TIMEOUT).await?;
        self.inner.recover().await
    }

    async fn drain(&self) {
        self.inner.wind_up().await;
    }

    async fn resolve_start(&self, id: TaskId) -> Result<Option<Started>> {
        self.inner.finish_predecessor_start(id).await
    }

    async fn create_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails> {
        self.inner.create_sandbox(id, spec).await
    }

    async fn wait_network_released(&self, id: SandboxId) {
        self.inner.cleanup.unreleased.released(id).await;
    }

    async fn stop_sandbox(&self, id: SandboxId) -> Result<()> {
        self.inner.stop_sandbox(id).await
    }

    async fn wait_sandbox(&self, id: SandboxId) -> Result<String> {
        self.inner.wait_sandbox(id).await
    }

    async fn begin_removal(&self, id: SandboxId) -> Result<()> {
        self.inner.begin_removal(id).await
    }

    async fn remove_sandbox(&self, id: SandboxId) -> Result<()> {
        self.inner.remove_sandbox(id).await
    }

    async fn start_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails> {
        self.inner.start_sandbox(id, spec).await
    }

    async fn amend_sandbox(&self, id: SandboxId, note: &[u8]) -> Result<()> {
        self.inner.amend_sandbox(id, note).await
    }

    async fn create_task(&self, id: TaskId, sandbox: SandboxId, spec: &TaskSpec) -> Result<TaskDetails> {
        self.inner.create_task(id, sandbox, spec).await
    }

    async fn start_task(&self, id: TaskId) -> Result<Started> {
        self.inner.start_task(id).await
    }

    async fn signal_task(&self, id: TaskId, signal: Signal) -> Result<()> {
        self.inner.signal_task(id, signal).await
    }

    async fn wait_end(&self, id: TaskId) -> Result<()> {
        self.inner.wait_end(id).await
    }

    async fn wait_task(&self, id: TaskId) -> Result<Exit> {
        self.inner.wait_task(id).await
    }

    async fn remove_task(&self, id: TaskId) -> Result<()> {
        self.inner.remove_task(id).await
    }

    async fn update_task(&self, id: TaskId, update: &TaskUpdate) -> Result<TaskDetails> {
        self.inner.update_task(id, update).await
    }

    async fn set_ranges(&self, owner: Owner, ranges: Vec<Subnet>) -> Result<()> {
        self.inner.ranges.set(owner, ranges).await
    }

    async fn remove_volume(&self, owner: Owner, name: &str) -> Result<()> {
        self.inner.remove_volume(owner, name).await
    }

    async fn checkpoint_task(&self, id: TaskId, spec: &CheckpointSpec) -> Result<()> {
        self.inner.checkpoint_task(id, spec).await
    }

    async fn exec(&self, id: TaskId, spec: &ExecSpec) -> Result<ExecProcess> {
        crate::exec::start(&self.inner, id, spec).await
    }

    fn exec_blocked(&self, id: TaskId) -> Option<Error> {
        self.inner.task(id).ok()?.exec_blocked()
    }

    async fn attach(&self, id: TaskId, spec: AttachSpec) -> Result<Attachment> {
        self.inner.attach_task(id, spec).await
    }

    async fn resize_task(&self, id: TaskId, width: u16, height: u16) -> Result<()> {
        self.inner.resize_task(id, width, height).await
    }

    async fn dial(&self, id: SandboxId, port: u16) -> Result<Dialled> {
        self.inner.dial(id, port).await
    }

    async fn reopen_log(&self, id: TaskId) -> Result<()> {
        self.inner.reopen_log(id).await
    }

    async fn task_stats(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskStats>> {
        self.inner.task_stats(ids).await
    }

    async fn task_metrics(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskMetrics>> {
        self.inner.task_metrics(ids).await
    }

    async fn sandbox_traffic(&self, ids: &[SandboxId]) -> Result<BTreeMap<SandboxId, Vec<InterfaceStats>>> {
        self.inner.sandbox_traffic(ids).await
    }

    async fn sandbox_stats(&self, id: SandboxId) -> Result<SandboxStats> {
        self.inner.sandbox_stats(id).await
    }

    async fn inspect_task(&self, id: TaskId) -> Result<Inspection> {
        self.inner.inspect_task(id).await
    }

    async fn inspect_sandbox(&self, id: SandboxId) -> Result<Inspection> {
        self.inner.inspect_sandbox(id).await
    }

    fn images(&self) -> &dyn ImageStore {
        &self.inner.images
    }
}
