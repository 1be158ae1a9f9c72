//! The frontends: gRPC servers, each on its own socket, and the node's part in a swarm, which has none.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use switchyard_config::Config;
use switchyard_core::gateway::Gateway;
use switchyard_core::id::Owner;
use switchyard_core::operation::Operations;
use switchyard_linux::report;
use switchyard_operator::control::{Reporter, SwarmControl};
use switchyard_operator_api::VERSION;
use switchyard_socket::listener::{
    GuardedListener, ListenError, OwnConnector, SocketFile, own_connections,
};
use switchyard_swarm::NodeActor;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tower::layer::util::{Identity, Stack};

use super::Daemon;
use super::drain::{CLOSE, DRAIN};
use super::listener_store::{InheritedListeners, StoredSocket};
use crate::gate::GateLayer;
use crate::layer::RpcLayer;
use crate::reports::swarm::SwarmHandle;
use crate::reports::{CriReport, NomadReport, Serving};
use crate::self_check::Question;
use crate::wiring::{self, LiveSettings};

/// The CRI methods that query the status of the daemon.
const CRI_AT_ONCE: &[&str] = &["Version", "Status"];

/// The CRI method used as liveness check.
const CRI_LIVENESS: &str = "/runtime.v1.RuntimeService/Version";

/// The sockets of the enabled frontends.
pub(super) struct FrontendSockets {
    cri: Option<GuardedListener>,
    nomad: Option<GuardedListener>,
}

/// The enabled frontends. Calls queue at their sockets until they are served.
pub(super) struct Frontends {
    cri: Option<Cri>,
    nomad: Option<Nomad>,
    swarm: Option<Swarm>,
}

struct Cri {
    listener: GuardedListener,
    routes: Routes,
    streaming: switchyard_streaming::Server,
    report: Arc<CriReport>,
}

struct Nomad {
    listener: GuardedListener,
    routes: Routes,
    background: BoxFuture<'static, ()>,
    report: Arc<NomadReport>,
}

/// The node's part in a swarm.
struct Swarm {
    handle: Arc<SwarmHandle>,
    actor: NodeActor,
}

// === impl FrontendSockets ===

impl FrontendSockets {
    /// Creates the sockets; calls queue until the frontends serve.
    pub(super) fn bind(
        config: &Config,
        inherited: &mut InheritedListeners,
    ) -> Result<Self, ListenError> {
        let mut bind =
            |name: StoredSocket, enabled: bool, path: PathBuf, group: &Option<String>| {
                enabled
                    .then(|| {
                        let inherited = inherited.remove(name);
                        GuardedListener::inherit_or_bind(&path, group.as_deref(), inherited)
                    })
                    .transpose()
            };
        let cri = &config.cri;
        let nomad = &config.nomad;
        Ok(Self {
            cri: bind(
                StoredSocket::Cri,
                cri.enabled,
                config.cri_socket(),
                &cri.socket_group,
            )?
            .map(|listener| listener.with_limit(cri.max_connections, "cri.max_connections")),
            nomad: bind(
                StoredSocket::Nomad,
                nomad.enabled,
                config.nomad_socket(),
                &nomad.socket_group,
            )?
            .map(|listener| listener.with_limit(nomad.max_connections, "nomad.max_connections")),
        })
    }

    /// The listeners, by their sockets.
    pub(super) fn listeners(&self) -> impl Iterator<Item = (StoredSocket, &GuardedListener)> {
        let cri = self
            .cri
            .iter()
            .map(|listener| (StoredSocket::Cri, listener));
        let nomad = self
            .nomad
            .iter()
            .map(|listener| (StoredSocket::Nomad, listener));
        cri.chain(nomad)
    }

    /// The files of the sockets.
    pub(super) fn files(&self) -> impl Iterator<Item = Arc<SocketFile>> {
        self.cri
            .iter()
            .chain(&self.nomad)
            .map(GuardedListener::file)
    }
}

// === impl Frontends ===

impl Frontends {
    /// The frontends over this gateway. `streaming` is the server of CRI's streams, which is there if CRI is enabled.
    pub(super) fn new(
        config: &Config,
        settings: &LiveSettings,
        sockets: FrontendSockets,
        streaming: Option<switchyard_streaming::Server>,
        gateway: &Gateway,
        operations: &Operations,
    ) -> Self {
        let scope = |owner| gateway.scope(owner);
        let cri = sockets.cri.zip(streaming).map(|(listener, streaming)| {
            let report = Arc::new(CriReport {
                is_serving: Serving::default(),
                is_streaming: Serving::default(),
                address: streaming.address(),
                sessions: streaming.sessions(),
            });
            let routes = wiring::cri(scope(Owner::Kubernetes), settings, report.sessions.clone());
            Cri {
                listener,
                routes,
                streaming,
                report,
            }
        });
        let nomad = sockets.nomad.map(|listener| {
            // Launchers end with their sessions, and with them the calls of agents.
            let services = wiring::nomad(scope(Owner::Nomad), gateway.ending());
            let switchyard_nomad::Services {
                routes,
                background,
                launchers,
            } = services;
            let report = Arc::new(NomadReport {
                is_serving: Serving::default(),
                launchers,
            });
            Nomad {
                listener,
                routes,
                background,
                report,
            }
        });
        let swarm = config.swarm.enabled.then(|| {
            let scope = scope(Owner::Swarm);
            let (node, actor) = wiring::swarm(config, settings, VERSION, scope, operations.clone());
            Swarm {
                handle: Arc::new(SwarmHandle::new(node)),
                actor,
            }
        });
        Self { cri, nomad, swarm }
    }

    /// Returns their reporters, in the order of display.
    pub(super) fn reporters(&self) -> Vec<Arc<dyn Reporter>> {
        let mut reporters: Vec<Arc<dyn Reporter>> = Vec::new();
        if let Some(cri) = &self.cri {
            reporters.push(Arc::clone(&cri.report) as _);
        }
        if let Some(nomad) = &self.nomad {
            reporters.push(Arc::clone(&nomad.report) as _);
        }
        if let Some(swarm) = &self.swarm {
            reporters.push(Arc::clone(&swarm.handle) as _);
        }
        reporters
    }

    /// The node's part in a swarm, for operators; `None` if the configuration allows none.
    pub(super) fn swarm(&self) -> Option<Arc<dyn SwarmControl>> {
        self.swarm
            .as_ref()
            .map(|swarm| Arc::clone(&swarm.handle) as _)
    }
}

// === impl Daemon ===

impl Daemon {
    /// Serves all frontends, and is a worker of a swarm; requests wait until recovery is done. Returns the questions of the self-check.
    pub(super) fn serve_frontends(&self, frontends: Frontends, gateway: &Gateway) -> Vec<Question> {
        let Frontends { cri, nomad, swarm } = frontends;
        let mut questions = Vec::new();
        questions.extend(cri.map(|cri| self.serve_cri(cri, gateway)));
        questions.extend(nomad.map(|nomad| self.serve_nomad(nomad, gateway)));
        if let Some(Swarm { handle: _, actor }) = swarm {
            // It begins once the gateway has recovered.
            self.spawn("swarm", actor.run());
        }
        questions
    }

    fn serve_cri(&self, cri: Cri, gateway: &Gateway) -> Question {
        let Cri {
            listener,
            routes,
            streaming,
            report,
        } = cri;
        self.serve_streaming(streaming, report.is_streaming.clone());
        let gate = GateLayer::new(gateway.clone(), self.config.recovery.wait(), CRI_AT_ONCE);
        let streams = self.config.cri.max_streams;
        let server = Server::builder()
            .max_concurrent_streams(streams)
            // A daemon that was held up finds many calls whose callers have given up: these must not end
            // the others', which are on the same connection.
            .http2_max_pending_accept_reset_streams(usize::try_from(streams).ok());
        let server = self.server("cri", gate, server, routes);
        let connector = self.serve_grpc("cri", listener, server, report.is_serving.clone());
        Question::rpc("cri", connector, CRI_LIVENESS)
    }

    fn serve_nomad(&self, nomad: Nomad, gateway: &Gateway) -> Question {
        let Nomad {
            listener,
            routes,
            background,
            report,
        } = nomad;
        self.spawn("nomad background work", background);
        // Calls wait without a timeout, until they are cancelled: an agent whose call is refused would
        // start a second task.
        let gate = GateLayer::new(gateway.clone(), Duration::MAX, &switchyard_nomad::AT_ONCE);
        let server = switchyard_nomad::tune(Server::builder());
        let server = self.server("nomad", gate, server, routes);
        let connector = self.serve_grpc("nomad", listener, server, report.is_serving.clone());
        Question::rpc("nomad", connector, switchyard_nomad::LIVENESS)
    }

    /// Serves streaming sessions; when the daemon ends, they get a short time to end.
    fn serve_streaming(&self, server: switchyard_streaming::Server, is_streaming: Serving) {
        let address = server.address();
        let shutdown = self.shutdown.clone();
        tracing::info!(%address, "exec, attach and port-forward are served");
        if !address.ip().to_canonical().is_loopback() {
            tracing::warn!(%address, "streams are served on a non-loopback address: anyone who sees a URL can use it once");
        }
        is_streaming.set(true);
        let stop = shutdown.token().clone();
        self.tasks.spawn(async move {
            let served = AssertUnwindSafe(server.run(stop)).catch_unwind().await;
            is_streaming.set(false);
            if served.is_err() {
                shutdown.fail("the streaming server panicked; the log says where");
            }
        });
    }

    fn server(
        &self,
        name: &'static str,
        gate: GateLayer,
        server: Server,
        routes: Routes,
    ) -> LayeredRouter {
        let tracer = self.history.operations.tracer().cloned();
        server
            .layer(RpcLayer::new(name, &self.metrics, tracer))
            .layer(gate)
            .add_routes(routes)
    }

    fn serve_grpc(
        &self,
        name: &'static str,
        listener: GuardedListener,
        server: LayeredRouter,
        is_serving: Serving,
    ) -> OwnConnector {
        let (connector, own) = own_connections();
        let shutdown = self.shutdown.clone();
        let stopped = self.shutdown.clone();
        let fault = self.shutdown.clone();
        is_serving.set(true);
        tracing::info!(socket = %listener.path().display(), "{name} is served");
        let serve = async move {
            let ended = server
                .serve_with_incoming_shutdown(listener.into_stream(own), stopped.ended())
                .await;
            is_serving.set(false);
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
