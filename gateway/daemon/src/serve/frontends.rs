//! The frontends: gRPC servers, each on its own socket, and the node's part in a swarm, which has none.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use switchyard_config::Config;
use switchyard_core::gateway::Gateway;
use switchyard_core::id::Owner;
use switchyard_linux::report;
use switchyard_operator_api::VERSION;
use switchyard_socket::listener::{GuardedListener, ListenError, OwnConnector, SocketFile, own_connections};
use switchyard_streaming::Sessions;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tower::layer::util::{Identity, Stack};

use super::{CLOSE, DRAIN, Daemon};
use crate::gate::GateLayer;
use crate::layer::RpcLayer;
use crate::self_check::Question;
use crate::wiring::{self, LiveSettings, Wiring};

/// The CRI methods that query the status of the daemon.
const CRI_AT_ONCE: &[&str] = &["Version", "Status"];

/// The CRI method that tells whether the server is alive.
const CRI_LIVENESS: &str = "/runtime.v1.RuntimeService/Version";

/// The sockets of the enabled frontends.
pub(super) struct FrontendSockets {
    cri: Option<GuardedListener>,
    nomad: Option<GuardedListener>,
}

/// The names of the enabled frontends.
pub(super) fn enabled_frontends(config: &Config) -> Vec<&'static str> {
    let named = [(config.cri.enabled, "cri"), (config.nomad.enabled, "nomad")];
    named.into_iter().filter_map(|(enabled, name)| enabled.then_some(name)).collect()
}

// === impl FrontendSockets ===

impl FrontendSockets {
    /// Creates the sockets; calls queue until the frontends serve.
    pub(super) fn bind(config: &Config) -> Result<Self, ListenError> {
        let bind = |enabled: bool, socket: PathBuf, group: &Option<String>| {
            enabled.then(|| GuardedListener::bind(&socket, group.as_deref())).transpose()
        };
        let cri = &config.cri;
        let nomad = &config.nomad;
        Ok(Self {
            cri: bind(cri.enabled, config.cri_socket(), &cri.socket_group)?
                .map(|listener| listener.with_limit(cri.max_connections, "cri.max_connections")),
            nomad: bind(nomad.enabled, config.nomad_socket(), &nomad.socket_group)?
                .map(|listener| listener.with_limit(nomad.max_connections, "nomad.max_connections")),
        })
    }

    /// The files of the sockets.
    pub(super) fn files(&self) -> impl Iterator<Item = Arc<SocketFile>> {
        self.cri.iter().chain(&self.nomad).map(GuardedListener::file)
    }
}

// === impl Daemon ===

impl Daemon {
    /// Serves all frontends, and is a worker of a swarm; requests wait until recovery is done. Returns the questions of the self-check.
    pub(super) fn serve_frontends(
        &self,
        sockets: FrontendSockets,
        wiring: &Wiring,
        settings: &LiveSettings,
        gateway: &Gateway,
        sessions: Option<Sessions>,
    ) -> Vec<Question> {
        let mut questions = Vec::new();
        if let Some((listener, sessions)) = sockets.cri.zip(sessions) {
            let routes = (wiring.cri)(gateway.scope(Owner::Kubernetes), settings, sessions);
            let gate = GateLayer::new(gateway.clone(), self.config.recovery.wait(), CRI_AT_ONCE);
            let streams = self.config.cri.max_streams;
            let server = Server::builder()
                .max_concurrent_streams(streams)
                // A daemon that was held up finds many calls whose callers have given up: these must not end
                // the others', which are on the same connection.
                .http2_max_pending_accept_reset_streams(usize::try_from(streams).ok());
            let connector = self.serve_grpc("cri", listener, self.server("cri", gate, server, routes));
            questions.push(Question::rpc("cri", connector, CRI_LIVENESS));
        }
        if let Some(listener) = sockets.nomad {
            // Launchers end with their sessions, and with them the calls of agents.
            let services = (wiring.nomad)(gateway.scope(Owner::Nomad), gateway.ending());
            self.node.set_launchers(services.launchers);
            self.spawn("nomad background work", services.background);
            // Calls wait without a timeout, until they are cancelled: an agent whose call is refused would
            // start a second task.
            let gate = GateLayer::new(gateway.clone(), Duration::MAX, &switchyard_nomad::AT_ONCE);
            let server = switchyard_nomad::tune(Server::builder(), self.config.nomad.max_streams);
            let server = self.server("nomad", gate, server, services.routes);
            let connector = self.serve_grpc("nomad", listener, server);
            questions.push(Question::rpc("nomad", connector, switchyard_nomad::LIVENESS));
        }
        self.start_swarm(settings, gateway);
        questions
    }

    /// Goes on with the node's part in a swarm, which begins once the gateway has recovered.
    fn start_swarm(&self, settings: &LiveSettings, gateway: &Gateway) {
        if !self.config.swarm.enabled {
            return;
        }
        let operations = self.history.operations.clone();
        let scope = gateway.scope(Owner::Swarm);
        let (handle, actor) = wiring::swarm(&self.config, settings, VERSION, scope, operations);
        self.node.set_swarm(handle);
        self.spawn("swarm", actor.run());
    }

    fn server(&self, name: &'static str, gate: GateLayer, server: Server, routes: Routes) -> LayeredRouter {
        let tracer = self.history.operations.tracer().cloned();
        server.layer(RpcLayer::new(name, &self.metrics, tracer)).layer(gate).add_routes(routes)
    }

    fn serve_grpc(
        &self,
        name: &'static str,
        listener: GuardedListener,
        server: LayeredRouter,
    ) -> OwnConnector {
        let (connector, own) = own_connections();
        let shutdown = self.shutdown.clone();
        let node = Arc::clone(&self.node);
        let stopped = self.shutdown.clone();
        let fault = self.shutdown.clone();
        node.set_serving(name, true);
        tracing::info!(socket = %listener.path().display(), "{name} is served");
        let serve = async move {
            let ended = server.serve_with_incoming_shutdown(listener.into_stream(own), stopped.ended()).await;
            node.set_serving(name, false);
            if let Err(error) = ended {
                fault.fail(format!("the {name} server ended: {}", report(&error)));
            }
        };
        // Unlike other parts it continues after the daemon was asked to end, so that running calls are
        // answered.
        self.tasks.spawn(async move {
            let deadline = async {
                shutdown.ended().await;
                tokio::time::sleep(DRAIN + CLOSE).await;
            };
            tokio::select! {
                end = AssertUnwindSafe(serve).catch_unwind() => {
                    if end.is_err() {
                        shutdown.fail(format!("the {name} server panicked; the log says where"));
                    }
                }
                () = deadline => tracing::warn!("calls of {name} are aborted: they did not end within the deadline"),
            }
        });
        connector
    }
}

/// A server with our layers.
type LayeredRouter = Router<Stack<GateLayer, Stack<RpcLayer, Identity>>>;
