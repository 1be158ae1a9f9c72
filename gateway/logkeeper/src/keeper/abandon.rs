//! A container is given up: it is removed while the file system of its log hangs, so its end cannot be awaited.
//!
//! ```text
//! task told ─► rest of the output counted ─► files removed ─► client answered ┄► file system answers ─► task ends
//! ```
//!
//! The task may be opening the container when it is told, and creates files when the file system answers. It looks again
//! after that, and removes them itself.

use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{Table, io_fault};
use crate::container::{LAST_DRAIN, lock};
use crate::fifo;
use crate::format::Stream;
use crate::position::PositionFile;
use crate::protocol::{Fault, FaultKind, Finished, LogSpec};
use crate::state_dir::EntryPaths;

/// How much is read at once.
const CHUNK: usize = 64 * 1024;

/// Output that does not get into a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Loss {
    /// Lines, an unfinished one of each stream included.
    lines: u64,
    /// Bytes, line ends left out.
    bytes: u64,
    /// Whether the last line has no end yet.
    is_unfinished: bool,
}

// === impl Table ===

impl Table {
    /// Forgets a container whose log is on a file system that hangs: removes its files from the state directory, so that
    /// no later logkeeper recovers it, and has its task drop the rest when the file system answers. Idempotent.
    pub(super) fn abandon(&mut self, id: &str) -> Result<Finished, Fault> {
        let removed =
            |table: &Self| table.shared.state.remove(id).map_err(|error| io_fault("forget", id, &error));
        if self.abandoned.contains_key(id) {
            return removed(self).map(|()| Finished::default());
        }
        let Some(container) = self.find(id)? else { return Ok(Finished::default()) };
        let Err(stalled) = container.handle.stalled(id) else {
            let why = format!("the file system of the log of container {id} answers: finish it");
            return Err(Fault::new(FaultKind::Busy, why));
        };
        let Some(container) = self.live.remove(id) else { return Ok(Finished::default()) };
        // From here on the task writes nothing to the state directory that it does not remove itself.
        container.handle.progress().abandon();
        let mut counters = *lock(&container.counters);
        let lost = Loss::of(&container.spec, &self.shared.state.paths(id));
        counters.dropped_lines = counters.dropped_lines.saturating_add(lost.lines);
        counters.dropped_bytes = counters.dropped_bytes.saturating_add(lost.bytes);
        tracing::warn!(
            id,
            cause = %stalled,
            lines = lost.lines,
            bytes = lost.bytes,
            "a container is given up: the rest of its output is not logged"
        );
        self.finished += 1;
        self.finished_totals.add(counters);
        self.abandoned.insert(id.to_owned(), container);
        removed(self).map(|()| counters.into())
    }

    /// Forgets the containers that were given up and whose tasks have ended since.
    pub(super) fn forget_abandoned(&mut self) {
        self.abandoned.retain(|_, container| !container.handle.is_closed());
    }
}

// === impl Loss ===

impl Loss {
    /// Counts the output of a container in its spools and FIFOs, for which its task, which the file system blocks, is not
    /// asked. What that was just writing is counted too: nobody knows whether the file system still writes it.
    ///
    /// Takes the content of the FIFOs. A file that cannot be read counts as empty.
    fn of(spec: &LogSpec, paths: &EntryPaths) -> Self {
        let position = PositionFile::open(&paths.position).ok().and_then(|(_, position)| position);
        let mut loss = Self::default();
        for (stream, path) in Stream::ALL.into_iter().zip([&spec.stdout, &spec.stderr]) {
            let Some(path) = path else { continue };
            let logged = position.map(|position| position.logged[stream.index()]);
            let counted =
                logged.map_or(Ok(()), |logged| loss.add_spool(&paths.spools[stream.index()], logged));
            if let Err(error) = counted.and_then(|()| loss.add_fifo(path)) {
                tracing::debug!(id = spec.id, %error, "cannot count all output of a container that is given up");
            }
            loss.end_stream();
        }
        loss
    }

    fn add_spool(&mut self, path: &Path, logged: u64) -> io::Result<()> {
        let file = std::fs::File::open(path)?;
        let mut buffer = vec![0; CHUNK];
        let mut at = logged;
        loop {
            let len = file.read_at(&mut buffer, at)?;
            if len == 0 {
                return Ok(());
            }
            self.add(&buffer[..len]);
            at += len as u64;
        }
    }

    fn add_fifo(&mut self, path: &Path) -> io::Result<()> {
        let mut fifo = fifo::open(path, false)?;
        let mut buffer = vec![0; CHUNK];
        let mut taken = 0;
        while taken < LAST_DRAIN {
            match fifo.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => {
                    self.add(&buffer[..len]);
                    taken += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn add(&mut self, output: &[u8]) {
        let ends = memchr::memchr_iter(b'\n', output).count() as u64;
        self.lines += ends;
        self.bytes += output.len() as u64 - ends;
        self.is_unfinished = output.last().map_or(self.is_unfinished, |last| *last != b'\n');
    }

    fn end_stream(&mut self) {
        self.lines += u64::from(std::mem::take(&mut self.is_unfinished));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_over_pieces_and_streams() {
        let mut loss = Loss::default();
        for output in ["one\ntw", "", "o\nthr", "ee"] {
            loss.add(output.as_bytes());
        }
        loss.end_stream();
        loss.add(b"four\n");
        loss.end_stream();
        assert_eq!(loss, Loss { lines: 4, bytes: 15, is_unfinished: false });
    }
}
