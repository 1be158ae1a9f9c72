//! The `Backend` trait on top of the parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use switchyard_core::backend::{
    Backend, BackendObserver, BackendStatus, CgroupDriver, CheckpointBackend, ExecBackend, ExecProcess,
    Handler, Inspection, NamedVolume, Recovered, SandboxBackend, SandboxDetails, SandboxStats, Started,
    StatsBackend, TaskBackend, TaskDetails, VolumeBackend,
};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::ImageStore;
use switchyard_core::spec::{CheckpointSpec, ExecSpec, SandboxSpec, Signal, Subnet, TaskSpec, TaskUpdate};
use switchyard_core::state::Exit;
use switchyard_core::stats::{InterfaceStats, TaskMetrics, TaskStats};
use switchyard_core::stream::{AttachSpec, Attachment, Dialled};
use switchyard_core::{Error, Result};
use switchyard_runtime_spec as runtime_spec;
use tokio_util::sync::CancellationToken;

use crate::base::config::{Runtime, Settings};
use crate::base::steps::Faults;
use crate::client::contact::Contact;

mod parts;
mod setup;

use parts::Parts;

/// How long recovery waits for containerd before it fails with `Unavailable`.
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

    fn build(settings: Settings, faults: Faults, observer: Arc<dyn BackendObserver>) -> Result<Self> {
        let stop = CancellationToken::new();
        let parts = Parts::new(settings, faults, observer, &stop)?;
        Ok(Self { parts, _stop: stop.drop_guard() })
    }
}

#[async_trait]
impl Backend for Containerd {
    fn status(&self) -> BackendStatus {
        let parts = &self.parts;
        let version = match parts.health.current() {
            Contact::Up { version } => format!("containerd {version}"),
            Contact::Down { .. } => "containerd (away)".to_owned(),
        };
        let mut facts = BTreeMap::from([
            ("containerd.address".to_owned(), parts.client.address().display().to_string()),
            ("containerd.namespace".to_owned(), parts.context.settings().containerd.namespace.clone()),
            ("stateDir".to_owned(), parts.context.settings().state.display().to_string()),
            ("network.confDir".to_owned(), parts.network.conf.dir().display().to_string()),
            ("network.bridge".to_owned(), parts.network.bridge.summary()),
        ]);
        facts.extend(parts.network.ranges.summary().map(|ranges| ("network.ranges".to_owned(), ranges)));
        facts.extend(parts.shims.unresponsive.summary().map(|tasks| ("shims.silent".to_owned(), tasks)));
        facts
            .extend(parts.tasks.table.unrecorded_exits().map(|tasks| ("exits.unrecorded".to_owned(), tasks)));
        facts.extend(parts.cgroups.busy.summary().map(|groups| ("cgroups.left".to_owned(), groups)));
        facts.extend(parts.trees.summary().map(|trees| ("trees.setAside".to_owned(), trees)));
        BackendStatus {
            runtime: parts.node.runtime_condition(),
            network: parts.network.network_condition(),
            disk: parts.node.disks.condition(),
            version,
            cgroup_driver: match parts.context.host.cgroup_driver {
                runtime_spec::CgroupDriver::Systemd => CgroupDriver::Systemd,
                runtime_spec::CgroupDriver::Fs => CgroupDriver::Cgroupfs,
            },
            network_config: parts.network.network_config(),
            bridge_address: Some(parts.network.bridge.host()),
            facts,
            advisories: parts.node.advisories(),
        }
    }

    fn handlers(&self) -> Vec<Handler> {
        let settings = self.parts.context.settings();
        let config = &settings.containerd;
        let handler = |(name, runtime): (&String, &Runtime)| Handler {
            name: name.clone(),
            recursive_readonly_mounts: self.parts.node.recursive_readonly(runtime),
            user_namespaces: self.parts.node.userns_unavailable(runtime).is_none(),
        };
        let (mut first, rest): (Vec<_>, Vec<_>) =
            config.runtimes.iter().map(handler).partition(|handler| handler.name == config.default_runtime);
        first.extend(rest);
        first
    }

    async fn recover(&self) -> Result<Recovered> {
        self.parts.health.wait_up(CONTACT_TIMEOUT).await?;
        self.parts.recovery.recover().await
    }

    async fn drain(&self) {
        self.parts.exits.wind_up().await;
    }

    fn images(&self) -> &dyn ImageStore {
        &self.parts.storage.images
    }
}

#[async_trait]
impl SandboxBackend for Containerd {
    async fn create_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails> {
        self.parts.sandboxes.create_sandbox(id, spec).await
    }

    async fn wait_network_released(&self, id: SandboxId) {
        self.parts.sandboxes.unreleased.released(id).await;
    }

    async fn stop_sandbox(&self, id: SandboxId) -> Result<()> {
        self.parts.sandboxes.stop_sandbox(id).await
    }

    async fn wait_sandbox(&self, id: SandboxId) -> Result<String> {
        self.parts.sandboxes.wait_sandbox(id).await
    }

    async fn begin_removal(&self, id: SandboxId) -> Result<()> {
        self.parts.sandboxes.begin_removal(id).await
    }

    async fn remove_sandbox(&self, id: SandboxId) -> Result<()> {
        self.parts.sandboxes.remove_sandbox(id).await
    }

    async fn start_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails> {
        self.parts.sandboxes.start_sandbox(id, spec).await
    }

    async fn amend_sandbox(&self, id: SandboxId, note: &[u8]) -> Result<()> {
        self.parts.sandboxes.amend_sandbox(id, note).await
    }

    async fn set_ranges(&self, owner: Owner, ranges: Vec<Subnet>) -> Result<()> {
        self.parts.network.ranges.set(owner, ranges).await
    }

    async fn dial(&self, id: SandboxId, port: u16) -> Result<Dialled> {
        self.parts.sandboxes.dial(id, port).await
    }
}

#[async_trait]
impl TaskBackend for Containerd {
    async fn resolve_start(&self, id: TaskId) -> Result<Option<Started>> {
        self.parts.recovery.finish_predecessor_start(id).await
    }

    async fn create_task(&self, id: TaskId, sandbox: SandboxId, spec: &TaskSpec) -> Result<TaskDetails> {
        self.parts.tasks.create_task(id, sandbox, spec).await
    }

    async fn start_task(&self, id: TaskId) -> Result<Started> {
        self.parts.tasks.start_task(id).await
    }

    async fn signal_task(&self, id: TaskId, signal: Signal) -> Result<()> {
        self.parts.tasks.signal_task(id, signal).await
    }

    async fn wait_end(&self, id: TaskId) -> Result<()> {
        self.parts.exits.wait_end(id).await
    }

    async fn wait_task(&self, id: TaskId) -> Result<Exit> {
        self.parts.exits.wait_task(id).await
    }

    async fn remove_task(&self, id: TaskId) -> Result<()> {
        self.parts.tasks.remove_task(id).await
    }

    async fn update_task(&self, id: TaskId, update: &TaskUpdate) -> Result<TaskDetails> {
        self.parts.tasks.update_task(id, update).await
    }

    async fn attach(&self, id: TaskId, spec: AttachSpec) -> Result<Attachment> {
        self.parts.attachments.attach_task(id, spec).await
    }

    async fn resize_task(&self, id: TaskId, width: u16, height: u16) -> Result<()> {
        self.parts.attachments.resize_task(id, width, height).await
    }

    async fn reopen_log(&self, id: TaskId) -> Result<()> {
        self.parts.exits.reopen_log(id).await
    }
}

#[async_trait]
impl ExecBackend for Containerd {
    async fn exec(&self, id: TaskId, spec: &ExecSpec) -> Result<ExecProcess> {
        self.parts.execs.start(id, spec).await
    }

    fn exec_blocked(&self, id: TaskId) -> Option<Error> {
        self.parts.tasks.table.get(id).ok()?.exec_permits.blocked()
    }
}

#[async_trait]
impl CheckpointBackend for Containerd {
    async fn checkpoint_task(&self, id: TaskId, spec: &CheckpointSpec) -> Result<()> {
        self.parts.checkpoints.checkpoint_task(id, spec).await
    }
}

#[async_trait]
impl StatsBackend for Containerd {
    async fn task_stats(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskStats>> {
        self.parts.stats.task_stats(ids).await
    }

    async fn task_metrics(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskMetrics>> {
        self.parts.stats.task_metrics(ids).await
    }

    async fn sandbox_traffic(&self, ids: &[SandboxId]) -> Result<BTreeMap<SandboxId, Vec<InterfaceStats>>> {
        self.parts.stats.sandbox_traffic(ids).await
    }

    async fn sandbox_stats(&self, id: SandboxId) -> Result<SandboxStats> {
        self.parts.stats.sandbox_stats(id).await
    }

    async fn inspect_task(&self, id: TaskId) -> Result<Inspection> {
        self.parts.stats.inspect_task(id).await
    }

    async fn inspect_sandbox(&self, id: SandboxId) -> Result<Inspection> {
        self.parts.stats.inspect_sandbox(id).await
    }
}

#[async_trait]
impl VolumeBackend for Containerd {
    async fn remove_volume(&self, owner: Owner, name: &str) -> Result<()> {
        self.parts.storage.remove_volume(owner, name).await
    }

    async fn volumes(&self) -> Result<Vec<NamedVolume>> {
        self.parts.storage.list_volumes().await
    }
}
