//! A manager whose answers a test scripts: CA, NodeCA, Dispatcher and LogBroker on a real connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::ca_server::{Ca, CaServer};
use switchyard_proto::docker::swarmkit::v1::dispatcher_server::{Dispatcher, DispatcherServer};
use switchyard_proto::docker::swarmkit::v1::issuance_status::State;
use switchyard_proto::docker::swarmkit::v1::log_broker_server::LogBrokerServer;
use switchyard_proto::docker::swarmkit::v1::node_ca_server::{NodeCa, NodeCaServer};
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::log_broker::LogScript;
use crate::join::JoinRequest;
use crate::key::NodeKey;
use crate::testing::TestAuthority;
use crate::token::{JoinToken, RootDigest};

/// The secret of its token.
pub(super) const SECRET: &str = "0v0kzyjmbd0mwgz6rb6fyz4v9";

/// The id of its cluster.
pub(super) const CLUSTER: &str = "cluster1";

/// The manager's answers, which a test may change.
pub(super) struct Script {
    /// The roots that it serves, if not those of its authority.
    pub(super) roots: Option<Vec<u8>>,
    /// The ids of the nodes that it makes, the next one last.
    pub(super) nodes: Vec<String>,
    /// The role and the node in certificates, if not a worker and the one that was made.
    pub(super) role: &'static str,
    /// From when until when certificates are valid, if not now.
    pub(super) between: Option<[&'static str; 2]>,
    pub(super) certified: Option<String>,
    /// The states that requests are found in, the next one last; then `Issued`.
    pub(super) states: Vec<State>,
    /// Number of answers with an earlier certificate of the node.
    pub(super) earlier: usize,
    /// The next sessions' first messages, the next one last; then one that is usual.
    pub(super) sessions: Vec<Result<swarm::SessionMessage, Status>>,
    /// True if heartbeats are answered.
    pub(super) has_heartbeats: bool,
    /// The messages of the next Assignments streams, the next one last; then one that is empty.
    pub(super) assignments: Vec<Vec<swarm::AssignmentsMessage>>,
    /// The messages of the next Tasks streams, the next one last. If there are any, it is a manager without Assignments.
    pub(super) tasks: Vec<Vec<swarm::TasksMessage>>,
    /// Reason for which statuses with this task are refused.
    pub(super) refused_task: Option<String>,
}

/// The requests that it received.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) requests: Vec<swarm::IssueNodeCertificateRequest>,
    pub(super) sessions: Vec<swarm::SessionRequest>,
    pub(super) heartbeats: usize,
    pub(super) assignments: usize,
    pub(super) updates: Vec<Vec<String>>,
    /// The volumes that were reported as unpublished.
    pub(super) unpublished: Vec<String>,
}

/// A manager that listens.
pub(super) struct ScriptedManager {
    pub(super) shared: Arc<Shared>,
    pub(super) address: SocketAddr,
    serving: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

pub(super) struct Shared {
    pub(super) authority: TestAuthority,
    pub(super) script: Mutex<Script>,
    pub(super) asked: Mutex<Asked>,
    /// The latest Session stream, for more messages.
    pub(super) session: Mutex<Option<mpsc::Sender<Result<swarm::SessionMessage, Status>>>>,
    pub(super) logs: LogScript,
    /// The Assignments streams, which stay open.
    streams: Mutex<Vec<mpsc::Sender<Result<swarm::AssignmentsMessage, Status>>>>,
    /// The Tasks streams, which stay open.
    task_streams: Mutex<Vec<mpsc::Sender<Result<swarm::TasksMessage, Status>>>>,
}

#[derive(Clone)]
pub(super) struct Service(pub(super) Arc<Shared>);

impl ScriptedManager {
    /// Starts a manager. It speaks HTTP/2 by ALPN, or without it.
    pub(super) async fn start(has_alpn: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = TestAuthority::new(dir.path(), "ca");
        let script = Script {
            roots: None,
            nodes: vec!["node2".to_owned(), "node1".to_owned()],
            role: "swarm-worker",
            between: None,
            certified: None,
            states: Vec::new(),
            earlier: 0,
            sessions: Vec::new(),
            has_heartbeats: true,
            assignments: Vec::new(),
            tasks: Vec::new(),
            refused_task: None,
        };
        let acceptor = acceptor(&authority, has_alpn);
        let shared = Arc::new(Shared {
            authority,
            script: Mutex::new(script),
            asked: Mutex::default(),
            session: Mutex::default(),
            logs: LogScript::default(),
            streams: Mutex::default(),
            task_streams: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, acceptor, Service(shared.clone())));
        Self {
            shared,
            address,
            serving,
            _dir: dir,
        }
    }

    /// The token for workers.
    pub(super) fn token(&self) -> JoinToken {
        let digest = RootDigest::of(&self.shared.authority.root());
        format!("SWMTKN-1-{digest}-{SECRET}").parse().unwrap()
    }

    /// A request to join by it as a worker.
    pub(super) fn request(&self, availability: Availability) -> JoinRequest {
        JoinRequest {
            managers: vec![self.address.to_string()],
            token: self.token(),
            availability,
        }
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.shared.script.lock());
    }

    /// Waits until something was asked.
    #[track_caller]
    pub(super) fn until<'a>(
        &'a self,
        what: &'a str,
        is_so: impl Fn(&Asked) -> bool + 'a,
    ) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            for _ in 0..600 {
                if is_so(&self.shared.asked.lock()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            panic!("{caller}: {what}");
        }
    }
}

impl Drop for ScriptedManager {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The manager's own certificate, and the demand for those of nodes.
fn acceptor(authority: &TestAuthority, has_alpn: bool) -> TlsAcceptor {
    let key = NodeKey::generate().unwrap();
    let chain = authority.issue(
        &key.certificate_request().unwrap(),
        CLUSTER,
        "swarm-manager",
        "manager1",
    );
    let chain = vec![CertificateDer::from_pem_slice(&chain).unwrap()];
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&authority.root()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            chain,
            PrivateKeyDer::from_pem_slice(key.to_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    if has_alpn {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, service: Service) {
    let (sender, connections) = mpsc::channel(16);
    let accepting = async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not like the certificate breaks off.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            // tonic's server knows streams of tokio alone.
            let (plain, mut other) = tokio::io::duplex(64 << 10);
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut stream, &mut other).await },
            );
            if sender.send(Ok::<_, std::io::Error>(plain)).await.is_err() {
                return;
            }
        }
    };
    let serving = Server::builder()
        .add_service(CaServer::new(service.clone()))
        .add_service(NodeCaServer::new(service.clone()))
        .add_service(LogBrokerServer::new(service.clone()))
        .add_service(DispatcherServer::new(service))
        .serve_with_incoming(ReceiverStream::new(connections));
    let (_, served) = tokio::join!(accepting, serving);
    served.unwrap();
}

#[tonic::async_trait]
impl Ca for Service {
    async fn get_root_ca_certificate(
        &self,
        _: Request<swarm::GetRootCaCertificateRequest>,
    ) -> Result<Response<swarm::GetRootCaCertificateResponse>, Status> {
        let certificate = self
            .0
            .script
            .lock()
            .roots
            .clone()
            .unwrap_or_else(|| self.0.authority.root());
        Ok(Response::new(swarm::GetRootCaCertificateResponse {
            certificate,
        }))
    }
}

#[tonic::async_trait]
impl NodeCa for Service {
    async fn issue_node_certificate(
        &self,
        request: Request<swarm::IssueNodeCertificateRequest>,
    ) -> Result<Response<swarm::IssueNodeCertificateResponse>, Status> {
        self.0.asked.lock().requests.push(request.into_inner());
        let node_id = self
            .0
            .script
            .lock()
            .nodes
            .pop()
            .ok_or_else(|| Status::aborted("no more nodes"))?;
        Ok(Response::new(swarm::IssueNodeCertificateResponse {
            node_id,
            node_membership: 1,
        }))
    }

    async fn node_certificate_status(
        &self,
        request: Request<swarm::NodeCertificateStatusRequest>,
    ) -> Result<Response<swarm::NodeCertificateStatusResponse>, Status> {
        let node = request.into_inner().node_id;
        let asked = self
            .0
            .asked
            .lock()
            .requests
            .last()
            .map(|request| request.csr.clone());
        let csr = asked.ok_or_else(|| Status::not_found("node not found"))?;
        let mut script = self.0.script.lock();
        let state = script.states.pop().unwrap_or(State::Issued);
        let text = String::from_utf8(csr.clone()).unwrap();
        let certified = script.certified.clone().unwrap_or(node);
        let certificate = match script.between {
            None => self
                .0
                .authority
                .issue(&text, CLUSTER, script.role, &certified),
            Some(between) => self
                .0
                .authority
                .issue_between(&text, CLUSTER, &certified, between),
        };
        let is_earlier = script.earlier > 0;
        script.earlier = script.earlier.saturating_sub(1);
        let status = swarm::IssuanceStatus {
            state: state.into(),
            err: "the CA dislikes it".to_owned(),
        };
        Ok(Response::new(swarm::NodeCertificateStatusResponse {
            status: Some(status.clone()),
            certificate: Some(swarm::Certificate {
                csr: if is_earlier { b"earlier".to_vec() } else { csr },
                status: Some(status),
                certificate,
                ..Default::default()
            }),
        }))
    }
}

/// The usual first message of a session.
pub(super) fn session(id: &str) -> swarm::SessionMessage {
    swarm::SessionMessage {
        session_id: id.to_owned(),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl Dispatcher for Service {
    type SessionStream = ReceiverStream<Result<swarm::SessionMessage, Status>>;
    type TasksStream = ReceiverStream<Result<swarm::TasksMessage, Status>>;
    type AssignmentsStream = ReceiverStream<Result<swarm::AssignmentsMessage, Status>>;

    async fn session(
        &self,
        request: Request<swarm::SessionRequest>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let request = request.into_inner();
        let number = {
            let mut asked = self.0.asked.lock();
            asked.sessions.push(request.clone());
            asked.sessions.len()
        };
        let usual = if request.session_id.is_empty() {
            format!("s{number}")
        } else {
            request.session_id
        };
        let first = self
            .0
            .script
            .lock()
            .sessions
            .pop()
            .unwrap_or_else(|| Ok(session(&usual)))?;
        let (sender, messages) = mpsc::channel(16);
        sender.send(Ok(first)).await.unwrap();
        *self.0.session.lock() = Some(sender);
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    async fn heartbeat(
        &self,
        _: Request<swarm::HeartbeatRequest>,
    ) -> Result<Response<swarm::HeartbeatResponse>, Status> {
        self.0.asked.lock().heartbeats += 1;
        if !self.0.script.lock().has_heartbeats {
            std::future::pending::<()>().await;
        }
        let period = Some(prost_types::Duration {
            seconds: 0,
            nanos: 500_000_000,
        });
        Ok(Response::new(swarm::HeartbeatResponse { period }))
    }

    async fn update_task_status(
        &self,
        request: Request<swarm::UpdateTaskStatusRequest>,
    ) -> Result<Response<swarm::UpdateTaskStatusResponse>, Status> {
        let tasks: Vec<String> = request
            .into_inner()
            .updates
            .into_iter()
            .map(|update| update.task_id)
            .collect();
        let refused = self.0.script.lock().refused_task.clone();
        self.0.asked.lock().updates.push(tasks.clone());
        if refused.is_some_and(|task| tasks.contains(&task)) {
            return Err(Status::permission_denied("cannot access task"));
        }
        Ok(Response::new(swarm::UpdateTaskStatusResponse {}))
    }

    async fn update_volume_status(
        &self,
        request: Request<swarm::UpdateVolumeStatusRequest>,
    ) -> Result<Response<swarm::UpdateVolumeStatusResponse>, Status> {
        let updates = request.into_inner().updates.into_iter();
        self.0.asked.lock().unpublished.extend(
            updates
                .filter(|update| update.unpublished)
                .map(|update| update.id),
        );
        Ok(Response::new(swarm::UpdateVolumeStatusResponse {}))
    }

    async fn tasks(
        &self,
        _: Request<swarm::TasksRequest>,
    ) -> Result<Response<Self::TasksStream>, Status> {
        let scripted = self.0.script.lock().tasks.pop();
        let scripted = scripted.ok_or_else(|| Status::unimplemented("agents use assignments"))?;
        let (sender, messages) = mpsc::channel(16);
        for message in scripted {
            sender.send(Ok(message)).await.unwrap();
        }
        self.0.task_streams.lock().push(sender);
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    async fn assignments(
        &self,
        _: Request<swarm::AssignmentsRequest>,
    ) -> Result<Response<Self::AssignmentsStream>, Status> {
        self.0.asked.lock().assignments += 1;
        if !self.0.script.lock().tasks.is_empty() {
            return Err(Status::unimplemented("unknown method Assignments"));
        }
        let empty = || {
            vec![swarm::AssignmentsMessage {
                results_in: "1".to_owned(),
                ..Default::default()
            }]
        };
        let scripted = self.0.script.lock().assignments.pop().unwrap_or_else(empty);
        let (sender, messages) = mpsc::channel(16);
        for message in scripted {
            sender.send(Ok(message)).await.unwrap();
        }
        self.0.streams.lock().push(sender);
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}
