//! The one place that decides what follows from the status of a manager's answer.

use std::time::Duration;

use tonic::{Code, Status};

use crate::error::Error;

#[cfg(test)]
mod tests;

/// The time after the last registration that a manager accepted, after which it counts from zero.
pub const RATE_LIMIT_PERIOD: Duration = Duration::from_secs(8);

/// Pause of a node that was refused because it registered too often. It is short, since a refused try does not extend
/// [`RATE_LIMIT_PERIOD`], and the daemon before this one may have made the accepted ones: their times are not known here.
/// A node that waited for a whole period after a late refusal would miss three heartbeats, and lose its tasks.
pub const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// The agent's reaction to a failed call or the end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// It registers again: the session is over, as after a change of the leader.
    NewSession,
    /// It registers again; another process has registered as this node.
    Displaced,
    /// It registers again after [`REFUSED_PAUSE`].
    SlowDown,
    /// It ends: the node was removed from the cluster.
    Removed,
    /// It connects to another manager: this one does not answer, or not as one of the cluster.
    OtherManager,
}

/// Chooses the reaction to a status.
#[must_use]
pub fn reaction(status: &Status) -> Reaction {
    let text = status.message();
    match status.code() {
        Code::PermissionDenied if text.contains(REMOVED) => Reaction::Removed,
        Code::InvalidArgument if text.contains(SESSION_INVALID) => Reaction::Displaced,
        Code::Unavailable if text.contains(RATE_LIMIT) => Reaction::SlowDown,
        // A stream that a manager ends without an error is over as well.
        Code::Ok | Code::NotFound | Code::Aborted | Code::InvalidArgument | Code::Cancelled => {
            Reaction::NewSession
        }
        Code::Unavailable
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss => Reaction::OtherManager,
    }
}

/// Chooses the reaction to a failure in a session.
#[must_use]
pub fn reaction_to(error: &Error) -> Reaction {
    if let Error::Refused { status, .. } = error {
        reaction(status)
    } else {
        Reaction::OtherManager
    }
}

/// Returns whether a manager, or the node itself, has found the token invalid: a retry is useless.
pub(crate) fn refuses_token(error: &Error) -> bool {
    if let Error::Refused { status, .. } = error {
        // A manager that rejects the certificate request reports it with this status.
        return status.code() == Code::InvalidArgument;
    }
    matches!(
        error,
        Error::InvalidToken { .. } | Error::FipsCluster | Error::OtherRoot { .. }
    )
}

/// Texts of swarmkit that distinguish errors of the same code: `ca/auth.go`, `manager/dispatcher/errors.go`
/// and `manager/dispatcher/nodes.go`. They have not changed since 2016.
const REMOVED: &str = "was removed from swarm";
const SESSION_INVALID: &str = "session invalid";
const RATE_LIMIT: &str = "exceeded rate limit count of registrations";
