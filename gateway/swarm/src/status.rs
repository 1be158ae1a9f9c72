//! The one place that decides what follows from the status of a manager's answer.

use std::time::Duration;

use tonic::{Code, Status};

use crate::error::Error;

#[cfg(test)]
mod tests;

/// Pause of a node that registered too often: managers count the registrations of eight seconds, from the
/// last one that they accepted.
pub const RATE_LIMIT_PAUSE: Duration = Duration::from_secs(8);

/// The agent's reaction to a failed call or the end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// It registers again: the session is over, as after a change of the leader.
    NewSession,
    /// It registers again; another process has registered as this node.
    Displaced,
    /// It registers again after [`RATE_LIMIT_PAUSE`].
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
