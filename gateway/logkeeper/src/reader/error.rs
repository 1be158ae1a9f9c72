//! The errors of reading a log.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// Maximum number of bytes that are decompressed to find the start, without the second pass over one file. A
/// kubelet keeps logs of 50 MiB by default, and a log of some kilobytes can expand to gigabytes.
pub(super) const SEARCH_MAX: u64 = 256 << 20;

/// Reason why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no such file or directory.
    #[error("there is no {}", .0.display())]
    Absent(PathBuf),
    /// A directory, FIFO, device or socket.
    #[error("{} is not a regular file and is not read", .0.display())]
    NotRegular(PathBuf),
    /// A container may have made a link to a file that is not its own.
    #[error("{} leads through a symbolic link or out of the log directory and is not read", .0.display())]
    Link(PathBuf),
    /// A path that names no file of a log.
    #[error("{0:?} is no path of a log file")]
    Path(PathBuf),
    /// Plain text has no times.
    #[error("the log {} is plain text without times: read it without a time, for example its last lines", .0.display())]
    NoTimes(PathBuf),
    /// The beginning of what is wanted was not found within the bound on what is decompressed to find it.
    #[error(
        "the lines in {} and before it are left out: to find where the wanted ones begin, more than {} MiB would be \
         decompressed; read the log without a number of lines or a time",
        .0.display(),
        SEARCH_MAX >> 20
    )]
    SearchTooLong(PathBuf),
    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The operation, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

// === impl ReadError ===

impl ReadError {
    /// The error for a file or directory that cannot be opened.
    pub(super) fn of_open(path: PathBuf, errno: Errno) -> Self {
        match errno {
            Errno::LOOP | Errno::XDEV => Self::Link(path),
            Errno::NOENT => Self::Absent(path),
            errno => Self::File {
                action: "open",
                path,
                source: io::Error::from(errno),
            },
        }
    }
}
