//! The control protocol, version 1: newline-delimited JSON over a unix stream socket.
//!
//! A client sends [`Request::Hello`] first and then one request at a time; each gets one [`Reply`]. A line
//! has at most [`MAX_LINE`] bytes in either direction, which is why [`Request::List`] is paged.
//!
//! The daemon and the logkeeper are upgraded one after the other, in either direction. So a reply may have fields
//! that the client does not know, and lack those that it knows, which have defaults. A request has no field that
//! the logkeeper might not know: a field that a later version adds is sent only to a logkeeper whose [`Welcome`]
//! offers it. The `compatibility` tests hold the messages of the first version.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::format::Stream;

mod file_systems;

pub use file_systems::{LogFileSystem, MAX_FULL_PIPES, MAX_MOUNT_POINT, WriteBucket, WriteTimes};

/// The version that this crate speaks; a logkeeper refuses every other.
pub const VERSION: u32 = 1;

/// The longest request or reply, newline included, in bytes.
pub const MAX_LINE: usize = 64 * 1024;

/// The longest container id, in bytes.
pub const MAX_ID: usize = 128;

/// The most entries in one [`Page`]; with the longest ids they fit into a line.
pub const PAGE_LEN: usize = 100;

/// The most descriptors that are stored; with the longest names and notes their list fits into a line.
pub const MAX_DESCRIPTORS: usize = 64;

/// The longest name of a stored descriptor, in bytes.
pub const MAX_NAME: usize = 64;

/// The longest note of a stored descriptor, in bytes.
pub const MAX_NOTE: usize = 256;

/// The longest time a [`Request::Finish`] may drain, in milliseconds.
pub const MAX_DRAIN_MS: u64 = 60_000;

/// The output of one container and where it is logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSpec {
    /// The container's id: 1 to [`MAX_ID`] letters, digits, `.`, `_` and `-`, not starting with a dot.
    pub id: String,
    /// The FIFO of standard output, as an absolute path; it must exist.
    pub stdout: Option<PathBuf>,
    /// The FIFO of standard error; not with `tty`, where all output comes on `stdout`.
    pub stderr: Option<PathBuf>,
    /// The log file, as an absolute path; it and its directories are created. Without one, output is sent to
    /// attached clients only.
    pub log: Option<PathBuf>,
    /// True if the container has a terminal.
    pub tty: bool,
    /// The most bytes of content in one log line, from 1 to [`crate::format::MAX_LINE_LIMIT`].
    pub max_line: u32,
}

/// The requests of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Begins a connection; answered by [`Welcome`].
    Hello {
        /// The version the client speaks.
        version: u32,
    },
    /// Starts to log a container; answered by [`Done`]. Idempotent; other parameters for an open id are a
    /// [`FaultKind::Conflict`].
    Open(LogSpec),
    /// Creates the log file again after it was renamed, and closes the old one; answered by [`Done`]. If it is refused, or
    /// the client has closed the connection before it is carried out, the old one stays in use, also later. If the
    /// connection breaks while the answer is on its way, either may be in use.
    Reopen {
        /// The container's id.
        id: String,
    },
    /// Logs the remaining output and forgets the container; answered by [`Finished`], with zeros for an
    /// unknown id.
    Finish {
        /// The container's id.
        id: String,
        /// Time for the writers of the FIFOs to close them, in milliseconds; 0 reads only present content.
        drain_ms: u64,
    },
    /// Forgets a container whose log is on a file system that hangs, without the rest of its output; answered by
    /// [`Finished`], with zeros for an unknown id, and with what was not logged among what was dropped. The file
    /// system may still write what it was given last. [`FaultKind::Busy`] if it answers: finish the container then;
    /// also while another call counts what was not logged. [`FaultKind::Io`] if the container's files cannot be removed.
    /// Logkeepers that do not support this refuse it.
    Abandon {
        /// The container's id.
        id: String,
    },
    /// Lists containers in the order of their ids; answered by [`Page`].
    List {
        /// Skips ids up to and including this one.
        after: Option<String>,
    },
    /// Reads the sums over all containers; answered by [`Stats`].
    Stats,
    /// Announces one byte with a socket as its ancillary data. The byte must be sent after [`Done`], and is
    /// answered by [`Done`] again. The logkeeper holds the socket open until [`Request::Release`]. If the
    /// connection breaks before that, it holds the socket for three more minutes, or until the other end
    /// closes it. Logkeepers that do not support this refuse it.
    Hold {
        /// The other end handles one call at a time: if it sends anything after the connection broke, the
        /// call is done, and the socket is closed. Logkeepers that do not know this field treat it as false.
        #[serde(default)]
        one_call: bool,
    },
    /// Closes all sockets that were sent over this connection; answered by [`Done`].
    Release,
    /// Announces one byte with a socket as its ancillary data, which is stored under a name for a later client. The byte
    /// must be sent after [`Done`], and is answered by [`Done`] again. A descriptor of this name that was stored before is
    /// closed. The new one is stored until a minute after this connection has ended, or until a client stores another
    /// one. [`FaultKind::Busy`] if [`MAX_DESCRIPTORS`] are stored. Only for logkeepers whose [`Welcome`] offers it.
    Put {
        /// The descriptor's name: 1 to [`MAX_NAME`] letters, digits, `.`, `_` and `-`.
        name: String,
        /// Text for the client that takes it: at most [`MAX_NOTE`] printable ASCII characters.
        note: String,
    },
    /// Reads a stored descriptor; answered by [`Taken`], after which the client sends one byte, and gets one byte with the
    /// descriptor as its ancillary data, and [`Done`]. It stays stored for as long as before: a client that wants to
    /// keep it puts it again. [`FaultKind::NotFound`] if there is none. Only for logkeepers whose [`Welcome`] offers it.
    Take {
        /// The descriptor's name.
        name: String,
    },
    /// Lists the stored descriptors; answered by [`Descriptors`]. Only for logkeepers whose [`Welcome`] offers it.
    Descriptors,
    /// Attaches to one output stream; answered by [`Attached`], after which the connection carries only the
    /// stream's bytes. It is closed when the container is finished, and when the logkeeper ends. A client
    /// that gets [`FaultKind::NotFound`] when it attaches again has received all output. Logkeepers that do
    /// not support this refuse it.
    Attach {
        /// The container's id.
        id: String,
        /// The stream.
        stream: Stream,
        /// Continues at this offset, or at the first one after it that is still in the spool; `None` starts
        /// with new output.
        from: Option<u64>,
    },
    /// Ends the logkeeper; answered by [`Done`]. The next logkeeper recovers the containers.
    Shutdown,
}

/// The answer to a request: its body, or the fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// The request was carried out.
    Ok(T),
    /// The request was refused or failed.
    Error(Fault),
}

/// Reason why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The class of the failure, for programs.
    pub kind: FaultKind,
    /// The failed operation and its object, for people.
    pub message: String,
}

/// The classes of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// A field of the request is malformed, or names something that cannot be used.
    InvalidArgument,
    /// No container has this id.
    NotFound,
    /// The id is in use with other parameters.
    Conflict,
    /// The container is being finished or forgotten, its file system hangs, or the logkeeper is shutting down; retry.
    Busy,
    /// A file operation failed.
    Io,
    /// The logkeeper does not speak the protocol version.
    Unsupported,
    /// A class that only a later version knows.
    #[serde(other)]
    Other,
}

/// An answer without content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// The answer to [`Request::Attach`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The offset of the first byte that follows on the connection.
    pub from: u64,
}

/// The answer to [`Request::Take`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The note with which the descriptor was put.
    pub note: String,
}

/// The answer to [`Request::Descriptors`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptors {
    /// The stored descriptors in the order of their names.
    pub entries: Vec<DescriptorEntry>,
}

/// One stored descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorEntry {
    /// Its name.
    pub name: String,
    /// The note with which it was put.
    pub note: String,
    /// True if the client that put it is connected; otherwise it is closed within a minute.
    pub claimed: bool,
}

/// The answer to [`Request::Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version that the logkeeper speaks.
    pub version: u32,
    /// The logkeeper's process id.
    pub pid: u32,
    /// The version of the build that the logkeeper runs; empty from those that do not send it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build: String,
    /// The most descriptors that the logkeeper stores; 0 from those that do not send it and do not store any.
    #[serde(default)]
    pub descriptors: u32,
}

/// A container's counters since it was opened; kills of the logkeeper do not reset them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Log lines written, partial ones included.
    pub lines: u64,
    /// Bytes of content written, line ends and prefixes left out.
    pub bytes: u64,
    /// Log lines that could not be written.
    pub dropped_lines: u64,
    /// Bytes of content that could not be written.
    pub dropped_bytes: u64,
}

/// The answer to [`Request::Finish`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Log lines written, partial ones included.
    pub lines: u64,
    /// Bytes of content written.
    pub bytes: u64,
    /// Log lines that could not be written.
    pub dropped_lines: u64,
    /// Bytes of content that could not be written.
    pub dropped_bytes: u64,
}

/// One container in a [`Page`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The container's id.
    pub id: String,
    /// Its counters.
    pub counters: Counters,
    /// True if a [`Request::Finish`] is in progress.
    pub finishing: bool,
}

/// The answer to [`Request::List`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Containers in the order of their ids.
    pub entries: Vec<Entry>,
    /// The `after` of the next page; `None` on the last.
    pub next: Option<String>,
}

/// The answer to [`Request::Stats`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Containers that are logged at present.
    pub containers: u64,
    /// Containers that this logkeeper recovered from an earlier one when it started.
    pub recovered: u64,
    /// Containers finished since this logkeeper started.
    pub finished: u64,
    /// File systems that have not answered for seconds and block the logs on them. Older logkeepers do not
    /// send it.
    #[serde(default)]
    pub stalled: u64,
    /// Containers whose logs these file systems block. Older logkeepers do not send it.
    #[serde(default)]
    pub stalled_containers: u64,
    /// Time for which the longest-blocked file system has not answered, in milliseconds; 0 if none blocks.
    /// Older logkeepers do not send it.
    #[serde(default)]
    pub stall_age_ms: u64,
    /// Number of times that a file system has not answered for seconds since this logkeeper started, the
    /// present ones included. Older logkeepers do not send it.
    #[serde(default)]
    pub stalls: u64,
    /// Sums over all containers since this logkeeper started. Of older ones, which send no `pid`, they include what earlier
    /// logkeepers have counted of the containers that it recovered.
    pub totals: Counters,
    /// The process that counts. Older logkeepers do not send it: 0.
    #[serde(default)]
    pub pid: u32,
    /// The file systems with logs, few in number. Older logkeepers do not send it.
    #[serde(default)]
    pub file_systems: Vec<LogFileSystem>,
}

// === impl Fault ===

impl Fault {
    /// Makes a fault.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

// === impl Counters ===

impl Counters {
    /// Adds another container's counters.
    pub(crate) fn add(&mut self, other: Self) {
        self.lines = self.lines.saturating_add(other.lines);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.dropped_lines = self.dropped_lines.saturating_add(other.dropped_lines);
        self.dropped_bytes = self.dropped_bytes.saturating_add(other.dropped_bytes);
    }

    /// The difference from earlier counters of the same containers.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            lines: self.lines.saturating_sub(earlier.lines),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            dropped_lines: self.dropped_lines.saturating_sub(earlier.dropped_lines),
            dropped_bytes: self.dropped_bytes.saturating_sub(earlier.dropped_bytes),
        }
    }
}

// === impl Finished ===

impl From<Counters> for Finished {
    fn from(
        Counters {
            lines,
            bytes,
            dropped_lines,
            dropped_bytes,
        }: Counters,
    ) -> Self {
        Self {
            lines,
            bytes,
            dropped_lines,
            dropped_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
