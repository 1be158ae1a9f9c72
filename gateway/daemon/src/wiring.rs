//! Chooses the backend and the frontends: the only module that names them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use switchyard_config::{Config, CriConfig, DeviceHost, DevicesConfig, KubeletDevices};
use switchyard_containerd::{Containerd, Settings};
use switchyard_core::backend::{Backend, BackendObserver, UnreadableKind};
use switchyard_core::device::Inventories;
use switchyard_core::gateway::Scope;
use switchyard_core::id::Owner;
use switchyard_core::ledger::LeaseStore;
use switchyard_core::names::Names;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::reload::Reloadable;
use switchyard_core::spec::{CpuSet, Meta};
use switchyard_cri::ExclusiveCpus;
use switchyard_device_host::{Host, Hosted};
use switchyard_device_plugin::Observe;
use switchyard_devices::{Roots, Search};
use switchyard_ledger::Journal;
use switchyard_linux::host_features::HostFeatures;
use switchyard_logkeeper::reader::LogLocation;
use switchyard_operator::owners::{OwnerFunctions, Owners, log_beneath};
use switchyard_streaming::Sessions;
use switchyard_swarm::{AllowedDevices, DeviceKinds};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

mod swarm;

pub use swarm::{proto_availability, swarm};

/// Puts another configuration of the backend in force, or refuses it as a whole.
pub type ReconfigureBackend = Box<dyn Fn(&Config) -> switchyard_core::Result<()> + Send + Sync>;

/// A backend, and the function that reconfigures it.
pub struct ConnectedBackend {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// Its function for reloads.
    pub reconfigure: ReconfigureBackend,
    /// Features of the kernel that it has tried by itself.
    pub features: HostFeatures,
}

/// The settings of frontends that a reload replaces. Clones share them.
#[derive(Debug, Clone)]
pub struct LiveSettings {
    cri: Reloadable<switchyard_cri::Config>,
    /// The kubelet's PodResources socket.
    pod_resources: Reloadable<PathBuf>,
    /// The devices that services of a swarm may name.
    swarm_devices: Reloadable<AllowedDevices>,
    /// The kinds under which a swarm is offered devices.
    swarm_device_kinds: Reloadable<DeviceKinds>,
    /// For how long images of a swarm stay that no task uses.
    swarm_image_retention: Reloadable<Option<Duration>>,
}

impl fmt::Debug for ConnectedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectedBackend").finish_non_exhaustive()
    }
}

impl LiveSettings {
    /// The settings that a configuration describes.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self {
            cri: cri_settings(&config.cri).into(),
            pod_resources: config.devices.kubelet.pod_resources_socket.clone().into(),
            swarm_devices: config.swarm.allow_devices.clone().into(),
            swarm_device_kinds: config.devices.swarm_kinds().into(),
            swarm_image_retention: config.swarm.image_retention().into(),
        }
    }

    /// Puts another configuration in force, for calls from now on.
    pub fn reconfigure(&self, config: &Config) {
        self.cri.set(cri_settings(&config.cri));
        self.pod_resources
            .set(config.devices.kubelet.pod_resources_socket.clone());
        self.swarm_devices.set(config.swarm.allow_devices.clone());
        self.swarm_device_kinds.set(config.devices.swarm_kinds());
        self.swarm_image_retention
            .set(config.swarm.image_retention());
    }
}

/// Creates the backend of the production daemon, which reports its work to the observer. It returns at once: if
/// containerd does not answer, [`Backend::status`] says so.
///
/// # Errors
/// Those of [`Containerd::connect`].
pub fn containerd(
    config: &Config,
    observer: Arc<dyn BackendObserver>,
) -> switchyard_core::Result<ConnectedBackend> {
    let backend = Arc::new(Containerd::connect(containerd_settings(config), observer)?);
    let features = backend.host_features();
    let reconfigured = Arc::clone(&backend);
    let reconfigure = move |config: &Config| reconfigured.reconfigure(containerd_settings(config));
    Ok(ConnectedBackend {
        backend,
        reconfigure: Box::new(reconfigure),
        features,
    })
}

fn containerd_settings(config: &Config) -> Settings {
    Settings {
        containerd: config.containerd.clone(),
        network: config.network.clone(),
        pod_network: config.cri.network,
        devices: config.devices.described(),
        images: config.images.clone(),
        registry: config.registry.clone(),
        cgroup: config.cgroup.clone(),
        recovery: config.recovery.clone(),
        advisories: config.advisories.clone(),
        address: config.containerd_socket(),
        state: config.paths.state.clone(),
        run: config.paths.run.clone(),
        logkeeper: config.logkeeper_socket(),
        check_request,
    }
}

/// Checks the request of an object's frontend.
fn check_request(kind: UnreadableKind, meta: &Meta) -> Result<(), String> {
    match meta.owner {
        Owner::Kubernetes => switchyard_cri::check_request(kind, meta),
        Owner::Nomad => switchyard_nomad::check_request(meta),
        Owner::Swarm => switchyard_swarm::check_request(meta),
        // The operator's frontend stores none.
        Owner::Host => Ok(()),
    }
}

/// Gives the gateway of this configuration a name that it has lost, with which it takes its containers back.
///
/// # Errors
/// `InvalidArgument` for what is no name; `FailedPrecondition` if it has another name; those of storing it.
pub fn recover_as(config: &Config, name: &str) -> switchyard_core::Result<()> {
    switchyard_containerd::recover_as(&config.paths.state, name)
}

/// The store of leases that are in no container's record yet.
#[must_use]
pub fn leases(config: &Config) -> Arc<dyn LeaseStore> {
    Arc::new(Journal::new(&config.paths.state))
}

/// The search for the devices of the node.
#[must_use]
pub fn search(config: &DevicesConfig) -> Search {
    Search {
        groups: config.groups.clone(),
        cdi_spec_dirs: config.cdi_spec_dirs.clone(),
        roots: Roots::default(),
    }
}

/// The devices of the node, those that are searched for and those of vendors' plugins, kept up to date until
/// `stop`.
#[must_use]
pub fn inventories(
    searches: watch::Receiver<Search>,
    hosted: &Hosted,
    stop: &CancellationToken,
) -> Inventories {
    let hardware = switchyard_devices::watch(searches, stop.clone());
    switchyard_device_host::inventory::merged(hardware, hosted.groups(), stop.clone())
}

/// The devices of vendors' device plugins, once plugins have registered.
#[must_use]
pub fn hosted(config: &DevicesConfig) -> Hosted {
    Hosted::new(config.reserved_names(), &config.host)
}

/// The registration host for vendors' device plugins, with these layers around its service.
#[must_use]
pub fn device_host(hosted: Hosted, config: DeviceHost, observe: Observe) -> Host {
    Host::new(hosted, config).observed(observe)
}

/// The services for launchers of Nomad agents over this scope.
#[must_use]
pub fn nomad(scope: Scope, stop: CancellationToken) -> switchyard_nomad::Services {
    switchyard_nomad::services(scope, stop)
}

/// The frontend that offers the devices of this scope to a kubelet, with these layers around its services.
#[must_use]
pub fn kubelet_devices(
    scope: Scope,
    config: KubeletDevices,
    observe: Observe,
) -> switchyard_device_plugin::Frontend {
    switchyard_device_plugin::Frontend::new(scope, config).observed(observe)
}

/// Returns the frontends' functions for the objects of their owners.
#[must_use]
pub const fn owners() -> Owners {
    Owners::new(of_owner)
}

/// The names that people know a sandbox by.
#[must_use]
pub fn names_of_sandbox(sandbox: &Meta) -> Names {
    (of_owner(sandbox.owner).names)(sandbox, None)
}

fn of_owner(owner: Owner) -> OwnerFunctions {
    let default = OwnerFunctions::default();
    match owner {
        Owner::Kubernetes => OwnerFunctions {
            names: switchyard_cri::names,
            annotations: switchyard_cri::annotations,
            log: log_of_container,
        },
        Owner::Nomad => OwnerFunctions {
            names: switchyard_nomad::names,
            log: log_of_nomad_task,
            ..default
        },
        Owner::Swarm => OwnerFunctions {
            names: switchyard_swarm::names,
            ..default
        },
        Owner::Host => default,
    }
}

fn log_of_container(sandbox: &Sandbox, task: &Task) -> Result<LogLocation, &'static str> {
    match &task.details.log_path {
        Some(file) => Ok(log_beneath(
            switchyard_cri::log_directory(&sandbox.meta),
            file,
        )),
        None => Err(
            "its pod has no log directory, or it has no log path: only clients that attach get its output",
        ),
    }
}

/// The agent writes the log of a task that has none of ours.
fn log_of_nomad_task(_: &Sandbox, task: &Task) -> Result<LogLocation, &'static str> {
    match (
        &task.details.log_path,
        switchyard_nomad::log_files(&task.meta),
    ) {
        (Some(file), _) => Ok(log_beneath(None, file)),
        (None, Some((root, name))) => Ok(LogLocation::Plain {
            root,
            dir: "alloc/logs".into(),
            name,
        }),
        (None, None) => Err("its record does not contain the directory of its allocation"),
    }
}

/// The kubelet's PodResources socket.
#[derive(Debug)]
struct PodResources(Reloadable<PathBuf>);

#[tonic::async_trait]
impl ExclusiveCpus for PodResources {
    async fn exclusive(&self) -> switchyard_core::Result<CpuSet> {
        switchyard_device_plugin::exclusive_cpus(&self.0.get()).await
    }
}

/// The settings of CRI; the keys of its sockets are used by the daemon, not by the frontend.
fn cri_settings(config: &CriConfig) -> switchyard_cri::Config {
    let CriConfig {
        enabled: _,
        socket: _,
        socket_group: _,
        // Of the backend.
        network: _,
        ref runtime_name,
        unprivileged_ports,
        unprivileged_icmp,
        unset_seccomp,
        exec_drain_seconds,
        max_connections: _,
        max_streams: _,
        streaming: _,
    } = *config;
    switchyard_cri::Config {
        runtime_name: runtime_name.clone(),
        unprivileged_ports,
        unprivileged_icmp,
        unset_seccomp,
        exec_drain_seconds,
    }
}

/// The CRI services over this scope.
pub fn cri(scope: Scope, settings: &LiveSettings, sessions: Sessions) -> Routes {
    let kubelet = PodResources(settings.pod_resources.clone());
    let switchyard_cri::Services {
        runtime,
        image,
        runtime_v1alpha2,
        image_v1alpha2,
        volume_v1alpha2,
    } = switchyard_cri::services(
        scope,
        settings.cri.clone(),
        Some(sessions),
        Some(Arc::new(kubelet)),
    );
    Routes::new(runtime)
        .add_service(image)
        .add_service(runtime_v1alpha2)
        .add_service(image_v1alpha2)
        .add_service(volume_v1alpha2)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn request_that_its_frontend_cannot_read_is_refused_for_each_orchestrator() {
        let meta = |owner, record: &[u8]| Meta {
            owner,
            name: "web".to_owned(),
            labels: BTreeMap::new(),
            created_at: SystemTime::UNIX_EPOCH,
            record: record.to_vec(),
        };
        for owner in [Owner::Kubernetes, Owner::Nomad, Owner::Swarm] {
            for kind in [UnreadableKind::Sandbox, UnreadableKind::Task] {
                let checked = |record: &[u8]| check_request(kind, &meta(owner, record));
                assert!(checked(&[99]).is_err(), "{owner:?} {kind:?}");
                assert_eq!(checked(&[1]), Ok(()), "{owner:?} {kind:?}");
            }
        }
    }
}
