//! The `Backend` trait on top of the parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use switchyard_core::Result;
use switchyard_core::backend::{
    Backend, BackendObserver, BackendStatus, Blocker, CgroupDriver, CheckpointBackend, ExecBackend,
    ExecPlace, ExecProcess, Handler, Inspection, NamedVolume, OccupiedPort, Recovered,
    SandboxBackend, SandboxStats, Started, StatsBackend, TaskBackend, Trouble, Troubles,
    VolumeBackend, Withdrawal,
};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::ImageStore;
use switchyard_core::keyed_lock::LockInUse;
use switchyard_core::object::{SandboxDetails, TaskDetails};
use switchyard_core::spec::{
    CheckpointSpec, ExecSpec, HostPort, SandboxSpec, Signal, Subnet, TaskSpec, TaskUpdate,
};
use switchyard_core::state::Exit;
use switchyard_core::stats::{InterfaceStats, TaskMetrics, TaskStats};
use switchyard_core::stream::{AttachSpec, Attachment, Dialled};
use switchyard_linux::host_features::HostFeatures;
use switchyard_runtime_spec as runtime_spec;
use tokio_util::sync::CancellationToken;

use crate::base::config::{Runtime, Settings};
use crate::base::crash_points::Faults;
use crate::client::contact::Contact;
use crate::network::listeners;
use crate::network::node_networks::KnownNetwork;

mod parts;
mod setup;

use parts::Parts;

/// Limit for which recovery waits for containerd before it fails with `Unavailable`.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs sandboxes and tasks on containerd.
///
/// Dropping this stops the background work; sandboxes and tasks stay as they are.
#[derive(Debug)]
pub struct Containerd {
    parts: Parts,
    _stop: tokio_util::sync::DropGuard,
}

impl Containerd {
    /// A backend with these settings that reports its work to `observer`. containerd need not be running yet:
    /// the health check polls it from now on. A managed containerd must be started after this call, so that
    /// it finds the FIFOs of a predecessor's execs open.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `InvalidArgument` for settings that cannot work; `Internal` if the node's own files cannot be read or
    /// written.
    pub fn connect(settings: Settings, observer: Arc<dyn BackendObserver>) -> Result<Self> {
        Self::build(settings, Faults::default(), observer)
    }

    /// As [`Containerd::connect`], unobserved and with a handle through which a test makes steps fail.
    ///
    /// # Errors
    /// As [`Containerd::connect`].
    #[cfg(feature = "faults")]
    pub fn connect_with_faults(settings: Settings, faults: Faults) -> Result<Self> {
        Self::build(settings, faults, switchyard_core::backend::unobserved())
    }

    /// Replaces the settings, for operations from now on: runtimes, images, registries, directories of CDI
    /// files, advisories that are not reported, and times. Operations in flight may end by the former ones.
    /// Addresses, directories, the network and the cgroup driver stay as they were at [`Containerd::connect`].
    ///
    /// # Errors
    /// `InvalidArgument` for a default runtime that is not configured; nothing has changed then.
    pub fn reconfigure(&self, settings: Settings) -> Result<()> {
        self.parts.reconfigure(settings)
    }

    /// Returns what it has tried of the kernel at [`Containerd::connect`].
    #[must_use]
    pub fn host_features(&self) -> HostFeatures {
        let mut features = HostFeatures::default();
        let no_setattr = self.parts.context.no_mount_setattr.as_deref();
        features.add(
            "mount_setattr",
            no_setattr.map(|why| {
                format!("{why} (Linux 5.12 has it): pods have no user namespaces, and no mount is recursively read-only")
            }),
        );
        // Tried only where the configuration asks for it.
        let native = &self.parts.network.native;
        if native.is_wanted() {
            let fault = native
                .fault()
                .map(|why| format!("{why}: CNI plugins attach sandboxes to the gateway's bridges"));
            features.add("native_bridge", fault);
        }
        if native.is_chosen() && native.is_pin_wanted() {
            let fault = native
                .pin_fault()
                .map(|why| format!("{why}: containers can send with the addresses of others"));
            features.add("native_bridge_pins", fault);
        }
        features
    }

    fn build(
        settings: Settings,
        faults: Faults,
        observer: Arc<dyn BackendObserver>,
    ) -> Result<Self> {
        let stop = CancellationToken::new();
        let parts = Parts::new(settings, faults, observer, &stop)?;
        Ok(Self {
            parts,
            _stop: stop.drop_guard(),
        })
    }
}

impl Backend for Containerd {
    fn status(&self) -> BackendStatus {
        let parts = &self.parts;
        let version = match parts.health.current() {
            Contact::Up { version } => format!("containerd {version}"),
            Contact::Down { .. } => "containerd (away)".to_owned(),
        };
        let KnownNetwork {
            condition: network,
            config: network_config,
        } = parts.network.of_node.known();
        BackendStatus {
            snapshotters: parts.storage.images.snapshotter_condition(),
            runtime: parts.node.runtime_condition(),
            contact_losses: parts.health.losses(),
            network,
            disk: parts.node.disks.condition(),
            version,
            cgroup_driver: match parts.context.host.cgroup_driver {
                runtime_spec::CgroupDriver::Systemd => CgroupDriver::Systemd,
                runtime_spec::CgroupDriver::Fs => CgroupDriver::Cgroupfs,
            },
            network_config,
            bridge_address: Some(parts.network.bridge.host()),
            facts: facts(parts),
            troubles: troubles(parts),
            advisories: parts.node.advisories(),
            disks: parts.node.disks.spaces(),
        }
    }

    fn locks_in_use(&self) -> Vec<LockInUse> {
        let mut held = self.parts.tasks.table.locks_in_use();
        held.extend(self.parts.shims.pods.locks.in_use("locks of the pod"));
        held.extend(self.parts.sandboxes.releases.in_use("releases"));
        held
    }

    fn fresh_status(&self) -> BoxFuture<'_, BackendStatus> {
        Box::pin(async {
            let KnownNetwork {
                condition: network,
                config: network_config,
            } = self.parts.network.of_node.look().await;
            BackendStatus {
                network,
                network_config,
                ..self.status()
            }
        })
    }

    fn handlers(&self) -> Vec<Handler> {
        let settings = self.parts.context.settings();
        let config = &settings.containerd;
        let handler = |(name, runtime): (&String, &Runtime)| Handler {
            name: name.clone(),
            recursive_readonly_mounts: self.parts.node.recursive_readonly(runtime),
            user_namespaces: self.parts.node.userns_unavailable(runtime).is_none(),
        };
        let (mut first, rest): (Vec<_>, Vec<_>) = config
            .runtimes
            .iter()
            .map(handler)
            .partition(|handler| handler.name == config.default_runtime);
        first.extend(rest);
        first
    }

    fn recover(&self) -> BoxFuture<'_, Result<Recovered>> {
        Box::pin(async move {
            // Needs no containerd, and what is attached needs it whether containerd answers or not.
            let network = &self.parts.network;
            network.native.recover(&network.context.layout).await;
            self.parts.health.wait_up(CONTACT_TIMEOUT).await?;
            self.parts.recovery.recover().await
        })
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            tokio::join!(self.parts.exits.wind_up(), self.parts.shims.wind_up());
        })
    }

    fn images(&self) -> &dyn ImageStore {
        &self.parts.storage.images
    }
}

impl SandboxBackend for Containerd {
    fn create_sandbox<'a>(
        &'a self,
        id: SandboxId,
        spec: &'a SandboxSpec,
    ) -> BoxFuture<'a, Result<SandboxDetails>> {
        Box::pin(self.parts.sandboxes.create_sandbox(id, spec))
    }

    fn find_listener<'a>(
        &'a self,
        ports: &'a [HostPort],
    ) -> BoxFuture<'a, Result<Option<OccupiedPort>>> {
        Box::pin(listeners::find_listener(
            ports,
            &self.parts.network.kept_ports,
        ))
    }

    fn wait_network_released(&self, id: SandboxId) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.parts.sandboxes.unreleased.released(id).await;
        })
    }

    fn stop_sandbox(&self, id: SandboxId) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.parts.sandboxes.stop_sandbox(id))
    }

    fn wait_sandbox(&self, id: SandboxId) -> BoxFuture<'_, Result<String>> {
        Box::pin(self.parts.sandboxes.wait_sandbox(id))
    }

    fn begin_removal(&self, id: SandboxId) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.parts.sandboxes.begin_removal(id))
    }

    fn remove_sandbox(&self, id: SandboxId) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.parts.sandboxes.remove_sandbox(id))
    }

    fn start_sandbox<'a>(
        &'a self,
        id: SandboxId,
        spec: &'a SandboxSpec,
    ) -> BoxFuture<'a, Result<SandboxDetails>> {
        Box::pin(async move {
            self.parts.tasks.note_net_admin(id).await?;
            self.parts.sandboxes.start_sandbox(id, spec).await
        })
    }

    fn amend_sandbox<'a>(&'a self, id: SandboxId, note: &'a [u8]) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.parts.sandboxes.amend_sandbox(id, note))
    }

    fn set_ranges(&self, owner: Owner, ranges: Vec<Subnet>) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.parts.network.ranges.set(owner, ranges))
    }

    fn dial(&self, id: SandboxId, port: u16) -> BoxFuture<'_, Result<Dialled>> {
        Box::pin(self.parts.sandboxes.dial(id, port))
    }
}

impl TaskBackend for Containerd {
    fn resolve_start(&self, id: TaskId) -> BoxFuture<'_, Result<Option<Started>>> {
        Box::pin(self.parts.recovery.finish_predecessor_start(id))
    }

    fn create_task<'a>(
        &'a self,
        id: TaskId,
        sandbox: SandboxId,
        spec: &'a TaskSpec,
    ) -> BoxFuture<'a, Result<TaskDetails>> {
        Box::pin(self.parts.tasks.create_task(id, sandbox, spec))
    }

    fn start_task<'a>(
        &'a self,
        id: TaskId,
        withdrawal: &'a Withdrawal,
    ) -> BoxFuture<'a, Result<Started>> {
        Box::pin(self.parts.tasks.start_task(id, withdrawal))
    }

    fn signal_task(&self, id: TaskId, signal: Signal) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.parts.tasks.signal_task(id, signal))
    }

    fn wait_end(&self, id: TaskId) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.parts.exits.wait_end(id))
    }

    fn wait_task(&self, id: TaskId) -> BoxFuture<'_, Result<Exit>> {
        Box::pin(self.parts.exits.wait_task(id))
    }

    fn remove_task(&self, id: TaskId) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.parts.tasks.remove_task(id))
    }

    fn update_task<'a>(
        &'a self,
        id: TaskId,
        update: &'a TaskUpdate,
    ) -> BoxFuture<'a, Result<TaskDetails>> {
        Box::pin(self.parts.tasks.update_task(id, update))
    }

    fn attach(&self, id: TaskId, spec: AttachSpec) -> BoxFuture<'_, Result<Attachment>> {
        Box::pin(self.parts.attachments.attach_task(id, spec))
    }

    fn resize_task(&self, id: TaskId, width: u16, height: u16) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.parts.attachments.resize_task(id, width, height))
    }

    fn reopen_log(&self, id: TaskId) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.parts.exits.reopen_log(id))
    }
}

impl ExecBackend for Containerd {
    fn exec<'a>(
        &'a self,
        id: TaskId,
        spec: &'a ExecSpec,
        place: ExecPlace,
    ) -> BoxFuture<'a, Result<ExecProcess>> {
        Box::pin(self.parts.execs.start(id, spec, place))
    }
}

impl CheckpointBackend for Containerd {
    fn checkpoint_task<'a>(
        &'a self,
        id: TaskId,
        spec: &'a CheckpointSpec,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.parts.checkpoints.checkpoint_task(id, spec))
    }
}

impl StatsBackend for Containerd {
    fn task_stats<'a>(
        &'a self,
        ids: &'a [TaskId],
    ) -> BoxFuture<'a, Result<BTreeMap<TaskId, TaskStats>>> {
        Box::pin(self.parts.stats.task_stats(ids))
    }

    fn task_metrics<'a>(
        &'a self,
        ids: &'a [TaskId],
    ) -> BoxFuture<'a, Result<BTreeMap<TaskId, TaskMetrics>>> {
        Box::pin(self.parts.stats.task_metrics(ids))
    }

    fn sandbox_traffic<'a>(
        &'a self,
        ids: &'a [SandboxId],
    ) -> BoxFuture<'a, Result<BTreeMap<SandboxId, Vec<InterfaceStats>>>> {
        Box::pin(self.parts.stats.sandbox_traffic(ids))
    }

    fn sandbox_stats(&self, id: SandboxId) -> BoxFuture<'_, Result<SandboxStats>> {
        Box::pin(self.parts.stats.sandbox_stats(id))
    }

    fn inspect_task(&self, id: TaskId) -> BoxFuture<'_, Result<Inspection>> {
        Box::pin(self.parts.stats.inspect_task(id))
    }

    fn inspect_sandbox(&self, id: SandboxId) -> BoxFuture<'_, Result<Inspection>> {
        Box::pin(self.parts.stats.inspect_sandbox(id))
    }

    fn task_blockers(&self, id: TaskId) -> BoxFuture<'_, Result<Vec<Blocker>>> {
        Box::pin(self.parts.stats.task_blockers(id))
    }

    fn sandbox_blockers(&self, id: SandboxId) -> BoxFuture<'_, Vec<Blocker>> {
        Box::pin(self.parts.stats.sandbox_blockers(id))
    }

    fn image_blockers(&self) -> BoxFuture<'_, Vec<Blocker>> {
        Box::pin(self.parts.stats.blockers.of_containerd())
    }
}

impl VolumeBackend for Containerd {
    fn remove_volume<'a>(&'a self, owner: Owner, name: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.parts.storage.remove_volume(owner, name))
    }

    fn volumes(&self) -> BoxFuture<'_, Result<Vec<NamedVolume>>> {
        Box::pin(self.parts.storage.list_volumes())
    }
}

/// Collects what operators see of the backend's settings.
fn facts(parts: &Parts) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::from([
        (
            "containerd.address".to_owned(),
            parts.client.address().display().to_string(),
        ),
        (
            "containerd.namespace".to_owned(),
            parts.context.settings().containerd.namespace.clone(),
        ),
        (
            "stateDir".to_owned(),
            parts.context.settings().state.display().to_string(),
        ),
        (
            "network.confDir".to_owned(),
            parts.network.of_node.dir().display().to_string(),
        ),
        ("network.bridge".to_owned(), parts.network.bridge.summary()),
        (
            "network.bridge.driver".to_owned(),
            parts.network.native.chosen().to_owned(),
        ),
        (
            "maxContainerLogLineSize".to_owned(),
            switchyard_logkeeper::format::DEFAULT_MAX_LINE.to_string(),
        ),
    ]);
    let pods = parts.network.of_node.pods();
    facts.extend(pods.map(|pods| ("network.pods".to_owned(), pods.summary())));
    facts.extend(
        parts
            .network
            .ranges
            .summary()
            .map(|ranges| ("network.ranges".to_owned(), ranges)),
    );
    let content = parts.node.disks.content();
    facts.extend(content.map(|root| ("containerd.content".to_owned(), root.display().to_string())));
    facts
}

/// Collects the objects that something is wrong with.
fn troubles(parts: &Parts) -> Troubles {
    let all = [
        (Trouble::SilentShim, parts.shims.unresponsive.list()),
        (
            Trouble::UnrecordedExit,
            parts.tasks.table.unpersisted_exits(),
        ),
        (Trouble::LeftCgroup, parts.cgroups.busy.list()),
        (Trouble::TreeSetAside, parts.trees.list()),
        (Trouble::DamagedImage, parts.storage.images.damaged()),
    ];
    let some = all.into_iter().filter(|(_, objects)| !objects.is_empty());
    some.collect()
}
