//! What is read, and what is returned.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::entry::to_unix;
use crate::format::Stream;

/// Where the log of a container is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogLocation {
    /// A file in the CRI format, with its rotated files beside it.
    Cri {
        /// A directory that an orchestrator chose. Links on the way to it are followed, none beneath it.
        root: PathBuf,
        /// The path of the file beneath it.
        path: PathBuf,
    },
    /// Files of plain text without times, `NAME.stdout.0`, `NAME.stderr.0` and so on.
    Plain {
        /// As for CRI.
        root: PathBuf,
        /// The path of their directory beneath it.
        dir: PathBuf,
        /// What their names begin with.
        name: String,
    },
}

/// Which part of a log is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// So many lines at the end; of plain text, of each stream.
    pub tail: Option<u64>,
    /// Only entries that are not older.
    pub since: Option<SystemTime>,
    /// Only one stream.
    pub stream: Option<Stream>,
    /// Whether what is written later is read too.
    pub follow: bool,
}

/// A line of output, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPiece<'a> {
    /// When it was written, as the log says, in RFC 3339; `None` in plain text and for malformed lines.
    pub time: Option<&'a str>,
    /// Where it was written to. Malformed lines count as standard output.
    pub stream: Stream,
    /// The text, without line ends.
    pub text: &'a [u8],
    /// Whether the line of output ends here. If not, it continues with the stream's next piece.
    pub is_ended: bool,
    /// Whether the line is not in the log's format, or is torn.
    pub is_malformed: bool,
}

// === impl LogPiece ===

impl LogPiece<'_> {
    /// When it was written, as the time since 1970; `None` if it has no time.
    #[must_use]
    pub fn since_epoch(&self) -> Option<Duration> {
        self.time.and_then(to_unix)
    }
}
