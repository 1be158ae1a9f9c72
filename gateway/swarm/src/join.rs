//! The first contact of a node with a cluster.
//!
//! ```text
//! anybody   GetRootCACertificate   the bundle must have the digest of the token
//! swarm-ca  IssueNodeCertificate   makes the node; its id, key and request are stored
//!           NodeCertificateStatus  until the certificate is there; it is stored, with the roots
//! ```
//!
//! A node that is killed between the second call and the certificate goes on with the stored request. Only a kill
//! between the manager's answer and the write of it leaves a node object that nobody uses: `Down` in
//! `docker node ls`, until an operator removes it.

use std::time::{Duration, SystemTime};

use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::ca_client::CaClient;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use tokio::time::sleep;
use tonic::Code;

use crate::certificates::{NodeChain, PEM_MAX, RootBundle};
use crate::connection::{Connection, Trust};
use crate::error::Error;
use crate::identity::Identity;
use crate::issuance;
use crate::key::NodeKey;
use crate::managers::{Managers, Peer};
use crate::store::{PendingJoin, Store};
use crate::token::{JoinToken, RootDigest};

/// How long a manager may take to send its roots.
const ROOTS_LIMIT: Duration = Duration::from_secs(5);

/// How often a manager is tried that cannot be reached, and the pause between: as docker does it.
const ATTEMPTS: u32 = 5;
const ATTEMPT_PAUSE: Duration = Duration::from_secs(2);

/// What an operator asks for.
#[derive(Debug, Clone)]
pub struct JoinRequest {
    /// A manager, `HOST` or `HOST:PORT`.
    pub manager: String,
    /// The worker token of the cluster.
    pub token: JoinToken,
    /// Whether the scheduler may place tasks on the node.
    pub availability: Availability,
}

/// Makes this node a worker of a cluster. Idempotent as far as it can be: a join that was interrupted is continued
/// by the next one with a token of the same cluster.
///
/// # Errors
/// As [`Error`] says of each; [`Error::AlreadyJoined`] if the node is in a cluster. If it fails before the manager
/// has made a node, or for a reason that is final, nothing is stored.
pub async fn join(store: &Store, request: &JoinRequest) -> Result<Identity, Error> {
    let JoinRequest { manager, token, availability } = request;
    if let Some(identity) = store.run(|store| store.load(SystemTime::now())).await? {
        let [node, cluster] = [identity.node(), identity.cluster()].map(str::to_owned);
        return Err(Error::AlreadyJoined { node, cluster });
    }
    let digest = token.digest();
    let roots = repeated(|| fetch_roots(manager, digest)).await?;
    let connection = repeated(|| Connection::open(manager, Trust::Authority(&roots))).await?;
    let resumed = match store.run(move |store| store.load_join(digest)).await? {
        Some(pending) => certificate(store, &connection, &pending).await?.map(|chain| (pending, chain)),
        None => None,
    };
    let (pending, chain) = match resumed {
        Some(resumed) => resumed,
        None => {
            let pending = begin(store, &connection, token, *availability).await?;
            let chain = certificate(store, &connection, &pending).await?;
            let node = pending.node.clone();
            (pending, chain.ok_or(Error::Removed { node })?)
        }
    };
    let identity = Identity::new(roots, chain, pending.key, SystemTime::now());
    let identity = forget_if_final(store, identity).await?;
    let managers = Managers::of([Peer { node: String::new(), address: manager.clone() }]);
    let stored = identity.clone();
    let saved = store.run(move |store| {
        store.save_managers(&managers)?;
        store.save_joined(&stored)
    });
    saved.await?;
    tracing::info!(
        node = identity.node(),
        cluster = identity.cluster(),
        manager,
        "this node has joined a swarm"
    );
    Ok(identity)
}

/// Asks for the roots of the cluster, and checks that they are those of the token.
async fn fetch_roots(manager: &str, expected: RootDigest) -> Result<RootBundle, Error> {
    let connection = Connection::open(manager, Trust::Anybody).await?;
    let mut client = CaClient::new(connection.channel()).max_decoding_message_size(PEM_MAX + 1024);
    let call = client.get_root_ca_certificate(swarm::GetRootCaCertificateRequest {});
    let answer = connection.answer("GetRootCACertificate", ROOTS_LIMIT, call).await?;
    let swarm::GetRootCaCertificateResponse { certificate } = answer;
    let found = RootDigest::of(&certificate);
    if found != expected {
        return Err(Error::OtherRoot {
            manager: manager.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        });
    }
    RootBundle::from_pem(&certificate)
}

/// Makes a node, and stores what is needed to wait for its certificate.
async fn begin(
    store: &Store,
    connection: &Connection,
    token: &JoinToken,
    availability: Availability,
) -> Result<PendingJoin, Error> {
    let key = NodeKey::generate()?;
    let request = key.certificate_request()?;
    // Not repeated when the answer is lost: each call makes a node.
    let node = issuance::request(connection, &request, token.as_sent(), availability).await?;
    tracing::info!(
        node,
        manager = connection.manager(),
        "the swarm has made a node; its certificate is awaited"
    );
    let pending = PendingJoin { node, roots: token.digest(), request, key };
    let stored = pending.clone();
    store.run(move |store| store.save_join(&stored)).await?;
    Ok(pending)
}

/// Waits for the certificate of a node; `None` if the manager does not know the node.
async fn certificate(
    store: &Store,
    connection: &Connection,
    pending: &PendingJoin,
) -> Result<Option<NodeChain>, Error> {
    match issuance::wait(connection, &pending.node, &pending.request).await {
        Err(Error::Refused { status, .. }) if status.code() == Code::NotFound => {
            tracing::warn!(node = pending.node, "the swarm does not know the node of an unfinished join");
            store.run(Store::forget_join).await?;
            Ok(None)
        }
        chain => forget_if_final(store, chain).await.map(Some),
    }
}

/// Forgets the unfinished join if there is no sense in continuing it.
async fn forget_if_final<T>(store: &Store, result: Result<T, Error>) -> Result<T, Error> {
    if result
        .as_ref()
        .is_err_and(|error| error.is_final() || matches!(error, Error::InvalidCertificate { .. }))
    {
        store.run(Store::forget_join).await?;
    }
    result
}

/// Tries something again while the manager cannot be reached or has no leader.
async fn repeated<T, F: Future<Output = Result<T, Error>>>(try_it: impl Fn() -> F) -> Result<T, Error> {
    let mut attempt = 1;
    loop {
        match try_it().await {
            Err(error) if attempt < ATTEMPTS && is_passing(&error) => {
                tracing::info!(error = error.report(), "cannot join the swarm yet");
                sleep(ATTEMPT_PAUSE).await;
                attempt += 1;
            }
            result => return result,
        }
    }
}

fn is_passing(error: &Error) -> bool {
    if let Error::Refused { status, .. } = error {
        return matches!(status.code(), Code::Aborted | Code::Unavailable);
    }
    matches!(error, Error::Unreachable { .. } | Error::NoAnswer { .. })
}
