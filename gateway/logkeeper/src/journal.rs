//! The path of one container's output from its FIFOs to its log, in steps between which the process may be
//! killed.
//!
//! ```text
//! FIFO --splice--> spool --frame--> log --> position record
//! ```
//!
//! The position record is stored after each write to the log. If the process is killed between the two, the
//! log is longer than the record says: recovery truncates it and writes the same bytes again from the spool.
//! No line is lost, torn or duplicated, whichever step was the last.

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use switchyard_linux::files::if_present;
use tokio::sync::OwnedSemaphorePermit;

use switchyard_crash_points::{CrashPoint, reach};

use crate::clock::Clock;
use crate::follow::{Feed, Follower};
use crate::format::{self, Header, Stream, Tag};
use crate::fs_thread::FsThread;
use crate::position::PositionFile;
use crate::protocol::{Counters, LogSpec};
use crate::scratch::{BATCH, Scratch};
use crate::sink::{Batch, Sink};
use crate::spool::{BUSY_SLACK, PAGE, Spool};
use crate::state_dir::EntryPaths;
use crate::window_budget::WindowBudget;

/// A write to the log is issued once its text has this many bytes.
const TEXT_LIMIT: usize = 128 * 1024;

/// Time after a restart of the logkeeper for which logged output is kept for clients that reconnect.
const RESUME: Duration = Duration::from_secs(5);

/// The result of reading a FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// This many bytes; there may be more.
    Bytes(usize),
    /// The FIFO is empty.
    Empty,
    /// The FIFO is empty, and no writer has it open.
    Closed,
}

/// The spools, the log and the position record of one container.
#[derive(Debug)]
pub(crate) struct Journal {
    spools: [Option<Spool>; 2],
    sink: Sink,
    position: PositionFile,
    max_line: usize,
    /// The attached clients of each stream.
    feeds: [Feed; 2],
    /// Until then, a client of the previous logkeeper may reconnect and continue where it was.
    resumable: Option<Instant>,
    /// True if a failure to store the record or to write a spool was logged.
    warned: bool,
}

/// The result of [`write_lines`].
struct Written {
    /// Bytes of output that were logged, or counted as lost.
    used: usize,
    /// True if the rest is an unfinished line.
    drained: bool,
}

// === impl Journal ===

impl Journal {
    /// Creates the files of a new container; they have no meaning until its entry is written.
    pub(crate) fn create(
        paths: &EntryPaths,
        spec: &LogSpec,
        windows: &Arc<WindowBudget>,
    ) -> io::Result<Self> {
        let sink = Sink::create(spec.log.as_deref())?;
        reach(CrashPoint::LogMade);
        let position = PositionFile::create(&paths.position)?;
        position.store(&sink.position)?;
        reach(CrashPoint::PositionMade);
        let mut spools = [None, None];
        for stream in streams(spec) {
            spools[stream.index()] = Some(Spool::create(&paths.spools[stream.index()])?);
            reach(CrashPoint::SpoolMade);
        }
        let feeds = [Feed::new(windows), Feed::new(windows)];
        Ok(Self {
            spools,
            sink,
            position,
            max_line: max_line(spec),
            feeds,
            resumable: None,
            warned: false,
        })
    }

    /// Recovers a container of an earlier logkeeper, and logs what is in its spools.
    pub(crate) fn recover(
        paths: &EntryPaths,
        spec: &LogSpec,
        windows: &Arc<WindowBudget>,
        scratch: &mut Scratch,
    ) -> io::Result<Self> {
        let (position, record) = match if_present(PositionFile::open(&paths.position))? {
            Some(opened) => opened,
            None => (PositionFile::create(&paths.position)?, None),
        };
        let mut spools = [None, None];
        for stream in streams(spec) {
            let logged = record.map(|record| record.logged[stream.index()]);
            let spool = Spool::recover(&paths.spools[stream.index()], logged)?;
            spools[stream.index()] = Some(spool);
        }
        let sink = if let Some(record) = record {
            Sink::recover(spec.log.as_deref(), record)
        } else {
            tracing::warn!(
                task = spec.id,
                "position record is missing or damaged; output in the spool is not logged"
            );
            Sink::recover(spec.log.as_deref(), crate::position::Position::default())
        };
        let feeds = [Feed::new(windows), Feed::new(windows)];
        let resumable = Some(Instant::now() + RESUME);
        let mut journal = Self {
            spools,
            sink,
            position,
            max_line: max_line(spec),
            feeds,
            resumable,
            warned: false,
        };
        journal.store_position();
        for stream in streams(spec) {
            journal.log_spooled(stream, false, scratch);
            // The previous logkeeper may have kept more, for a client that was far behind.
            journal.release(stream, PAGE);
        }
        Ok(journal)
    }

    /// The counters of lines and bytes written and dropped.
    pub(crate) const fn counters(&self) -> Counters {
        self.sink.counters()
    }

    /// Reads at most one batch from a FIFO, and logs its finished lines.
    ///
    /// # Errors
    /// The FIFO itself cannot be read. Errors of the spool and the log are handled here.
    pub(crate) fn receive(
        &mut self,
        stream: Stream,
        fifo: impl AsFd,
        scratch: &mut Scratch,
    ) -> io::Result<Received> {
        let Some(spool) = &mut self.spools[stream.index()] else {
            return Ok(Received::Closed);
        };
        match spool.receive(&fifo, BATCH) {
            Ok(0) => Ok(Received::Closed),
            Ok(len) => {
                reach(CrashPoint::OutputSpooled);
                self.log_spooled(stream, false, scratch);
                self.release(stream, BUSY_SLACK);
                Ok(Received::Bytes(len))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.release(stream, PAGE);
                Ok(Received::Empty)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Received::Bytes(0)),
            Err(error) => self.receive_unspooled(stream, fifo, scratch, &error),
        }
    }

    /// Closes the log file, and creates it again at its path, if `accept` returns true once the new file is open. The
    /// old one stays in use otherwise.
    ///
    /// # Errors
    /// The new file cannot be opened; the old one stays in use.
    pub(crate) fn reopen(
        &mut self,
        scratch: &mut Scratch,
        accept: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        let next = self.sink.open_next()?;
        reach(CrashPoint::LogReopened);
        if accept() {
            self.sink.switch(next);
            self.store_position();
            self.log_loss(scratch);
        }
        Ok(())
    }

    /// Writes unfinished lines as partial ones, and writes a notice of lost lines if there are any.
    pub(crate) fn finish(&mut self, scratch: &mut Scratch) {
        for stream in Stream::ALL {
            self.log_spooled(stream, true, scratch);
        }
        self.log_loss(scratch);
    }

    /// Logs the content of a spool; an unfinished line stays there unless `flush` is set.
    fn log_spooled(&mut self, stream: Stream, flush: bool, scratch: &mut Scratch) {
        scratch.fit(self.max_line);
        loop {
            let Some(spool) = &mut self.spools[stream.index()] else {
                return;
            };
            let pending = spool.pending();
            if pending == 0 {
                return;
            }
            if !self.sink.is_wanted() {
                spool.advance(pending);
                return self.store_position();
            }
            let len = match spool.read_pending(&mut scratch.input) {
                Ok(len) => len,
                Err(error) => {
                    spool.advance(pending);
                    self.sink.count_loss(0, pending, &error);
                    return self.store_position();
                }
            };
            // Only the end of the output is flushed: the rest of a full buffer continues in the spool.
            let flush = flush && len as u64 == pending;
            let Written { used, drained } = write_lines(
                &mut self.sink,
                stream,
                self.max_line,
                &scratch.input[..len],
                flush,
                &mut scratch.batch,
                &mut scratch.clock,
            );
            spool.advance(used as u64);
            if used > 0 {
                self.store_position();
            }
            if drained && len as u64 == pending {
                return;
            }
        }
    }

    /// Logs a batch without its spool, which cannot be written. An unfinished line is written as a partial
    /// one, since there is no safe place to store it. If the process is killed here, the batch is lost.
    fn receive_unspooled(
        &mut self,
        stream: Stream,
        fifo: impl AsFd,
        scratch: &mut Scratch,
        cause: &io::Error,
    ) -> io::Result<Received> {
        scratch.fit(self.max_line);
        let Some(spool) = &mut self.spools[stream.index()] else {
            return Ok(Received::Closed);
        };
        // The unfinished line in the spool comes before the bytes that are read now.
        let held = spool.read_pending(&mut scratch.input).unwrap_or(0);
        let len = match nix::unistd::read(fifo, &mut scratch.input[held..]).map_err(io::Error::from)
        {
            Ok(0) => return Ok(Received::Closed),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Empty),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return Ok(Received::Bytes(0));
            }
            Err(error) => return Err(error),
        };
        spool.advance(spool.pending());
        let mut rest = &scratch.input[..held + len];
        while !rest.is_empty() && self.sink.is_wanted() {
            let written = write_lines(
                &mut self.sink,
                stream,
                self.max_line,
                rest,
                true,
                &mut scratch.batch,
                &mut scratch.clock,
            );
            rest = &rest[written.used..];
        }
        self.warn_once(
            cause,
            "cannot write the spool; output is logged without it, and attached clients miss it",
        );
        self.store_position();
        self.feeds[stream.index()].note_unshown(len);
        self.release(stream, PAGE);
        Ok(Received::Bytes(len))
    }

    fn log_loss(&mut self, scratch: &mut Scratch) {
        if self.sink.has_unreported_loss() {
            let stamp = scratch.clock.format(Clock::now());
            self.sink.begin(&mut scratch.batch, stamp);
            self.sink.commit(&scratch.batch);
            self.store_position();
        }
    }

    /// Stores the position after a batch, for a later logkeeper.
    fn store_position(&mut self) {
        for (logged, spool) in self.sink.position.logged.iter_mut().zip(&self.spools) {
            *logged = spool.as_ref().map_or(0, Spool::logged);
        }
        if let Err(error) = self.position.store(&self.sink.position) {
            self.warn_once(
                &error,
                "cannot store the position record; a kill may duplicate lines",
            );
        }
        reach(CrashPoint::PositionStored);
    }

    /// Attaches a client to a stream; `None` if the container has no such stream.
    ///
    /// # Errors
    /// No file descriptor is available. `QuotaExceeded` if as many streams are followed as the state directory's file
    /// system has room for.
    pub(crate) fn follow(
        &mut self,
        stream: Stream,
        from: Option<u64>,
        fs_thread: &Arc<FsThread>,
        place: OwnedSemaphorePermit,
    ) -> io::Result<Option<Follower>> {
        let Some(spool) = &self.spools[stream.index()] else {
            return Ok(None);
        };
        self.feeds[stream.index()]
            .follow(spool, from, fs_thread, place)
            .map(Some)
    }

    /// Returns when less output has to be kept for clients than before: one has disconnected or caught up, or none has
    /// come back in time after a restart. Cancel-safe.
    pub(crate) async fn wait_releasable(&self) {
        let resume_over = async {
            match self.resumable {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.feeds[Stream::Stdout.index()].wait_releasable() => {}
            () = self.feeds[Stream::Stderr.index()].wait_releasable() => {}
            () = resume_over => {}
        }
    }

    /// Releases the output that does not have to be kept for clients any more.
    pub(crate) fn release_unneeded(&mut self) {
        for stream in Stream::ALL {
            self.feeds[stream.index()].forget_gone();
            self.release(stream, PAGE);
        }
    }

    /// Releases the space of logged output, except for output that clients may still have to read, and
    /// publishes to them the range that they may read.
    fn release(&mut self, stream: Stream, slack: u64) {
        if self.resumable.is_some_and(|until| Instant::now() >= until) {
            self.resumable = None;
        }
        let Some(spool) = &mut self.spools[stream.index()] else {
            return;
        };
        let feed = &mut self.feeds[stream.index()];
        let (keep, slack) = match feed.fit_window(spool) {
            Some(window) => window,
            // A client of the previous logkeeper may come back for this output.
            None if self.resumable.is_some() => (BUSY_SLACK, BUSY_SLACK),
            None => (0, slack),
        };
        let released = spool.release(keep, slack);
        feed.shrink_window(spool);
        feed.publish(spool);
        if let Err(error) = released {
            self.warn_once(&error, "cannot release spool space");
        }
    }

    fn warn_once(&mut self, error: &io::Error, message: &str) {
        if !self.warned {
            self.warned = true;
            tracing::warn!(%error, "{message}");
        }
    }
}

/// The streams a container has.
fn streams(spec: &LogSpec) -> impl Iterator<Item = Stream> + use<> {
    let has = [spec.stdout.is_some(), spec.stderr.is_some()];
    Stream::ALL
        .into_iter()
        .filter(move |stream| has[stream.index()])
}

fn max_line(spec: &LogSpec) -> usize {
    usize::try_from(spec.max_line).unwrap_or(usize::MAX)
}

/// Frames output and writes its lines, up to [`TEXT_LIMIT`], with one call; `flush` turns an unfinished rest
/// into partial lines.
fn write_lines(
    sink: &mut Sink,
    stream: Stream,
    max_line: usize,
    input: &[u8],
    flush: bool,
    batch: &mut Batch,
    clock: &mut Clock,
) -> Written {
    let start = Clock::now();
    let stamp = clock.format(start);
    sink.begin(batch, stamp);
    let mut header = Header::new(stamp, stream);
    let mut used = 0;
    let mut drained = false;
    while batch.len() < TEXT_LIMIT {
        let rest = &input[used..];
        let (content, tag, consumed) = match format::next_line(rest, max_line) {
            Some(line) => (line.content, line.tag, line.consumed),
            None if flush && !rest.is_empty() => {
                let len = rest.len().min(max_line);
                (&rest[..len], Tag::Partial, len)
            }
            None => {
                drained = true;
                break;
            }
        };
        batch.push(&mut header, tag, content);
        used += consumed;
        // Lines of one batch were read at the same time; adding a nanosecond for each keeps their timestamps
        // ordered and distinct.
        if !header.tick() {
            header.set_stamp(clock.format(start + Duration::from_nanos(batch.lines())));
        }
    }
    if used > 0 {
        sink.commit(batch);
        reach(CrashPoint::LinesWritten);
    }
    Written { used, drained }
}
