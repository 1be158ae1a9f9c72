//! What can go wrong with a cgroup.

use std::io;
use std::path::PathBuf;

use switchyard_core::ErrorKind;

/// The result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done with a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the kernel could not be read or written, though it is there.
    #[error("{} cannot be used", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// No cgroup hierarchy is mounted.
    #[error("no cgroup hierarchy is mounted; mount one below /sys/fs/cgroup")]
    NoHierarchy,
    /// The text names no cgroup.
    #[error("{text:?} names no cgroup: {why}")]
    InvalidGroup {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Its processes fork faster than they can be gone through.
    #[error("processes of cgroup {group} are forked faster than they can be changed")]
    Restless {
        /// The cgroup.
        group: String,
    },
    /// It still has processes after all attempts to remove it.
    #[error("cgroup {} still has processes; kill them first", path.display())]
    Busy {
        /// The directory that is left.
        path: PathBuf,
        /// What the kernel said last.
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
