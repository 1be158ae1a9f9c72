//! Combines the services over one scope.

use std::collections::BTreeMap;
use std::fmt;

use futures::future::BoxFuture;
use switchyard_core::gateway::Scope;
use switchyard_proto::grpc::health::v1::health_server::HealthServer;
use switchyard_proto::nomad::device::device_plugin_server::DevicePluginServer;
use switchyard_proto::nomad::drivers::proto::driver_server::DriverServer;
use switchyard_proto::switchyard::nomad::v1::sessions_server::SessionsServer;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::device::DeviceService;
use crate::driver::Driver;
use crate::health::HealthService;
use crate::session::Sessions;
use crate::sessions::SessionService;
use crate::transport::MAX_MESSAGE;

/// The services for launchers, ready for a tonic server.
pub struct Services {
    /// The services.
    pub routes: Routes,
    /// The launchers with an open session.
    pub launchers: Launchers,
    /// Removes what no agent needs any more, while it is polled and until `stop` is cancelled.
    pub background: BoxFuture<'static, ()>,
}

/// The launchers with an open session. Clones share state.
#[derive(Debug, Clone)]
pub struct Launchers([Sessions; 2]);

/// The calls about the state of the daemon, which are answered before recovery.
pub const AT_ONCE: [&str; 5] = [
    "Open",
    "TaskConfigSchema",
    "Fingerprint",
    "TaskEvents",
    "Check",
];

/// The liveness check of the server: it needs neither a session nor the backend.
pub const LIVENESS: &str = "/grpc.health.v1.Health/Check";

/// The services over `scope`, normally that of [`Owner::Nomad`](switchyard_core::id::Owner::Nomad). When
/// `stop` is cancelled, all sessions end at once.
#[must_use]
pub fn services(scope: Scope, stop: CancellationToken) -> Services {
    let sessions = Sessions::default();
    let of_devices = Sessions::default();
    let session = SessionService::new(sessions.clone(), of_devices.clone(), stop.clone());
    let open = SessionsServer::new(session).max_decoding_message_size(MAX_MESSAGE);
    let devices = DeviceService::new(scope.clone());
    let devices = DevicePluginServer::new(devices).max_decoding_message_size(MAX_MESSAGE);
    let health = HealthServer::new(HealthService::new(stop.clone()));
    let driver = Driver::new(scope, sessions.clone());
    let in_background = driver.clone();
    let background = Box::pin(async move {
        stop.run_until_cancelled(in_background.run_background())
            .await;
    });
    let driver = DriverServer::new(driver)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    Services {
        routes: Routes::new(open)
            .add_service(driver)
            .add_service(devices)
            .add_service(health),
        launchers: Launchers([sessions, of_devices]),
        background,
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}

// === impl Launchers ===

impl Launchers {
    /// The number of those that serve a driver. That of a device plugin may be there while no task can be placed.
    #[must_use]
    pub fn drivers(&self) -> usize {
        let [drivers, _] = &self.0;
        drivers.count()
    }

    /// The numbers of launchers of each version; the version is empty for those that report none.
    #[must_use]
    pub fn versions(&self) -> BTreeMap<String, u64> {
        let mut versions = BTreeMap::new();
        for session in self.0.iter().flat_map(Sessions::all) {
            *versions.entry(session.version.clone()).or_default() += 1;
        }
        versions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PluginConfig;
    use crate::configs::session;
    use crate::session::Session;

    #[test]
    fn launchers_are_counted_by_version() {
        let drivers = Sessions::default();
        let devices = Sessions::default();
        let launchers = Launchers([drivers.clone(), devices.clone()]);
        assert!(launchers.versions().is_empty());
        let of = |id: &str, version: &str| Session {
            id: id.to_owned(),
            version: version.to_owned(),
            ..session(PluginConfig::default())
        };
        let first = drivers.open(of("1", "0.2.0"));
        let _second = drivers.open(of("2", "0.1.0"));
        let _third = devices.open(of("3", "0.2.0"));
        let both = [("0.1.0".to_owned(), 1), ("0.2.0".to_owned(), 2)];
        assert_eq!(launchers.versions(), BTreeMap::from(both.clone()));
        assert_eq!(launchers.drivers(), 2);
        drop(first);
        assert_eq!(launchers.drivers(), 1);
        let left = both.map(|(version, _)| (version, 1));
        assert_eq!(launchers.versions(), BTreeMap::from(left));
    }
}
