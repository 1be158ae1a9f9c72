//! A container is given up: it is removed while the file system of its log hangs, so its end cannot be awaited.
//!
//! ```text
//! notified ─► rest of output counted ─► files removed ─► client answered ┄► file system answers ─► task ends
//! ```
//!
//! The task may be opening the container when it is notified, and creates files when the file system answers.
//! It checks again after that, and removes them itself.
//!
//! The output is counted on a thread of its own, as it may be megabytes, and without the table, so that other requests do
//! not wait. Until the files are removed, the id stays taken, also if the task ends meanwhile.

use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Weak};

use switchyard_linux::{WorkLost, blocking};

use super::{ContainerTask, Keeper, Table, io_fault, shutting_down};
use crate::container::LAST_DRAIN;
use crate::fifo;
use crate::format::Stream;
use crate::position::PositionFile;
use crate::protocol::{Counters, Fault, FaultKind, Finished, LogSpec};
use crate::state_dir::EntryPaths;

/// Number of bytes of one read.
const CHUNK: usize = 64 * 1024;

/// A container that was given up.
#[derive(Debug)]
pub(super) struct AbandonedContainer {
    pub(super) container: ContainerTask,
    /// Lives while the rest of the output is counted, for which the container's files are needed.
    pub(super) counting: Weak<()>,
}

/// The input for counting the rest of a container's output, and for removing its files then.
struct RestOfOutput {
    spec: LogSpec,
    paths: EntryPaths,
    counters: Counters,
    /// Reason why it is given up.
    cause: Fault,
    /// The end of [`AbandonedContainer::counting`].
    _counting: Arc<()>,
}

/// Output that does not get into a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Loss {
    /// Lines, an unfinished one of each stream included.
    lines: u64,
    /// Bytes, line ends left out.
    bytes: u64,
    /// True if the last line has no end yet.
    is_unfinished: bool,
}

// === impl AbandonedContainer ===

impl AbandonedContainer {
    fn is_being_counted(&self) -> bool {
        self.counting.strong_count() > 0
    }
}

// === impl Keeper ===

impl Keeper {
    /// Forgets a container whose log is on a file system that hangs: removes its files from the state directory, so that
    /// no later logkeeper recovers it, and has its task drop the rest when the file system answers. Returns zeros for an
    /// unknown id. Idempotent. If the future is dropped, it is done all the same.
    pub(crate) async fn abandon(&self, id: &str) -> Result<Finished, Fault> {
        let Some(rest) = self.serving()?.begin_abandoning(id)? else {
            return Ok(Finished::default());
        };
        let table = Arc::clone(&self.table);
        let counted = blocking("the removal of a container's files", move || {
            let lost = Loss::of(&rest.spec, &rest.paths);
            Ok::<_, WorkLost>(table.lock().end_abandoning(rest, lost))
        });
        // Another call removes the files.
        counted
            .await
            .map_err(|lost| io_fault("give up", id, &lost.into()))?
    }
}

// === impl Table ===

impl Table {
    /// Notifies the task of a container that it is given up. `None` if nothing is left to be counted: the id
    /// is unknown, or the container was given up before, and its files are removed now if that has failed.
    fn begin_abandoning(&mut self, id: &str) -> Result<Option<RestOfOutput>, Fault> {
        if let Some(known) = self.abandoned.get(id) {
            if known.is_being_counted() {
                return Err(Fault::new(
                    FaultKind::Busy,
                    format!("container {id} is being given up; retry"),
                ));
            }
            return self.remove_files(id).map(|()| None);
        }
        let Some(container) = self.find(id)? else {
            return Ok(None);
        };
        let Err(cause) = container.handle.stalled(id) else {
            let why = format!("the file system of the log of container {id} answers: finish it");
            return Err(Fault::new(FaultKind::Busy, why));
        };
        let Some(container) = self.live.remove(id) else {
            return Ok(None);
        };
        // From here on the task writes nothing to the state directory that it does not remove itself.
        container.handle.progress().abandon();
        let counters = *container.counters.lock();
        self.finished += 1;
        self.finished_totals.add(counters.own());
        let counting = Arc::new(());
        let spec = container.spec.clone();
        let abandoned = AbandonedContainer {
            container,
            counting: Arc::downgrade(&counting),
        };
        self.abandoned.insert(id.to_owned(), abandoned);
        let paths = self.shared.state.paths(id);
        Ok(Some(RestOfOutput {
            spec,
            paths,
            counters: counters.total,
            cause,
            _counting: counting,
        }))
    }

    /// Removes the files of a container whose rest was counted.
    fn end_abandoning(&mut self, rest: RestOfOutput, lost: Loss) -> Result<Finished, Fault> {
        // The next logkeeper may have the state directory already.
        if self.stopped {
            return Err(shutting_down());
        }
        let RestOfOutput {
            spec: LogSpec { id, .. },
            paths: _,
            mut counters,
            cause,
            _counting,
        } = rest;
        let dropped = Counters {
            dropped_lines: lost.lines,
            dropped_bytes: lost.bytes,
            ..Counters::default()
        };
        self.finished_totals.add(dropped);
        counters.add(dropped);
        tracing::warn!(
            task = id,
            %cause,
            lines = lost.lines,
            bytes = lost.bytes,
            "a container is given up: the rest of its output is not logged"
        );
        self.remove_files(&id).map(|()| counters.into())
    }

    fn remove_files(&self, id: &str) -> Result<(), Fault> {
        self.shared
            .state
            .remove(id)
            .map_err(|error| io_fault("forget", id, &error))
    }

    /// Forgets the containers that were given up and whose tasks have ended since.
    pub(super) fn forget_abandoned(&mut self) {
        let is_needed = |abandoned: &AbandonedContainer| {
            abandoned.is_being_counted() || !abandoned.container.handle.is_closed()
        };
        self.abandoned.retain(|_, abandoned| is_needed(abandoned));
    }
}

// === impl Loss ===

impl Loss {
    /// Counts the output of a container in its spools and FIFOs, for which its task, which the file system blocks, is not
    /// asked. What that was just writing is counted too: nobody knows whether the file system still writes it.
    ///
    /// Takes the content of the FIFOs. A file that cannot be read counts as empty.
    fn of(spec: &LogSpec, paths: &EntryPaths) -> Self {
        // Without a record it is unknown what of the spool is logged: the FIFOs alone are counted.
        let position = PositionFile::open(&paths.position)
            .ok()
            .and_then(|(_, position)| position);
        let mut loss = Self::default();
        for (stream, path) in Stream::ALL.into_iter().zip([&spec.stdout, &spec.stderr]) {
            let Some(path) = path else { continue };
            let logged = position.map(|position| position.logged[stream.index()]);
            let counted = logged.map_or(Ok(()), |logged| {
                loss.add_spool(&paths.spools[stream.index()], logged)
            });
            if let Err(error) = counted.and_then(|()| loss.add_fifo(path)) {
                tracing::debug!(task = spec.id, %error, "cannot count all output of a container that is given up");
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
        // Bounded, because a writer may never pause.
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
        self.is_unfinished = output
            .last()
            .map_or(self.is_unfinished, |last| *last != b'\n');
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
        assert_eq!(
            loss,
            Loss {
                lines: 4,
                bytes: 15,
                is_unfinished: false
            }
        );
    }
}
