//! Renewal of the certificate, and its schedule.

use std::time::{Duration, SystemTime};

use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;

use crate::certificates::ValidityPeriod;
use crate::connection::{Connection, Trust};
use crate::error::Error;
use crate::identity::Identity;
use crate::issuance;
use crate::key::NodeKey;

#[cfg(test)]
mod tests;

/// The part of a certificate's time in which it is renewed, in per cent, as docker's agents do it: late enough to
/// be rare, early enough for many attempts. The moment is random, so that nodes that joined together do not
/// renew together.
const EARLIEST: u64 = 50;
const LATEST: u64 = 80;

/// The pauses between failed attempts.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Chooses when to renew a certificate: between half and four fifths of its validity, by `random`.
#[must_use]
pub fn due(validity: ValidityPeriod, random: u64) -> SystemTime {
    let ValidityPeriod {
        not_before,
        not_after,
    } = validity;
    let whole = not_after
        .duration_since(not_before)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let earliest = whole / 100 * EARLIEST;
    let span = whole / 100 * (LATEST - EARLIEST);
    not_before + Duration::from_secs(earliest + random.checked_rem(span).unwrap_or(0))
}

/// Returns the pause after so many failed attempts: longer each time, but short enough for ten more attempts
/// before the certificate expires.
#[must_use]
pub fn pause(failures: u32, left: Duration) -> Duration {
    let doubled = PAUSE_MIN.saturating_mul(
        1_u32
            .checked_shl(failures.saturating_sub(1))
            .unwrap_or(u32::MAX),
    );
    doubled.min(PAUSE_MAX).min(left / 10).max(PAUSE_MIN)
}

/// Gets another certificate with another key. Nothing is stored.
///
/// # Errors
/// - [`Error::ManagerRole`]: the node was promoted; the present certificate stays valid.
/// - Others as [`Error`] says.
pub(crate) async fn renew(identity: &Identity, manager: &str) -> Result<Identity, Error> {
    let connection = Connection::open(manager, Trust::Manager(identity)).await?;
    let key = NodeKey::generate()?;
    let request = key.certificate_request()?;
    // The role and the availability of a node that exists do not change.
    let node = issuance::request(&connection, &request, "", Availability::Active).await?;
    if node != identity.node() {
        return Err(Error::InvalidAnswer {
            manager: manager.to_owned(),
            call: "IssueNodeCertificate",
            reason: format!(
                "it names the node {node}, and this one is {}",
                identity.node()
            ),
        });
    }
    let chain = issuance::wait(&connection, &node, &request).await?;
    let renewed = Identity::new(identity.roots().clone(), chain, key, SystemTime::now())?;
    if renewed.node() != identity.node() || renewed.cluster() != identity.cluster() {
        return Err(Error::InvalidCertificate {
            what: "the renewed certificate of this node",
            reason: format!(
                "it is for the node {} of the swarm {}",
                renewed.node(),
                renewed.cluster()
            ),
        });
    }
    Ok(renewed)
}
