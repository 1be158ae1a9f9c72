//! Which backend and which frontends the daemon is made of: the only place that knows them.

use std::fmt;
use std::sync::Arc;

use switchyard_containerd::{Containerd, Settings};
use switchyard_core::backend::Backend;
use switchyard_core::gateway::Scope;
use switchyard_streaming::Sessions;
use tonic::service::Routes;

use crate::config::{Config, Cri};

/// Makes the backend. It returns at once: a runtime that is away shows in [`Backend::status`].
pub type ConnectBackend = Box<dyn Fn(&Config) -> switchyard_core::Result<Arc<dyn Backend>> + Send + Sync>;

/// Makes the services of a frontend over its view of the gateway. Its clients' streams wait in the sessions.
pub type Frontend = Box<dyn Fn(Scope, &Config, Sessions) -> Routes + Send + Sync>;

/// The exchangeable parts.
pub struct Wiring {
    /// The backend.
    pub backend: ConnectBackend,
    /// CRI.
    pub cri: Frontend,
}

impl fmt::Debug for Wiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wiring").finish_non_exhaustive()
    }
}

impl Wiring {
    /// The parts of the real daemon: containerd behind, CRI in front.
    #[must_use]
    pub fn real() -> Self {
        Self { backend: Box::new(containerd), cri: Box::new(cri) }
    }
}

fn containerd(config: &Config) -> switchyard_core::Result<Arc<dyn Backend>> {
    let settings = Settings {
        containerd: config.containerd.clone(),
        network: config.network.clone(),
        devices: config.devices.clone(),
        images: config.images.clone(),
        registry: config.registry.clone(),
        cgroup: config.cgroup.clone(),
        recovery: config.recovery.clone(),
        address: config.containerd_socket(),
        state: config.paths.state.clone(),
        run: config.paths.run.clone(),
        logkeeper: config.logkeeper_socket(),
    };
    Ok(Arc::new(Containerd::connect(settings)?))
}

/// The CRI services over this view of the gateway.
pub fn cri(scope: Scope, config: &Config, sessions: Sessions) -> Routes {
    // The socket's own keys are the daemon's business.
    let Cri {
        enabled: _,
        socket: _,
        socket_group: _,
        unprivileged_ports,
        unprivileged_icmp,
        unset_seccomp,
        exec_drain_seconds,
        max_message_bytes,
        streaming: _,
    } = config.cri;
    let settings = switchyard_cri::Config {
        unprivileged_ports,
        unprivileged_icmp,
        unset_seccomp,
        exec_drain_seconds,
        max_message_bytes,
    };
    let switchyard_cri::Services { runtime, image, runtime_v1alpha2, image_v1alpha2, volume_v1alpha2 } =
        switchyard_cri::services(scope, settings, Some(sessions));
    Routes::new(runtime)
        .add_service(image)
        .add_service(runtime_v1alpha2)
        .add_service(image_v1alpha2)
        .add_service(volume_v1alpha2)
}
