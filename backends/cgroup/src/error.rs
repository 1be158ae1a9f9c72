//! The errors of operations on cgroups.

use std::io;
use std::path::PathBuf;

use switchyard_core::ErrorKind;

/// The result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why an operation on a cgroup failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An existing file of the kernel could not be read or written.
    #[error("{} cannot be read or written", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// No cgroup hierarchy is mounted.
    #[error("no cgroup hierarchy is mounted; mount one below /sys/fs/cgroup")]
    NoHierarchy,
    /// The text does not name a cgroup.
    #[error("{text:?} does not name a cgroup: {why}")]
    InvalidGroup {
        /// The text.
        text: String,
        /// The fault of the path.
        why: &'static str,
    },
    /// Its processes fork faster than they can be changed.
    #[error("processes of cgroup {group} are forked faster than they can be changed")]
    Restless {
        /// The cgroup.
        group: String,
    },
    /// It still has processes after all attempts to remove it.
    #[error("cgroup {} still has processes; kill them first", path.display())]
    Busy {
        /// The directory that was not removed.
        path: PathBuf,
        /// The last error of the kernel.
        #[source]
        source: io::Error,
    },
}

impl From<Error> for switchyard_core::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::File { .. } => ErrorKind::Internal,
            Error::NoHierarchy | Error::Restless { .. } => ErrorKind::Unavailable,
            Error::InvalidGroup { .. } => ErrorKind::InvalidArgument,
            Error::Busy { .. } => ErrorKind::FailedPrecondition,
        };
        Self::new(kind, "cgroup operation failed").with_source(error)
    }
}
