//! The path of one container's output from FIFOs to its log, in steps of which each may be the last before a kill.
//!
//! ```text
//! FIFO --splice--> spool --frame--> log --> position record
//! ```
//!
//! The position record is stored after each write to the log. A kill before it leaves a log that is longer than
//! the record says: recovery cuts it back and writes the same bytes again from the spool. Nothing is lost, torn or
//! doubled, whichever step was the last.

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use switchyard_steps::{Step, reach};

use crate::clock::Clock;
use crate::follow::{Feed, Follower, WINDOW};
use crate::format::{self, Header, Stream, Tag};
use crate::fs_thread::FsThread;
use crate::position::PositionFile;
use crate::protocol::{Counters, LogSpec};
use crate::sink::{Batch, Sink};
use crate::spool::{BUSY_SLACK, PAGE, Spool};
use crate::state_dir::EntryPaths;

/// The most bytes moved out of a FIFO before other streams get their turn.
pub(crate) const BATCH: usize = 64 * 1024;

/// A write to the log is issued once its text is this long.
const TEXT_LIMIT: usize = 128 * 1024;

/// How long after a restart of the keeper some of what is logged is kept for clients that come back.
const RESUME: Duration = Duration::from_secs(5);

/// Buffers that all containers of one thread share, one after the other.
#[derive(Debug)]
pub(crate) struct Scratch {
    input: Vec<u8>,
    batch: Batch,
    clock: Clock,
}

/// What a FIFO had to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// So many bytes; there may be more.
    Bytes(usize),
    /// Nothing now.
    Empty,
    /// Nothing any more: no writer has the FIFO open.
    Closed,
}

/// The spools, the log and the position record of one container.
#[derive(Debug)]
pub(crate) struct Journal {
    spools: [Option<Spool>; 2],
    sink: Sink,
    position: PositionFile,
    max_line: usize,
    /// Who reads along.
    feeds: [Feed; 2],
    /// Until then a client of the keeper before may come back and go on where it was.
    resumable: Option<Instant>,
    /// Whether storing the record, or moving into a spool, failed and was warned about.
    warned: bool,
}

/// How far [`Journal::write_lines`] came.
struct Written {
    /// Bytes of output that were logged or counted as lost.
    used: usize,
    /// Whether the rest is an unfinished line.
    drained: bool,
}

// === impl Scratch ===

impl Scratch {
    pub(crate) const fn new() -> Self {
        Self { input: Vec::new(), batch: Batch::new(), clock: Clock::new() }
    }

    /// Makes the input buffer large enough for a batch behind a held-back line.
    fn fit(&mut self, max_line: usize) {
        let wanted = BATCH + max_line + 2;
        if self.input.len() < wanted {
            self.input.resize(wanted, 0);
        }
    }
}

// === impl Journal ===

impl Journal {
    /// Creates the files of a new container; they mean nothing until its entry is written.
    pub(crate) fn create(paths: &EntryPaths, spec: &LogSpec) -> io::Result<Self> {
        let sink = Sink::create(spec.log.as_deref())?;
        reach(Step::LogMade);
        let position = PositionFile::create(&paths.position)?;
        position.store(&sink.position)?;
        reach(Step::PositionMade);
        let mut spools = [None, None];
        for stream in streams(spec) {
            spools[stream.index()] = Some(Spool::create(&paths.spools[stream.index()])?);
            reach(Step::SpoolMade);
        }
        let feeds = <[Feed; 2]>::default();
        Ok(Self { spools, sink, position, max_line: max_line(spec), feeds, resumable: None, warned: false })
    }

    /// Takes up a container that an earlier keeper left, and logs what is in its spools.
    pub(crate) fn recover(paths: &EntryPaths, spec: &LogSpec, scratch: &mut Scratch) -> io::Result<Self> {
        let (position, record) = match PositionFile::open(&paths.position) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (PositionFile::create(&paths.position)?, None)
            }
            Err(error) => return Err(error),
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
            tracing::warn!(id = spec.id, "position record is missing or damaged; spooled output is given up");
            Sink::recover(spec.log.as_deref(), crate::position::Position::default())
        };
        let feeds = <[Feed; 2]>::default();
        let resumable = Some(Instant::now() + RESUME);
        let mut journal =
            Self { spools, sink, position, max_line: max_line(spec), feeds, resumable, warned: false };
        journal.store_position();
        for stream in streams(spec) {
            journal.log_spooled(stream, false, scratch);
        }
        Ok(journal)
    }

    /// What has been written and dropped.
    pub(crate) const fn counters(&self) -> Counters {
        self.sink.counters()
    }

    /// Takes at most one batch out of a FIFO and logs its finished lines.
    ///
    /// # Errors
    /// The FIFO itself cannot be read. Trouble with the spool or the log is dealt with here.
    pub(crate) fn receive(
        &mut self,
        stream: Stream,
        fifo: impl AsFd,
        scratch: &mut Scratch,
    ) -> io::Result<Received> {
        let Some(spool) = &mut self.spools[stream.index()] else { return Ok(Received::Closed) };
        match spool.receive(&fifo, BATCH) {
            Ok(0) => Ok(Received::Closed),
            Ok(len) => {
                reach(Step::OutputSpooled);
                self.log_spooled(stream, false, scratch);
                self.release(stream, BUSY_SLACK);
                self.publish(stream);
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

    /// Lets go of the log file and creates it anew at its path.
    ///
    /// # Errors
    /// The new file cannot be opened; the old one stays in use.
    pub(crate) fn reopen(&mut self, scratch: &mut Scratch) -> io::Result<()> {
        self.sink.reopen()?;
        reach(Step::LogReopened);
        self.store_position();
        self.log_loss(scratch);
        Ok(())
    }

    /// Writes unfinished lines as partial ones, and tells of a loss if there is one to tell.
    pub(crate) fn finish(&mut self, scratch: &mut Scratch) {
        for stream in Stream::ALL {
            self.log_spooled(stream, true, scratch);
        }
        self.log_loss(scratch);
    }

    /// Logs what a spool holds; an unfinished line stays there unless `flush` is set.
    fn log_spooled(&mut self, stream: Stream, flush: bool, scratch: &mut Scratch) {
        scratch.fit(self.max_line);
        loop {
            let Some(spool) = &mut self.spools[stream.index()] else { return };
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

    /// Logs a batch without its spool, which cannot be written. An unfinished line is written as partial, since
    /// there is no safe place to keep it; a kill right here would lose the batch.
    fn receive_unspooled(
        &mut self,
        stream: Stream,
        fifo: impl AsFd,
        scratch: &mut Scratch,
        cause: &io::Error,
    ) -> io::Result<Received> {
        scratch.fit(self.max_line);
        let Some(spool) = &mut self.spools[stream.index()] else { return Ok(Received::Closed) };
        let held = spool.read_pending(&mut scratch.input).unwrap_or(0);
        let len = match nix::unistd::read(fifo, &mut scratch.input[held..]).map_err(io::Error::from) {
            Ok(0) => return Ok(Received::Closed),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Empty),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Received::Bytes(0)),
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
        self.warn_once(cause, "cannot write the spool; output is logged without it");
        self.store_position();
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

    /// Makes the end of a batch known to a later keeper.
    fn store_position(&mut self) {
        for (logged, spool) in self.sink.position.logged.iter_mut().zip(&self.spools) {
            *logged = spool.as_ref().map_or(0, Spool::logged);
        }
        if let Err(error) = self.position.store(&self.sink.position) {
            self.warn_once(&error, "cannot store the position record; a kill may double lines");
        }
        reach(Step::PositionStored);
    }

    /// Lets a client read along; `None` if there is no such stream.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn follow(
        &mut self,
        stream: Stream,
        from: Option<u64>,
        lane: &Arc<FsThread>,
        place: OwnedSemaphorePermit,
    ) -> io::Result<Option<Follower>> {
        let Some(spool) = &self.spools[stream.index()] else { return Ok(None) };
        self.feeds[stream.index()].follow(spool, from, lane, place).map(Some)
    }

    /// Returns the stream that the last of its clients has left. Cancel-safe.
    pub(crate) async fn wait_unfollowed(&self) -> Stream {
        tokio::select! {
            () = self.feeds[Stream::Stdout.index()].wait_unfollowed() => Stream::Stdout,
            () = self.feeds[Stream::Stderr.index()].wait_unfollowed() => Stream::Stderr,
        }
    }

    /// Gives back what was kept for clients that have gone.
    pub(crate) fn release_unfollowed(&mut self, stream: Stream) {
        self.feeds[stream.index()].forget();
        self.release(stream, PAGE);
    }

    /// Gives the space of what is logged back, but for what clients may still have to read.
    fn release(&mut self, stream: Stream, slack: u64) {
        if self.resumable.is_some_and(|until| Instant::now() >= until) {
            self.resumable = None;
        }
        let keep = match self.resumable {
            _ if self.feeds[stream.index()].is_followed() => WINDOW,
            Some(_) => BUSY_SLACK,
            None => 0,
        };
        let slack = if keep > 0 { BUSY_SLACK } else { slack };
        if let Some(Err(error)) = self.spools[stream.index()].as_mut().map(|spool| spool.release(keep, slack))
        {
            self.warn_once(&error, "cannot give spool space back");
        }
    }

    /// Tells those who read along how far they may.
    fn publish(&self, stream: Stream) {
        if let Some(spool) = &self.spools[stream.index()] {
            self.feeds[stream.index()].publish(spool);
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
    Stream::ALL.into_iter().filter(move |stream| has[stream.index()])
}

fn max_line(spec: &LogSpec) -> usize {
    usize::try_from(spec.max_line).unwrap_or(usize::MAX)
}

/// Frames output and writes its lines, up to [`TEXT_LIMIT`], with one call; `flush` makes an unfinished rest
/// partial lines.
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
        // Lines of one batch came at one time; a nanosecond each keeps them in order and apart.
        if !header.tick() {
            header.set_stamp(clock.format(start + Duration::from_nanos(batch.lines())));
        }
    }
    if used > 0 {
        sink.commit(batch);
        reach(Step::LinesWritten);
    }
    Written { used, drained }
}
