//! Issuance of a node's certificate: the request, and the wait for its result.

use std::time::Duration;

use switchyard_linux::beginning;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::issuance_status::State;
use switchyard_proto::docker::swarmkit::v1::node_ca_client::NodeCaClient;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Code;
use tonic::transport::Channel;

use crate::certificates::{NodeChain, PEM_MAX};
use crate::connection::Connection;
use crate::error::Error;

#[cfg(test)]
mod tests;

/// Limit for a manager to accept a request.
const ISSUE_LIMIT: Duration = Duration::from_secs(10);

/// Limit for one status call: managers hold it open, and answer when something has changed.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Limit for the issuance of a certificate. A manager needs milliseconds, an external CA of a company some
/// seconds, and the election of a leader up to a minute.
const CERTIFICATE_LIMIT: Duration = Duration::from_secs(180);

/// The pauses between looks: as docker's agents have them.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The largest answer: a chain and a request, with room.
const ANSWER_MAX: usize = 4 * PEM_MAX;

/// The state of a request.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// This chain was issued.
    Issued(Vec<u8>),
    /// Nothing yet.
    Wait,
    /// It will not be, for this reason.
    Refused(String),
}

/// Requests a certificate, and returns the id of the node. With a token, every call makes another node; without
/// one, the node of the connection's certificate renews it.
///
/// # Errors
/// [`Error::NoAnswer`], [`Error::Refused`], [`Error::InvalidAnswer`].
pub(crate) async fn request(
    connection: &Connection,
    request: &str,
    token: &str,
    availability: Availability,
) -> Result<String, Error> {
    let message = swarm::IssueNodeCertificateRequest {
        role: swarm::NodeRole::Worker.into(),
        csr: request.as_bytes().to_owned(),
        token: token.to_owned(),
        availability: availability.into(),
    };
    let mut client = client(connection);
    let call = "IssueNodeCertificate";
    let answer = connection
        .answer(call, ISSUE_LIMIT, client.issue_node_certificate(message))
        .await?;
    let swarm::IssueNodeCertificateResponse {
        node_id,
        node_membership: _,
    } = answer;
    let is_id = !node_id.is_empty()
        && node_id.len() <= 64
        && node_id.bytes().all(|b| b.is_ascii_alphanumeric());
    if !is_id {
        return Err(Error::InvalidAnswer {
            manager: connection.manager().to_owned(),
            call,
            reason: format!("it names no node: {:?}", beginning(&node_id, 64)),
        });
    }
    Ok(node_id)
}

/// Waits for the certificate of a request. Cancel-safe; may be called again.
///
/// # Errors
/// - [`Error::CertificateRefused`]: it will not be issued.
/// - [`Error::CertificateLate`]: it was not, within three minutes.
/// - [`Error::Refused`]: the manager does not know the node.
pub(crate) async fn wait(
    connection: &Connection,
    node: &str,
    request: &str,
) -> Result<NodeChain, Error> {
    let deadline = Instant::now() + CERTIFICATE_LIMIT;
    let mut pause = PAUSE_MIN;
    loop {
        let late = || Error::CertificateLate {
            node: node.to_owned(),
            limit: CERTIFICATE_LIMIT,
        };
        let look = timeout_at(deadline, look(connection, node))
            .await
            .map_err(|_| late())?;
        match look.map(|answer| verdict(answer, request)) {
            Ok(Verdict::Issued(chain)) => return NodeChain::from_pem(&chain),
            Ok(Verdict::Refused(reason)) => {
                return Err(Error::CertificateRefused {
                    node: node.to_owned(),
                    reason,
                });
            }
            // The manager has held the call open for a while.
            Err(Error::NoAnswer { .. }) => continue,
            Ok(Verdict::Wait) => {}
            Err(Error::Refused { status, .. }) if is_passing(status.code()) => {}
            Err(error) => return Err(error),
        }
        if Instant::now() + pause >= deadline {
            return Err(late());
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn look(
    connection: &Connection,
    node: &str,
) -> Result<swarm::NodeCertificateStatusResponse, Error> {
    let message = swarm::NodeCertificateStatusRequest {
        node_id: node.to_owned(),
    };
    let mut client = client(connection);
    connection
        .answer(
            "NodeCertificateStatus",
            LOOK_LIMIT,
            client.node_certificate_status(message),
        )
        .await
}

fn client(connection: &Connection) -> NodeCaClient<Channel> {
    NodeCaClient::new(connection.channel()).max_decoding_message_size(ANSWER_MAX)
}

/// Returns whether a later call may succeed: the leader changes, or is unreachable.
const fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::Aborted | Code::Unavailable | Code::DeadlineExceeded
    )
}

/// Interprets an answer about a request. It may still be about an earlier request of the node.
fn verdict(answer: swarm::NodeCertificateStatusResponse, request: &str) -> Verdict {
    let swarm::NodeCertificateStatusResponse {
        status,
        certificate,
    } = answer;
    let status = status.unwrap_or_default();
    let certificate = certificate.unwrap_or_default();
    if certificate.csr != request.as_bytes() {
        return Verdict::Wait;
    }
    match status.state() {
        // A certificate that is to be renewed is valid until then.
        State::Issued | State::Rotate if !certificate.certificate.is_empty() => {
            Verdict::Issued(certificate.certificate)
        }
        State::Failed => Verdict::Refused(beginning(&status.err, REASON_MAX).to_owned()),
        State::Unknown | State::Renew | State::Pending | State::Issued | State::Rotate => {
            Verdict::Wait
        }
    }
}

/// Maximum number of bytes quoted from a manager's reason.
const REASON_MAX: usize = 500;
