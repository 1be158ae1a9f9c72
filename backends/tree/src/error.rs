//! The errors of walks over trees.

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

/// Reason why a walk ended early. Files that were removed or copied until then stay so.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// [`crate::Cancel::cancel`] was called, or as many entries as [`crate::Cancel::after`] allows were
    /// visited.
    #[error("cancelled")]
    Cancelled,
    /// A file system or a directory is mounted in the tree. It is not entered.
    #[error("something is mounted at {0}: unmount it first")]
    Mounted(Place),
    /// Other processes move directories, or create entries faster than they can be removed.
    #[error("other processes keep changing it: end the processes that write there first")]
    Changing,
    /// The copy would exceed its budget.
    #[error("it takes more than {most} {unit}")]
    TooLarge {
        /// Bytes or inodes.
        unit: &'static str,
        /// The budget.
        most: u64,
    },
    /// The kernel refused an operation.
    #[error("{doing} {place}")]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        /// The entry.
        place: Place,
        /// The kernel's error.
        source: io::Error,
    },
}

/// An entry of a tree, for messages. A path may be megabytes long, so this is only its last name and its
/// depth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub name: Vec<u8>,
    /// The number of directories between it and the top of the tree.
    pub depth: usize,
}

// === impl Place ===

impl Place {
    pub(crate) fn new(name: &CStr, depth: usize) -> Self {
        Self {
            name: name.to_bytes().to_vec(),
            depth,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = OsStr::from_bytes(&self.name);
        match self.depth {
            0 => write!(f, "{name:?}"),
            depth => write!(f, "{name:?}, {depth} levels down"),
        }
    }
}

// === impl Error ===

impl Error {
    /// The error of an operation on an entry.
    pub(crate) fn io(doing: &'static str, name: &CStr, depth: usize) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Io {
            doing,
            place: Place::new(name, depth),
            source: errno.into(),
        }
    }

    /// Returns whether the disk is full, a quota is exhausted, or the copy is too large.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::TooLarge { .. } => true,
            Self::Io { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                )
            }
            Self::Cancelled | Self::Mounted(_) | Self::Changing => false,
        }
    }
}
