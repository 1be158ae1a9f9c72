//! The reasons for which the daemon does not start, or ends.

use std::io;
use std::net::SocketAddr;

use switchyard_config::{DefaultsError, SettleError};
use switchyard_core::ErrorKind;
use switchyard_socket::listener::ListenError;
use switchyard_streaming::BindError;
use switchyard_telemetry::TraceSettingsError;

use crate::credentials::CredentialError;
use crate::lock::LockError;
use crate::network_defaults::NetworkDefaultsError;

/// The reason why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The directories cannot be used, or another daemon uses them.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It is not known which defaults the networks of this node have.
    #[error(transparent)]
    NetworkDefaults(#[from] NetworkDefaultsError),
    /// A socket cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The admin address cannot be served.
    #[error("cannot listen on {address}: choose another address in admin.listen")]
    Admin {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The streaming server cannot be set up.
    #[error("cannot serve exec, attach and port-forward: see [cri.streaming] of the configuration")]
    Streaming(#[source] BindError),
    /// The metrics address cannot be served.
    #[error("cannot listen on {address}: choose another address in admin.metrics_listen")]
    MetricsListener {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The certificate or the token of the metrics address is unusable.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// Traces cannot be exported.
    #[error(transparent)]
    Traces(#[from] TraceSettingsError),
    /// A metric has a name that Prometheus does not allow.
    #[error("cannot set up metrics")]
    Metrics(#[source] prometheus::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
    /// The backend's settings are invalid.
    #[error("cannot set up the backend")]
    Backend(#[source] switchyard_core::Error),
    /// A part failed.
    #[error("{0}")]
    Part(String),
}

/// The chance that the same start succeeds later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// None, until somebody changes something on the node.
    Permanent,
    /// The cause may end by itself.
    Passing,
    /// Unknown.
    Unknown,
}

impl ServeError {
    /// The chance of the next start.
    #[must_use]
    pub fn outlook(&self) -> Outlook {
        match self {
            Self::Lock(LockError::Held { .. }) => Outlook::Passing,
            Self::Lock(LockError::ReadOnly { .. })
            | Self::Listen(ListenError::InTheWay(_) | ListenError::NoGroup(_))
            | Self::Streaming(BindError::Tls(_) | BindError::BaseUrl { .. })
            | Self::Credentials(_)
            | Self::Traces(_)
            | Self::NetworkDefaults(NetworkDefaultsError::Settle(
                SettleError::Defaults(DefaultsError::Damaged { .. }) | SettleError::Config(_),
            )) => Outlook::Permanent,
            Self::NetworkDefaults(
                NetworkDefaultsError::Settle(SettleError::Defaults(DefaultsError::Read {
                    source,
                    ..
                }))
                | NetworkDefaultsError::Write { source, .. },
            )
            | Self::Lock(LockError::File { source, .. })
            | Self::Listen(ListenError::Bind { source, .. })
            | Self::Streaming(BindError::Listen { source, .. })
            | Self::Admin { source, .. }
            | Self::MetricsListener { source, .. } => Outlook::of_io(source),
            Self::Backend(error) => Outlook::of_kind(error.kind()),
            Self::Metrics(_) | Self::Signals(_) | Self::Part(_) => Outlook::Unknown,
        }
    }
}

impl Outlook {
    /// The outlook of an error of the system.
    #[must_use]
    pub fn of_io(error: &io::Error) -> Self {
        use io::ErrorKind::{
            AddrInUse, AddrNotAvailable, IsADirectory, NotADirectory, NotFound, OutOfMemory,
            PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, ResourceBusy, StorageFull,
            TimedOut,
        };
        let kind = error.kind();
        if matches!(
            kind,
            AddrInUse
                | AddrNotAvailable
                | OutOfMemory
                | QuotaExceeded
                | ResourceBusy
                | StorageFull
                | TimedOut
        ) {
            Self::Passing
        } else if matches!(
            kind,
            IsADirectory | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem
        ) {
            Self::Permanent
        } else {
            Self::Unknown
        }
    }

    const fn of_kind(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidArgument
            | ErrorKind::FailedPrecondition
            | ErrorKind::Unimplemented => Self::Permanent,
            ErrorKind::Unavailable | ErrorKind::ResourceExhausted | ErrorKind::DeadlineExceeded => {
                Self::Passing
            }
            ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::Unauthenticated
            | ErrorKind::Cancelled
            | ErrorKind::Internal => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: ServeError, expected: Outlook) {
        assert_eq!(error.outlook(), expected, "{error}");
    }

    #[test]
    fn errors_that_somebody_must_mend_differ_from_those_that_pass() {
        let address = "127.0.0.1:9640".parse().unwrap();
        let admin = |kind: io::ErrorKind| ServeError::Admin {
            address,
            source: kind.into(),
        };
        check(admin(io::ErrorKind::AddrInUse), Outlook::Passing);
        check(admin(io::ErrorKind::PermissionDenied), Outlook::Permanent);
        check(admin(io::ErrorKind::BrokenPipe), Outlook::Unknown);
        let dir = "/var/lib/switchyard".into();
        let held = LockError::Held {
            dir,
            holder: "process 1".into(),
        };
        check(held.into(), Outlook::Passing);
        check(ListenError::NoGroup("x".into()).into(), Outlook::Permanent);
        let invalid = switchyard_core::Error::invalid("runtime", "it is unknown".to_owned());
        check(ServeError::Backend(invalid), Outlook::Permanent);
        let full = NetworkDefaultsError::Write {
            path: "/var/lib/switchyard/x".into(),
            source: io::ErrorKind::StorageFull.into(),
        };
        check(full.into(), Outlook::Passing);
        check(
            ServeError::Part("recovery panicked".into()),
            Outlook::Unknown,
        );
    }
}
