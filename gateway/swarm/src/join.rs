//! The first contact of a node with a cluster.
//!
//! ```text
//! anybody   GetRootCACertificate   the bundle must have the digest of the token
//! swarm-ca  IssueNodeCertificate   makes the node; its id, key and request are stored
//!           NodeCertificateStatus  until the certificate is there; it is stored, with the roots
//! ```
//!
//! A node that is killed between the second call and the certificate continues with the stored request, which
//! needs no token any more. Only a kill between the manager's answer and its write to disk leaves a node
//! object that nobody uses: `Down` in `docker node ls`, until an operator removes it.

use std::time::{Duration, SystemTime};

use switchyard_core::operation::plain_step;
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

/// Limit for a manager to send its roots.
const ROOTS_LIMIT: Duration = Duration::from_secs(5);

/// Number of attempts to connect to an unreachable manager, and the pause between them: as docker does it.
const ATTEMPTS: u32 = 5;
const ATTEMPT_PAUSE: Duration = Duration::from_secs(2);

/// Maximum number of managers in a join request. SwarmKit advises at most 7.
pub const JOIN_MANAGERS_MAX: usize = 16;

/// An operator's request to join.
#[derive(Debug, Clone)]
pub struct JoinRequest {
    /// Managers, `HOST` or `HOST:PORT`: the first that answers is joined.
    pub managers: Vec<String>,
    /// The worker token of the cluster.
    pub token: JoinToken,
    /// Availability of the node for the scheduler.
    pub availability: Availability,
}

/// Makes this node a worker of a cluster. Idempotent as far as it can be: a join that was interrupted is continued
/// by the next one with a token of the same cluster. No error shows the token.
///
/// # Errors
/// As [`Error`] says of each; [`Error::AlreadyJoined`] if the node is in a cluster. If it fails before the manager
/// has made a node, or for a reason that is final, nothing is stored.
pub async fn join(store: &Store, request: &JoinRequest) -> Result<Identity, Error> {
    join_with_token(store, request)
        .await
        .map_err(|error| withhold(error, &request.token))
}

async fn join_with_token(store: &Store, request: &JoinRequest) -> Result<Identity, Error> {
    let JoinRequest {
        managers,
        token,
        availability: _,
    } = request;
    if let Some(identity) = store.run(|store| store.load(SystemTime::now())).await? {
        let [node, cluster] = [identity.node(), identity.cluster()].map(str::to_owned);
        return Err(Error::AlreadyJoined { node, cluster });
    }
    let digest = token.digest();
    let contact = repeated(|| first_that_answers(managers, digest));
    let (roots, connection) = plain_step("contact_managers", contact).await?;
    // A pending join of another cluster has other roots, and is not continued.
    let resumed = match store
        .run(Store::load_join)
        .await?
        .filter(|pending| pending.roots == digest)
    {
        Some(pending) => certificate(store, &connection, &pending)
            .await?
            .map(|chain| (pending, chain)),
        None => None,
    };
    let (pending, chain) = match resumed {
        Some(resumed) => resumed,
        None => {
            let pending = begin(store, &connection, request).await?;
            let chain = certificate(store, &connection, &pending).await?;
            let node = pending.node.clone();
            (pending, chain.ok_or(Error::Removed { node })?)
        }
    };
    complete(store, &connection, managers, roots, pending, chain).await
}

/// Continues a join that waits for its certificate; `None` if there is none, or the cluster does not know the node
/// any more.
///
/// # Errors
/// As [`join`]; [`Error::NoManager`] if no manager is known, so that only another join with the token continues it.
pub async fn resume_join(store: &Store) -> Result<Option<Identity>, Error> {
    let Some(pending) = store.run(Store::load_join).await? else {
        return Ok(None);
    };
    let known = store.run(Store::load_managers).await?;
    let managers: Vec<String> = known.peers().map(|peer| peer.address.clone()).collect();
    if managers.is_empty() {
        return Err(Error::NoManager);
    }
    let contact = repeated(|| first_that_answers(&managers, pending.roots));
    let (roots, connection) = plain_step("contact_managers", contact).await?;
    match certificate(store, &connection, &pending).await? {
        Some(chain) => complete(store, &connection, &managers, roots, pending, chain)
            .await
            .map(Some),
        None => Ok(None),
    }
}

/// Makes the node a member.
async fn complete(
    store: &Store,
    connection: &Connection,
    managers: &[String],
    roots: RootBundle,
    pending: PendingJoin,
    chain: NodeChain,
) -> Result<Identity, Error> {
    let identity = Identity::new(roots, chain, pending.key, SystemTime::now());
    let identity = forget_if_final(store, identity).await?;
    let managers = peers(managers);
    let stored = identity.clone();
    let saved = store.run(move |store| {
        // The managers first: the certificate makes the node a member, which has to know a manager.
        store.save_managers(&managers)?;
        store.save_joined(&stored)
    });
    saved.await?;
    tracing::info!(
        node = identity.node(),
        cluster = identity.cluster(),
        manager = connection.manager(),
        "this node has joined a swarm"
    );
    Ok(identity)
}

fn peers(managers: &[String]) -> Managers {
    Managers::of(managers.iter().map(|manager| Peer {
        node: String::new(),
        address: manager.clone(),
    }))
}

/// The roots of the cluster, and a connection to the first manager that serves them. If none does, the error is that
/// of a manager that could be asked, else that of the first.
async fn first_that_answers(
    managers: &[String],
    digest: RootDigest,
) -> Result<(RootBundle, Connection), Error> {
    let mut worst: Option<Error> = None;
    for manager in managers {
        match contact(manager, digest).await {
            Ok(contacted) => return Ok(contacted),
            Err(error) if worst.is_none() || !is_passing(&error) => worst = Some(error),
            Err(_) => {}
        }
    }
    Err(worst.unwrap_or(Error::NoManager))
}

async fn contact(manager: &str, digest: RootDigest) -> Result<(RootBundle, Connection), Error> {
    let roots = fetch_roots(manager, digest).await?;
    let connection = Connection::open(manager, Trust::Authority(&roots)).await?;
    Ok((roots, connection))
}

/// Asks for the roots of the cluster, and checks that they are those of the token.
async fn fetch_roots(manager: &str, expected: RootDigest) -> Result<RootBundle, Error> {
    // The server cannot be verified yet; the digest in the token authenticates the roots that it sends.
    let connection = Connection::open(manager, Trust::Anybody).await?;
    let mut client = CaClient::new(connection.channel()).max_decoding_message_size(PEM_MAX + 1024);
    let call = client.get_root_ca_certificate(swarm::GetRootCaCertificateRequest {});
    let answer = connection
        .answer("GetRootCACertificate", ROOTS_LIMIT, call)
        .await?;
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
    JoinRequest {
        managers,
        token,
        availability,
    }: &JoinRequest,
) -> Result<PendingJoin, Error> {
    let key = NodeKey::generate()?;
    let request = key.certificate_request()?;
    // Not repeated when the answer is lost: each call makes a node.
    let node = issuance::request(connection, &request, token.as_sent(), *availability).await?;
    tracing::info!(
        node,
        manager = connection.manager(),
        "the swarm has made a node; its certificate is awaited"
    );
    let pending = PendingJoin {
        node,
        roots: token.digest(),
        request,
        key,
    };
    let stored = pending.clone();
    let managers = peers(managers);
    let saved = store.run(move |store| {
        // The join first: without its key the node object is lost, without managers another join continues
        // it.
        store.save_join(&stored)?;
        store.save_managers(&managers)
    });
    saved.await?;
    Ok(pending)
}

/// Waits for the certificate of a node; `None` if the manager does not know the node.
async fn certificate(
    store: &Store,
    connection: &Connection,
    pending: &PendingJoin,
) -> Result<Option<NodeChain>, Error> {
    let wait = issuance::wait(connection, &pending.node, &pending.request);
    match plain_step("wait_for_certificate", wait).await {
        Err(Error::Refused { status, .. }) if status.code() == Code::NotFound => {
            tracing::warn!(
                node = pending.node,
                "the swarm does not know the node of an unfinished join"
            );
            store.run(Store::abandon_join).await?;
            Ok(None)
        }
        chain => forget_if_final(store, chain).await.map(Some),
    }
}

/// Forgets the unfinished join if there is no sense in continuing it. A certificate that is not valid yet will be, and another
/// join would make another node.
async fn forget_if_final<T>(store: &Store, result: Result<T, Error>) -> Result<T, Error> {
    let is_over =
        |error: &Error| error.is_final() || matches!(error, Error::InvalidCertificate { .. });
    if result.as_ref().is_err_and(is_over) {
        store.run(Store::abandon_join).await?;
    }
    result
}

/// Tries something again while the manager cannot be reached or has no leader.
async fn repeated<T, F: Future<Output = Result<T, Error>>>(
    try_it: impl Fn() -> F,
) -> Result<T, Error> {
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

/// The error without the secret of the token, which a manager may repeat.
fn withhold(mut error: Error, token: &JoinToken) -> Error {
    if let Error::Refused { status, .. } = &mut error {
        **status = tonic::Status::new(status.code(), token.withheld_from(status.message()));
    }
    if let Error::CertificateRefused { reason, .. } = &mut error {
        *reason = token.withheld_from(reason);
    }
    error
}

/// Returns whether another attempt may succeed: no manager is reachable, or there is no leader.
pub(crate) fn is_passing(error: &Error) -> bool {
    if let Error::Refused { status, .. } = error {
        return matches!(status.code(), Code::Aborted | Code::Unavailable);
    }
    matches!(error, Error::Unreachable { .. } | Error::NoAnswer { .. })
}
