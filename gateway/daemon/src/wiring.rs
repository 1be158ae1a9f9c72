//! Chooses the backend and the frontends: the only module that names them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use switchyard_containerd::{Containerd, Settings};
use switchyard_core::backend::Backend;
use switchyard_core::device::Inventories;
use switchyard_core::gateway::Scope;
use switchyard_core::ledger::LeaseStore;
use switchyard_core::spec::CpuSet;
use switchyard_cri::ExclusiveCpus;
use switchyard_device_host::{Host, Hosted};
use switchyard_device_plugin::Observe;
use switchyard_devices::{Roots, Search};
use switchyard_ledger::Journal;
use switchyard_streaming::Sessions;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::config::{Config, CriConfig};

/// Creates the backend. It returns at once: if containerd does not answer, [`Backend::status`] says so.
pub type ConnectBackend = Box<dyn Fn(&Config) -> switchyard_core::Result<Arc<dyn Backend>> + Send + Sync>;

/// Creates the services of a frontend over its scope. Streams that its clients request are registered in the
/// sessions.
pub type Frontend = Box<dyn Fn(Scope, &Config, Sessions) -> Routes + Send + Sync>;

/// Creates the services that launchers of Nomad agents call, over a scope. They close their open streams when
/// the token is cancelled.
pub type NomadFrontend = Box<dyn Fn(Scope, CancellationToken) -> switchyard_nomad::Services + Send + Sync>;

/// The exchangeable parts.
pub struct Wiring {
    /// The backend.
    pub backend: ConnectBackend,
    /// CRI.
    pub cri: Frontend,
    /// Nomad.
    pub nomad: NomadFrontend,
}

impl fmt::Debug for Wiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wiring").finish_non_exhaustive()
    }
}

impl Wiring {
    /// The parts of the production daemon: containerd as backend, CRI and Nomad as frontends.
    #[must_use]
    pub fn real() -> Self {
        Self { backend: Box::new(containerd), cri: Box::new(cri), nomad: Box::new(nomad) }
    }
}

fn containerd(config: &Config) -> switchyard_core::Result<Arc<dyn Backend>> {
    let settings = Settings {
        containerd: config.containerd.clone(),
        network: config.network.clone(),
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
    };
    Ok(Arc::new(Containerd::connect(settings)?))
}

/// The store of leases that are in no container's record yet.
#[must_use]
pub fn leases(config: &Config) -> Arc<dyn LeaseStore> {
    Arc::new(Journal::new(&config.paths.state))
}

/// The devices of the node, kept up to date until `stop` is cancelled.
#[must_use]
pub fn hardware(config: &Config, stop: CancellationToken) -> Inventories {
    let search = Search {
        groups: config.devices.groups.clone(),
        cdi_spec_dirs: config.devices.cdi_spec_dirs.clone(),
        roots: Roots::default(),
    };
    switchyard_devices::watch(search, stop)
}

/// The devices of vendors' device plugins, once plugins have registered.
#[must_use]
pub fn hosted(config: &Config) -> Hosted {
    Hosted::new(config.devices.reserved_names(), &config.devices.host)
}

/// The registration host for vendors' device plugins, with these layers around its service.
#[must_use]
pub fn device_host(hosted: Hosted, config: &Config, observe: Observe) -> Host {
    Host::new(hosted, config.devices.host.clone()).observed(observe)
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
    config: &Config,
    observe: Observe,
) -> switchyard_device_plugin::Frontend {
    switchyard_device_plugin::Frontend::new(scope, config.devices.kubelet.clone()).observed(observe)
}

/// The kubelet's PodResources socket.
#[derive(Debug)]
struct PodResources(PathBuf);

#[tonic::async_trait]
impl ExclusiveCpus for PodResources {
    async fn exclusive(&self) -> switchyard_core::Result<CpuSet> {
        switchyard_device_plugin::exclusive_cpus(&self.0).await
    }
}

/// The CRI services over this scope.
pub fn cri(scope: Scope, config: &Config, sessions: Sessions) -> Routes {
    // The keys of the socket itself are used by the daemon, not by the frontend.
    let CriConfig {
        enabled: _,
        socket: _,
        socket_group: _,
        unprivileged_ports,
        unprivileged_icmp,
        unset_seccomp,
        exec_drain_seconds,
        max_message_bytes,
        max_connections: _,
        max_streams: _,
        streaming: _,
    } = config.cri;
    let settings = switchyard_cri::Config {
        unprivileged_ports,
        unprivileged_icmp,
        unset_seccomp,
        exec_drain_seconds,
        max_message_bytes,
    };
    let kubelet = PodResources(config.devices.kubelet.pod_resources_socket.clone());
    let switchyard_cri::Services { runtime, image, runtime_v1alpha2, image_v1alpha2, volume_v1alpha2 } =
        switchyard_cri::services(scope, settings, Some(sessions), Some(Arc::new(kubelet)));
    Routes::new(runtime)
        .add_service(image)
        .add_service(runtime_v1alpha2)
        .add_service(image_v1alpha2)
        .add_service(volume_v1alpha2)
}
