//! The service by which launchers open their sessions.

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

/// Opens sessions, and ends them all when the daemon ends: their launchers go then, and the agents start new ones.
#[derive(Debug)]
pub(crate) struct SessionService {
    sessions: Sessions,
    stop: CancellationToken,
}

// === impl SessionService ===

impl SessionService {
    pub(crate) const fn new(sessions: Sessions, stop: CancellationToken) -> Self {
        Self { sessions, stop }
    }
}

#[async_trait::async_trait]
impl sessions_server::Sessions for SessionService {
    type OpenStream = Pin<Box<dyn Stream<Item = Result<wire::OpenResponse, Status>> + Send>>;

    async fn open(&self, request: Request<wire::OpenRequest>) -> Result<Response<Self::OpenStream>, Status> {
        let request = request.into_inner();
        let version = request.version.clone();
        let session = session_of(request).map_err(|error| status(&error))?;
        tracing::info!(
            session = session.id,
            driver = session.driver,
            version,
            "a launcher has opened a session"
        );
        let opened = wire::OpenResponse { session_id: session.id.clone() };
        let held = self.sessions.open(session);
        let end = self.stop.clone().cancelled_owned();
        // The session is held by the stream: it ends with the launcher's connection, or with the daemon.
        let open = stream::once(async { Ok(opened) }).chain(stream::pending()).take_until(async move {
            end.await;
            drop(held);
        });
        Ok(Response::new(Box::pin(open)))
    }
}

fn session_of(request: wire::OpenRequest) -> Result<Session> {
    let role = request.role();
    let wire::OpenRequest { role: _, name, msgpack_config, nomad_config, version: _ } = request;
    let (config, warnings) = match role {
        wire::Role::Driver => PluginConfig::decode(&msgpack_config)?,
        wire::Role::Device => (PluginConfig::default(), Vec::new()),
        wire::Role::Unspecified => {
            return Err(Error::invalid("role", "a session is a driver's or a device plugin's"));
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
    })
}

/// A name that no other session has, nor had.
fn new_id() -> Result<String> {
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::internal("draw a name for a session").with_source(error))?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
