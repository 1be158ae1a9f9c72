//! The state that all parts of the backend share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use switchyard_cgroup as cgroup;
use switchyard_cni as cni;
use switchyard_core::blocking_pool::{self, BlockingPool};
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::spec::CgroupPlacement;
use switchyard_core::{Error, Result, threads};
use switchyard_runtime_spec::cgroups_path::{CgroupLocation, cgroups_path};
use switchyard_runtime_spec::{self as runtime_spec, Host};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::busy_cgroups::BusyCgroups;
use crate::cleanup::CleanupQueue;
use crate::client::Client;
use crate::config::{Runtime, Settings};
use crate::containerd_features::ContainerdFeatures;
use crate::creates_in_flight::CreatesInFlight;
use crate::disks::Disks;
use crate::exec::predecessor_fifos::PredecessorFifos;
use crate::fs::read_kernel_sysctl;
use crate::health::Health;
use crate::image::{ContainerdImageStore, layer_sync::LayerSync, lease::Leases};
use crate::image_reader::ImageReader;
use crate::layout::Layout;
use crate::lifeline::SharedSocket;
use crate::quota::Projects;
use crate::runtime_probes::RuntimeProbes;
use crate::sandbox::bridge::BridgeNetwork;
use crate::sandbox::infra_rootfs;
use crate::sandbox::pod_cgroups::PodCgroups;
use crate::sandbox::ranges::Ranges;
use crate::sandbox::{SandboxEntry, Unreleased};
use crate::shim::Lifelines;
use crate::stats::layer_usage::LayerUsageCache;
use crate::steps::Faults;
use crate::task::{PodShims, TaskEntry};
use crate::trees::Trees;
use crate::unresponsive_shims::UnresponsiveShims;
use crate::volumes::Volumes;

use super::setup::{check_default_runtime, cni_plugins, detect_host, image_store, instance};

/// The name prefix of the systemd scopes and default slices that this backend asks for.
const CGROUP_PREFIX: &str = "switchyard";

/// The state that all parts of the backend share.
pub(crate) struct Inner {
    /// This object, for cleanups that outlive the call that queues them.
    pub(crate) weak: Weak<Self>,
    pub(crate) settings: Settings,
    pub(crate) client: Client,
    pub(crate) layout: Layout,
    pub(crate) images: ContainerdImageStore,
    pub(crate) image_reader: ImageReader,
    pub(crate) host: Host,
    /// Serialises loading of the default AppArmor profile: the callers after the first find it loaded.
    pub(crate) profile_lock: Semaphore,
    /// Logs once that SELinux options are ignored on this node.
    pub(crate) selinux_warned: Once,
    pub(crate) host_name: String,
    /// The kernel's boot id: records of another boot name cgroups and processes that no longer exist.
    pub(crate) boot: String,
    pub(crate) logkeeper: switchyard_logkeeper::Client,
    pub(crate) cni_conf: cni::ConfDir,
    pub(crate) cni_plugins: cni::Plugins,
    /// The gateway's own bridge network.
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
    /// Deletions in containerd after a process exit. containerd cancels a call whose caller has gone, so each
    /// deletion runs as a task of its own and not in the future of a waiting client.
    pub(crate) exit_cleanups: TaskTracker,
    pub(crate) faults: Faults,
    pub(crate) cleanup: Arc<CleanupQueue>,
    /// The sandboxes whose network is not released yet.
    pub(crate) unreleased: Unreleased,
    pub(crate) busy_cgroups: BusyCgroups,
    pub(crate) looks: BlockingPool,
    pub(crate) creates_in_flight: CreatesInFlight,
    pub(crate) pod_shims: PodShims,
    pub(crate) unresponsive_shims: UnresponsiveShims,
    pub(crate) lifelines: Arc<Lifelines>,
    /// Cancelled when recovery is done; used as a one-shot signal.
    pub(crate) recovered: CancellationToken,
    pub(crate) predecessor_fifos: PredecessorFifos,
    /// Ids of containers for which a predecessor call may still be running.
    predecessor_calls: Mutex<HashSet<String>>,
    /// CNI plugin processes that a predecessor started, by sandbox.
    predecessor_plugins: Mutex<HashMap<SandboxId, Vec<switchyard_process::ProcessId>>>,
    sandboxes: Mutex<HashMap<SandboxId, Arc<SandboxEntry>>>,
    tasks: Mutex<HashMap<TaskId, Arc<TaskEntry>>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Containerd").field("address", &self.client.address()).finish_non_exhaustive()
    }
}

impl Inner {
    /// A backend with these settings, whose background tasks run until `stop`.
    pub(super) fn new(settings: Settings, faults: Faults, stop: &CancellationToken) -> Result<Arc<Self>> {
        let config = &settings.containerd;
        check_default_runtime(config)?;
        let health = Health::new(config.answer_timeout());
        let instance = instance(&settings.state)?;
        let shared_socket = SharedSocket::new();
        let client = Client::new(
            &settings.address,
            &config.namespace,
            &instance,
            health.subscribe(),
            shared_socket.clone(),
        )?;
        let layout = Layout::new(&settings.state, &settings.run);
        layout.create_private_dirs()?;
        infra_rootfs::install(&layout.infra())?;
        let host = detect_host(&settings)?;
        let tracker = TaskTracker::new();
        let features = ContainerdFeatures::default();
        let cleanup = Arc::default();
        let boot = read_kernel_sysctl("random/boot_id")?;
        let cgroups = cgroup::Reader::detect()?;
        let host_name = read_kernel_sysctl("hostname")?;
        let bridge = BridgeNetwork::new(&settings.network.bridge, &layout)?;
        let leases = Leases::new(client.clone(), tracker.clone(), Arc::clone(&cleanup));
        let layer_sync = LayerSync::new(client.clone(), &boot, tracker.clone());
        let images = image_store(&client, &settings, features.clone(), leases, layer_sync);
        let inner = Arc::new_cyclic(|weak| Inner {
            weak: weak.clone(),
            images,
            image_reader: ImageReader::new(
                client.clone(),
                layout.views(),
                settings.images.max_account_file_bytes,
            ),
            host,
            profile_lock: Semaphore::new(1),
            selinux_warned: Once::new(),
            host_name,
            boot,
            logkeeper: switchyard_logkeeper::Client::new(&settings.logkeeper),
            bridge,
            cni_conf: cni::ConfDir::new(&settings.network.conf_dir),
            cni_plugins: cni_plugins(&settings.network),
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
            containerd_features: features,
            runtime_probes: RuntimeProbes::default(),
            cleanup,
            unreleased: Unreleased::default(),
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
        inner.spawn_background(shared_socket, stop);
        Ok(inner)
    }

    /// Starts the background tasks; they end when `stop` is cancelled.
    fn spawn_background(self: &Arc<Self>, shared_socket: SharedSocket, stop: &CancellationToken) {
        let keeper = &self.settings.logkeeper;
        self.tracker.spawn(self.health.clone().watch(self.client.without_health_check(), stop.clone()));
        self.tracker.spawn(self.health.clone().watch_logkeeper(keeper.clone(), stop.clone()));
        self.tracker.spawn(Arc::clone(self).watch_disks(stop.clone()));
        self.tracker.spawn(Arc::clone(&self.cleanup).run(self.health.clone(), stop.clone()));
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

    /// The configured runtime of this handler name; an empty name means the default.
    pub(crate) fn runtime(&self, handler: &str) -> Result<&Runtime> {
        let config = &self.settings.containerd;
        let name = if handler.is_empty() { &config.default_runtime } else { handler };
        config.runtimes.get(name).ok_or_else(|| {
            let known: Vec<&str> = config.runtimes.keys().map(String::as_str).collect();
            Error::invalid(
                "runtime_handler",
                format!("{name:?} is not configured; configured are: {}", known.join(", ")),
            )
        })
    }

    /// Keeps the kernel ready for moving a process into a cgroup, as a runtime is about to do, until the
    /// returned guard is dropped; see [`cgroup::Moves`].
    pub(crate) fn expect_move(&self) -> cgroup::ExpectedMove {
        let expected = self.moves.expect();
        let moves = Arc::clone(&self.moves);
        self.tracker.spawn_blocking(move || moves.keep_ready());
        expected
    }

    /// The cgroup location of the object `id` (a task or an infra process) of a sandbox.
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

/// The backend of a cleanup.
///
/// # Errors
/// `Unavailable` if it was dropped: the next one finds what is left.
pub(crate) fn upgrade(backend: &Weak<Inner>) -> Result<Arc<Inner>> {
    backend.upgrade().ok_or_else(|| Error::unavailable("the backend is shutting down"))
}
