//! Queries of a log, and the pieces that they return.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::entry::to_unix;
use crate::format::Stream;

/// Location of a container's log.
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
        /// Beginning of their names.
        name: String,
    },
}

/// Selection of a part of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// So many lines at the end; of plain text, of each stream.
    pub tail: Option<u64>,
    /// Only entries that are not older.
    pub since: Option<SystemTime>,
    /// Only one stream.
    pub stream: Option<Stream>,
    /// True if what is written later is read too.
    pub follow: bool,
}

/// A line of output, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPiece<'a> {
    /// Time of the line according to the log, in RFC 3339; `None` in plain text and for malformed lines.
    pub time: Option<&'a str>,
    /// Stream of the line. Malformed lines count as standard output.
    pub stream: Stream,
    /// The text, without line ends.
    pub text: &'a [u8],
    /// True if the line of output ends here. If not, it continues with the stream's next piece.
    pub is_ended: bool,
    /// True if the line is not in the log's format, or is torn.
    pub is_malformed: bool,
}

// === impl LogPiece ===

impl LogPiece<'_> {
    /// Time of the line, as the time since 1970; `None` if it has no time.
    #[must_use]
    pub fn since_epoch(&self) -> Option<Duration> {
        self.time.and_then(to_unix)
    }
}
