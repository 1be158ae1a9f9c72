//! The service with which launchers open their sessions.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use prost::Message;
use switchyard_core::{Error, Result};
use switchyard_proto::nomad::base::proto as base;
use switchyard_proto::switchyard::nomad::v1 as wire;
use switchyard_proto::switchyard::nomad::v1::sessions_server;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::PluginConfig;
use crate::session::{Processors, Session, Sessions};
use crate::status::status;

/// The maximum length of a launcher's version, in bytes.
const VERSION_LIMIT: usize = 64;

/// Opens sessions, and ends all of them when the daemon shuts down: their launchers exit then, and the agents
/// start new ones; or they open one with the next daemon, while their agents recover tasks.
#[derive(Debug)]
pub(crate) struct SessionService {
    drivers: Sessions,
    /// The sessions of device plugins, which have no influence on tasks and images: only driver sessions have
    /// a configuration for those.
    devices: Sessions,
    stop: CancellationToken,
}

// === impl SessionService ===

impl SessionService {
    pub(crate) const fn new(drivers: Sessions, devices: Sessions, stop: CancellationToken) -> Self {
        Self {
            drivers,
            devices,
            stop,
        }
    }
}

#[async_trait::async_trait]
impl sessions_server::Sessions for SessionService {
    type OpenStream = Pin<Box<dyn Stream<Item = Result<wire::OpenResponse, Status>> + Send>>;

    async fn open(
        &self,
        request: Request<wire::OpenRequest>,
    ) -> Result<Response<Self::OpenStream>, Status> {
        let request = request.into_inner();
        let sessions = match request.role() {
            wire::Role::Device => &self.devices,
            wire::Role::Driver | wire::Role::Unspecified => &self.drivers,
        };
        let session = session_of(request).map_err(|error| status(&error))?;
        tracing::info!(
            session = session.id,
            driver = session.driver,
            version = session.version,
            "a launcher has opened a session"
        );
        let opened = wire::OpenResponse {
            session_id: session.id.clone(),
        };
        let guard = sessions.open(session);
        let end = self.stop.clone().cancelled_owned();
        // The stream holds the session: it ends with the launcher's connection, or with the daemon.
        let open = stream::once(async { Ok(opened) })
            .chain(stream::pending())
            .take_until(async move {
                end.await;
                drop(guard);
            });
        Ok(Response::new(Box::pin(open)))
    }
}

fn session_of(request: wire::OpenRequest) -> Result<Session> {
    let role = request.role();
    let wire::OpenRequest {
        role: _,
        name,
        msgpack_config,
        nomad_config,
        version,
    } = request;
    let (config, warnings) = match role {
        wire::Role::Driver => PluginConfig::decode(&msgpack_config)?,
        wire::Role::Device => (PluginConfig::default(), Vec::new()),
        wire::Role::Unspecified => {
            return Err(Error::invalid(
                "role",
                "a session is a driver's or a device plugin's",
            ));
        }
    };
    for warning in warnings {
        tracing::info!(driver = name, "the agent's plugin block: {warning}");
    }
    let nomad = base::NomadConfig::decode(&*nomad_config)
        .map_err(|error| Error::invalid("nomad_config", "is no NomadConfig").with_source(error))?;
    Ok(Session {
        id: new_id()?,
        driver: name,
        config: Arc::new(config),
        processors: Processors::from(&nomad),
        version: checked_version(version),
    })
}

/// The version of a launcher, which becomes a metric's label; empty, as if it were not known, unless it has the form of
/// one.
fn checked_version(version: String) -> String {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".+~_-".contains(&byte);
    if version.len() <= VERSION_LIMIT && version.bytes().all(is_allowed) {
        version
    } else {
        String::new()
    }
}

/// An id that no session has or had.
fn new_id() -> Result<String> {
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::internal("draw a name for a session").with_source(error))?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use sessions_server::Sessions as _;

    use super::*;

    #[test]
    fn a_version_that_is_none_is_not_known() {
        let longest = "1".repeat(VERSION_LIMIT);
        for version in ["", "1.0.0-rc.1", "1.2.0+14.gabc_d~x", longest.as_str()] {
            assert_eq!(checked_version(version.to_owned()), version);
        }
        let too_long = format!("{longest}1");
        for version in ["1.0 ", "1\n0", "\u{661}", "a\"b", too_long.as_str()] {
            assert_eq!(checked_version(version.to_owned()), "", "{version:?}");
        }
    }

    #[tokio::test]
    async fn device_plugin_sessions_do_not_affect_task_and_image_cleanup() {
        let drivers = Sessions::default();
        let devices = Sessions::default();
        let service =
            SessionService::new(drivers.clone(), devices.clone(), CancellationToken::new());
        let open = |role: wire::Role| {
            let request = wire::OpenRequest {
                role: role.into(),
                name: "x".into(),
                ..Default::default()
            };
            service.open(Request::new(request))
        };
        let device = open(wire::Role::Device)
            .await
            .expect("it says all that is needed");
        assert_eq!((drivers.count(), devices.count()), (0, 1));
        let driver = open(wire::Role::Driver)
            .await
            .expect("it says all that is needed");
        assert_eq!((drivers.count(), devices.count()), (1, 1));
        let refused = open(wire::Role::Unspecified)
            .await
            .err()
            .expect("it says not what it is");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        drop((device, driver));
        assert_eq!(
            (drivers.count(), devices.count()),
            (0, 0),
            "they end with their connections"
        );
    }
}
