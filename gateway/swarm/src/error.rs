//! Reasons why a node cannot join a swarm or stay in it, each with the remedy.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use switchyard_core::ErrorKind;
use switchyard_linux::beginning;
use switchyard_linux::files::ReplaceError;
use switchyard_linux::report;

/// An error of joining, leaving or membership.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A join token cannot be read. Nothing of it is shown.
    #[error(
        "the join token is not valid: {reason}; `docker swarm join-token worker` on a manager shows the right one"
    )]
    InvalidToken {
        /// The defect.
        reason: &'static str,
    },
    /// The cluster admits only nodes with certified cryptography.
    #[error(
        "the swarm requires FIPS 140 of its nodes, which this program cannot offer; join one that was initialised \
         without it"
    )]
    FipsCluster,
    /// The manager's root certificates are not those of the token.
    #[error(
        "the root certificates of {manager} are not those of the join token: it has the digest {expected}, theirs is \
         {found}; the token is of another swarm or older than its last CA rotation, or {manager} is not one of its \
         managers"
    )]
    OtherRoot {
        /// The address.
        manager: String,
        /// The token's digest.
        expected: String,
        /// That of what was served.
        found: String,
    },
    /// A manager sent certificates that cannot be parsed or do not fit.
    #[error("{what} cannot be used: {reason}")]
    InvalidCertificate {
        /// The certificates concerned.
        what: &'static str,
        /// The defect.
        reason: String,
    },
    /// The certificate makes the node a manager.
    #[error(
        "the swarm made this node, {node}, a manager, and only workers are supported: it takes no part in raft; run \
         `docker node rm --force {node}` on a manager, and join with the token of `docker swarm join-token worker`"
    )]
    ManagerRole {
        /// The id of the node.
        node: String,
    },
    /// The manager did not issue a certificate, finally.
    #[error(
        "the swarm refused a certificate to this node, {node}: {reason}; run `docker node rm --force {node}` on a \
         manager before joining again"
    )]
    CertificateRefused {
        /// The id of the node.
        node: String,
        /// The manager's reason.
        reason: String,
    },
    /// The certificate was not issued in time.
    #[error(
        "the swarm did not issue the certificate of this node, {node}, within {} s; join again with the same token to \
         continue waiting", limit.as_secs()
    )]
    CertificateLate {
        /// The id of the node.
        node: String,
        /// The limit that has passed.
        limit: Duration,
    },
    /// The certificate is of the past, by the clock of this node.
    #[error(
        "by the clock of this node the certificate of {node} has expired; if the clock is right, no manager accepts it: run \
         `docker node rm {node}` on a manager and `switchyard swarm leave` here, and join again; if it is wrong, set it right: the \
         node then continues by itself"
    )]
    CertificateExpired {
        /// The id of the node.
        node: String,
    },
    /// The certificate is of the future, by the clock of this node.
    #[error(
        "by the clock of this node the certificate of {node} is not valid yet: the clock is wrong, as on a machine that has none of \
         its own; set it right, and the node continues by itself"
    )]
    CertificateNotValidYet {
        /// The id of the node.
        node: String,
    },
    /// Somebody removed the node from the cluster.
    #[error(
        "this node, {node}, was removed from the swarm; run `switchyard swarm leave` here, and join again if it is to \
         be a node of it"
    )]
    Removed {
        /// The id of the node.
        node: String,
    },
    /// The node is in a cluster already.
    #[error(
        "this node is {node} of the swarm {cluster} already; run `switchyard swarm leave` first"
    )]
    AlreadyJoined {
        /// The id of the node.
        node: String,
        /// The id of the cluster.
        cluster: String,
    },
    /// The node is in no cluster.
    #[error("this node is in no swarm")]
    NotJoined,
    /// The node was in a cluster, and has not left it.
    #[error("this node cannot join a swarm: {reason}")]
    StillMember {
        /// The state of its membership, and the remedy.
        reason: String,
    },
    /// The node joins or leaves already.
    #[error("this node is {doing} a swarm already; `switchyard swarm status` shows how far it is")]
    Busy {
        /// `joining` or `leaving`.
        doing: &'static str,
    },
    /// The operator has let the node leave while it joined.
    #[error("the join was given up, because this node was to leave the swarm meanwhile")]
    Abandoned,
    /// The tasks of the cluster cannot be ended.
    #[error(
        "this node is still in the swarm, because its tasks cannot be ended and removed; try again"
    )]
    TasksLeft {
        /// The cause.
        #[source]
        cause: switchyard_core::Error,
    },
    /// The file with the join token cannot be used. Nothing of it is shown.
    #[error("cannot use the join token in {}: {reason}", path.display())]
    TokenFile {
        /// The file, of `swarm.join_token_file`.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// The daemon ends.
    #[error("the daemon is stopping; the join or leave continues when it runs again")]
    Stopping,
    /// No manager could be reached.
    #[error("cannot connect to the manager {manager}; it listens on TCP port 2377 by default")]
    Unreachable {
        /// The address.
        manager: String,
        /// The cause.
        #[source]
        cause: BoxedError,
    },
    /// A manager did not answer in time.
    #[error("the manager {manager} did not answer {call} within {} s", limit.as_secs())]
    NoAnswer {
        /// The address.
        manager: String,
        /// The name of the call.
        call: &'static str,
        /// The limit that has passed.
        limit: Duration,
    },
    /// A manager answered with an error.
    #[error("the manager {manager} refused {call}: {}", beginning(status.message(), TEXT_MAX))]
    Refused {
        /// The address.
        manager: String,
        /// The name of the call.
        call: &'static str,
        /// Its answer.
        status: Box<tonic::Status>,
    },
    /// A manager's answer makes no sense.
    #[error("the answer of the manager {manager} to {call} cannot be used: {reason}")]
    InvalidAnswer {
        /// The address.
        manager: String,
        /// The name of the call.
        call: &'static str,
        /// The defect.
        reason: String,
    },
    /// No manager is known.
    #[error(
        "no manager of the swarm is known any more; run `switchyard swarm leave`, and join again"
    )]
    NoManager,
    /// A file of the identity cannot be read or written.
    #[error("cannot {verb} {}", path.display())]
    File {
        /// The failed action.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// The disk takes too long. What was to be written may still be.
    #[error("the disk does not read or write {} in time; `switchyard swarm status` shows the state of the membership", path.display())]
    DiskLate {
        /// The directory of the identity.
        path: PathBuf,
    },
    /// A file of the identity has been changed or damaged.
    #[error("{} is not usable: {reason}; run `switchyard swarm leave`, and join again", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// The cryptographic library failed.
    #[error("cannot {verb}: {reason}")]
    Cryptography {
        /// The failed action.
        verb: &'static str,
        /// The library's message.
        reason: String,
    },
}

/// An error of a library.
pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;

impl From<ReplaceError> for Error {
    fn from(error: ReplaceError) -> Self {
        let ReplaceError {
            doing,
            path,
            source,
        } = error;
        Self::File {
            verb: doing,
            path,
            cause: source,
        }
    }
}

impl Error {
    /// The class of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidToken { .. } => ErrorKind::InvalidArgument,
            Self::FipsCluster => ErrorKind::Unimplemented,
            Self::AlreadyJoined { .. } => ErrorKind::AlreadyExists,
            Self::Abandoned => ErrorKind::Cancelled,
            Self::Stopping => ErrorKind::Unavailable,
            Self::TasksLeft { cause } => cause.kind(),
            Self::OtherRoot { .. }
            | Self::InvalidCertificate { .. }
            | Self::ManagerRole { .. }
            | Self::CertificateRefused { .. }
            | Self::CertificateExpired { .. }
            | Self::CertificateNotValidYet { .. }
            | Self::Removed { .. }
            | Self::NotJoined
            | Self::StillMember { .. }
            | Self::Busy { .. }
            | Self::TokenFile { .. }
            | Self::NoManager => ErrorKind::FailedPrecondition,
            Self::CertificateLate { .. } | Self::NoAnswer { .. } | Self::DiskLate { .. } => {
                ErrorKind::DeadlineExceeded
            }
            Self::Unreachable { .. } | Self::Refused { .. } | Self::InvalidAnswer { .. } => {
                ErrorKind::Unavailable
            }
            Self::File { .. } | Self::InvalidFile { .. } | Self::Cryptography { .. } => {
                ErrorKind::Internal
            }
        }
    }

    /// Returns whether the cause may end without intervention: a wrong clock, which is set some time after
    /// boot, or a disk that hangs.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::CertificateExpired { .. }
                | Self::CertificateNotValidYet { .. }
                | Self::DiskLate { .. }
        )
    }

    /// Returns whether only an operator can remove the cause, so that the node does not retry.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        match self {
            Self::InvalidToken { .. }
            | Self::FipsCluster
            | Self::OtherRoot { .. }
            | Self::ManagerRole { .. }
            | Self::CertificateRefused { .. }
            | Self::CertificateExpired { .. }
            | Self::Removed { .. }
            | Self::AlreadyJoined { .. }
            | Self::NotJoined
            | Self::StillMember { .. }
            | Self::NoManager
            | Self::InvalidFile { .. } => true,
            Self::InvalidCertificate { .. }
            | Self::CertificateNotValidYet { .. }
            | Self::Busy { .. }
            | Self::Abandoned
            | Self::TasksLeft { .. }
            | Self::TokenFile { .. }
            | Self::Stopping
            | Self::CertificateLate { .. }
            | Self::Unreachable { .. }
            | Self::NoAnswer { .. }
            | Self::Refused { .. }
            | Self::InvalidAnswer { .. }
            | Self::File { .. }
            | Self::DiskLate { .. }
            | Self::Cryptography { .. } => false,
        }
    }

    /// The error with all its causes, on one line.
    #[must_use]
    pub fn report(&self) -> String {
        report(self)
    }
}

impl From<Error> for switchyard_core::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error.report())
    }
}

/// Maximum number of bytes quoted from a manager's message.
const TEXT_MAX: usize = 500;
