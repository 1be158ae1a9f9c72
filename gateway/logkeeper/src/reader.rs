//! Reads logs of containers: those in the CRI format, which the logkeeper and other runtimes write, and plain text,
//! as Nomad agents write it.
//!
//! ```text
//! LogLocation ─► LogDir (beneath its root, no links) ─► rotated files, oldest first, and the newest
//!         seek, start: last lines, since a time ─► Window ─► EntryHead ─► LogPiece
//! ```
//!
//! - Whatever the files contain, and however they are changed meanwhile, a reader uses bounded memory and never
//!   waits: lines of any length are passed on in pieces, malformed ones marked as such, and only regular files are
//!   opened.
//! - A file is opened beneath the directory that an orchestrator chose, without following links: a container can
//!   write to a directory of the host that it has mounted.
//! - To find where the last lines begin, at most 256 MiB are decompressed, those of one file twice. Older
//!   lines are left out then, which [`LogReader::take_omitted`] reports.
//! - A reader whose [`ReadWaiter`] was dropped ends by itself.
//! - A follower loses and repeats no line when the log is rotated (the file is renamed, and one with its name
//!   created), nor when the logkeeper was killed and writes its last batch again (`replay`).
//!
//! Calls block on the file system. A follower calls [`LogReader::next_piece`] again, after a pause, when it has returned
//! `None`.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod check;
mod cri;
mod dir;
mod entry;
mod error;
mod plain;
mod query;
mod replay;
pub(crate) mod rotation;
mod scan;
mod seek;
mod start;
#[cfg(test)]
mod tests;
mod text;
mod waiter;
mod window;

use std::path::Path;

use crate::format::Stream;
use cri::CriReader;
use plain::PlainReader;

pub use error::ReadError;
pub use query::{LogLocation, LogPiece, LogQuery};
pub use waiter::{ReadInterest, ReadWaiter};

/// Reads the log of one container.
#[derive(Debug)]
pub struct LogReader(Format);

#[derive(Debug)]
enum Format {
    Cri(Box<CriReader>),
    Plain(Vec<PlainReader>),
}

// === impl LogReader ===

impl LogReader {
    /// Opens a log, and finds where the part begins that is wanted. A follower may open one that is not there yet.
    ///
    /// # Errors
    /// [`ReadError`]; `Absent` if there is no file of this log.
    pub fn open(
        location: &LogLocation,
        query: &LogQuery,
        interest: &ReadInterest,
    ) -> Result<Self, ReadError> {
        let format = match location {
            LogLocation::Cri { root, path } => {
                check_beneath(path)?;
                Format::Cri(Box::new(CriReader::open(
                    root,
                    path,
                    query,
                    interest.clone(),
                )?))
            }
            LogLocation::Plain { root, dir, name } => {
                check_beneath(dir)?;
                if name.is_empty() || name.contains(['/', '\0']) {
                    return Err(ReadError::Path(dir.join(name)));
                }
                if query.since.is_some() {
                    return Err(ReadError::NoTimes(root.join(dir).join(name)));
                }
                let streams = Stream::ALL
                    .into_iter()
                    .filter(|stream| query.stream.is_none_or(|one| one == *stream));
                let readers = streams.map(|stream| {
                    PlainReader::open(root, dir, name, stream, query, interest.clone())
                });
                let readers = readers.collect::<Result<Vec<_>, _>>()?;
                if !query.follow && readers.iter().all(PlainReader::is_absent) {
                    return Err(ReadError::Absent(
                        root.join(dir).join(format!("{name}.stdout.0")),
                    ));
                }
                Format::Plain(readers)
            }
        };
        Ok(Self(format))
    }

    /// The next piece; `None` if all that was written was read. A follower may call it again later.
    ///
    /// # Errors
    /// [`ReadError`]: the log cannot be read on.
    pub fn next_piece(&mut self) -> Result<Option<LogPiece<'_>>, ReadError> {
        match &mut self.0 {
            Format::Cri(reader) => reader.next_piece(),
            Format::Plain(readers) => {
                for reader in readers {
                    if reader.advance()? {
                        return Ok(reader.piece());
                    }
                }
                Ok(None)
            }
        }
    }

    /// Ends the log: nothing will be written any more. A torn line at the end is passed on then, marked as
    /// malformed; before, it is taken for one that is being written.
    pub const fn end(&mut self) {
        match &mut self.0 {
            Format::Cri(reader) => reader.end(),
            Format::Plain(_) => {}
        }
    }

    /// The omissions since the last call: files that cannot be read, and lines older than the search limit.
    pub fn take_omitted(&mut self) -> Vec<ReadError> {
        match &mut self.0 {
            Format::Cri(reader) => reader.take_omitted(),
            Format::Plain(_) => Vec::new(),
        }
    }
}

/// Checks a path beneath a root: it is relative, and names nothing above.
fn check_beneath(path: &Path) -> Result<(), ReadError> {
    use std::path::Component;
    let is_plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if is_plain && path.file_name().is_some() {
        Ok(())
    } else {
        Err(ReadError::Path(path.to_owned()))
    }
}
