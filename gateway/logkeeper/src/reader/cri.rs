//! A reader of a log in the CRI format, over its rotations.
//!
//! Longer than 500 lines because the position and the filters of one reader belong together.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::dir::{LogDir, OpenLog};
use super::entry::{EntryHead, HEAD_MAX};
use super::error::ReadError;
use super::error::SEARCH_MAX;
use super::query::{LogPiece, LogQuery};
use super::replay::Replay;
use super::rotation::{self, RotatedLog};
use super::seek::StartSearch;
use super::start::{self, Mark, TIME_SEARCH};
use super::text::LogText;
use super::waiter::ReadInterest;
use super::window::{LinePart, Window};
use crate::format::{MAX_LINE_LIMIT, Stream, Tag};

/// The longest line that is passed on whole, in bytes: no logkeeper writes a longer one.
const LINE_MAX: usize = MAX_LINE_LIMIT as usize + HEAD_MAX;

/// A reader of one log.
#[derive(Debug)]
pub(super) struct CriReader {
    dir: LogDir,
    name: OsString,
    /// Rotated files to read after the present one, and the newest file after them, with its size when it was opened.
    rotated: VecDeque<RotatedLog>,
    newest: Option<(LogText, u64)>,
    /// The file that is read, and where it ends for this reader.
    text: Option<LogText>,
    limit: u64,
    /// The number of that file, or of the next one, counted from the oldest.
    file: usize,
    /// Position in the first file at which reading begins.
    begin: u64,
    window: Window,
    /// The line that is passed on in several pieces.
    open_line: Option<LineFacts>,
    piece: PieceRange,
    filter: EntryFilter,
    follows: bool,
    is_ended: bool,
    /// The file to read once the present one, which nobody writes any more, is read to its end.
    successor: Option<LogText>,
    replay: Replay,
    /// The time of the last entry that was read.
    last_time: Option<Duration>,
    omitted: Vec<ReadError>,
    interest: ReadInterest,
}

/// The files of one log.
#[derive(Debug)]
pub(super) struct LogFiles {
    pub(super) dir: LogDir,
    pub(super) name: OsString,
    /// Oldest first.
    pub(super) rotated: Vec<RotatedLog>,
    pub(super) newest: Option<OpenLog>,
}

/// A piece, with its text as a place in the window.
#[derive(Debug)]
struct PieceRange {
    time: Option<String>,
    stream: Stream,
    text: Range<usize>,
    is_ended: bool,
    is_malformed: bool,
}

/// The properties of a line that are known from its beginning.
#[derive(Debug)]
struct LineFacts {
    time: Option<String>,
    stream: Stream,
    ends_line: bool,
    is_malformed: bool,
    is_wanted: bool,
}

/// Selection of the entries that are passed on.
#[derive(Debug)]
struct EntryFilter {
    selected: [bool; 2],
    /// Start of each stream.
    starts: [Mark; 2],
    since: Option<Duration>,
    /// True if an entry was found that is not too old. Before, malformed lines are too old as well, unless
    /// there is nothing else for long.
    is_reached: bool,
    /// Amount of malformed text that was left out since the last entry.
    malformed: u64,
}

// === impl CriReader ===

impl CriReader {
    pub(super) fn open(
        root: &Path,
        path: &Path,
        query: &LogQuery,
        interest: ReadInterest,
    ) -> Result<Self, ReadError> {
        let name = path
            .file_name()
            .map(OsString::from)
            .ok_or_else(|| ReadError::Path(path.to_owned()))?;
        let dir = LogDir::open(root, path.parent().unwrap_or(Path::new("")))?;
        // The newest one first: if it is rotated now, it is still read as the newest.
        let newest = dir.file(&name)?;
        let mut rotated = rotation::rotated(&dir, &name)?;
        // It was rotated between the two look-ups, and is read once.
        if let Some(newest) = &newest
            && let Some(last) = rotated.last()
            && matches!(dir.id_of(&last.name), Ok(Some(id)) if id == newest.id)
        {
            rotated.pop();
        }
        if newest.is_none() && rotated.is_empty() && !query.follow {
            return Err(ReadError::Absent(dir.path_of(&name)));
        }
        Ok(Self::of_files(
            LogFiles {
                dir,
                name,
                rotated,
                newest,
            },
            query,
            interest,
            SEARCH_MAX,
        ))
    }

    /// A reader of these files. To find where it begins, it decompresses about `search_max` bytes at most.
    pub(super) fn of_files(
        files: LogFiles,
        query: &LogQuery,
        interest: ReadInterest,
        search_max: u64,
    ) -> Self {
        let LogFiles {
            dir,
            name,
            rotated,
            newest,
        } = files;
        let newest = newest.map(|opened| {
            let len = opened.len;
            (LogText::new(opened, false, &interest), len)
        });
        let since = query
            .since
            .map(|since| since.duration_since(UNIX_EPOCH).unwrap_or_default());
        let mut reader = Self {
            dir,
            name,
            rotated: rotated.into(),
            newest,
            text: None,
            limit: u64::MAX,
            file: 0,
            begin: 0,
            window: Window::at(0),
            open_line: None,
            piece: PieceRange::empty(),
            filter: EntryFilter {
                selected: Stream::ALL.map(|stream| query.stream.is_none_or(|one| one == stream)),
                starts: [Mark { file: 0, at: 0 }; 2],
                since,
                is_reached: since.is_none(),
                malformed: 0,
            },
            follows: query.follow,
            is_ended: false,
            successor: None,
            replay: Replay::default(),
            last_time: None,
            omitted: Vec::new(),
            interest,
        };
        reader.seek(query.tail, search_max);
        reader
    }

    pub(super) const fn end(&mut self) {
        self.is_ended = true;
    }

    pub(super) fn take_omitted(&mut self) -> Vec<ReadError> {
        std::mem::take(&mut self.omitted)
    }

    pub(super) fn next_piece(&mut self) -> Result<Option<LogPiece<'_>>, ReadError> {
        Ok(self.advance()?.then(|| self.piece()))
    }

    fn piece(&self) -> LogPiece<'_> {
        let PieceRange {
            time,
            stream,
            text,
            is_ended,
            is_malformed,
        } = &self.piece;
        LogPiece {
            time: time.as_deref(),
            stream: *stream,
            text: self.window.bytes(text.clone()),
            is_ended: *is_ended,
            is_malformed: *is_malformed,
        }
    }

    /// Advances to the next piece; `false` if all that was written was read.
    fn advance(&mut self) -> Result<bool, ReadError> {
        loop {
            if self.take_piece() {
                return Ok(true);
            }
            if self.text.is_none() && !self.open_next()? {
                return Ok(false);
            }
            match self.fill() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => self.omit_rest(error)?,
            }
            if self.successor.is_some() || self.has_next() {
                // Nobody writes the present file any more.
                if self.take_rest() {
                    return Ok(true);
                }
                self.close();
            } else if self.follows {
                // If there is a successor, the present file is read once more: it may have been written until the
                // other one was created.
                self.successor = self.find_successor()?;
                if self.successor.is_none() {
                    if self.is_ended && self.take_rest() {
                        return Ok(true);
                    }
                    // The rest is a line that is being written. It is read again, since it may be truncated.
                    self.window.forget();
                    return Ok(false);
                }
            } else {
                return Ok(self.is_ended && self.take_rest());
            }
        }
    }

    // === the lines of a file ===

    /// Takes lines from the window up to one that is wanted.
    fn take_piece(&mut self) -> bool {
        while let Some(part) = self.window.take_line(LINE_MAX) {
            if self.take(part, false) {
                return true;
            }
        }
        false
    }

    /// Takes what is left at the end of a file, a torn line.
    fn take_rest(&mut self) -> bool {
        self.window
            .take_line(1)
            .is_some_and(|part| self.take(part, true))
    }

    /// Makes a part of a line the present piece; returns whether it is wanted.
    fn take(&mut self, part: LinePart, is_torn: bool) -> bool {
        let LinePart {
            bytes,
            is_ended,
            at,
        } = part;
        let mut text = bytes.clone();
        let mut facts = match self.open_line.take() {
            Some(facts) => facts,
            None => {
                let (facts, head) = self.facts_of(bytes, at, is_ended);
                text.start += head;
                facts
            }
        };
        self.piece = PieceRange {
            time: facts.time.clone(),
            stream: facts.stream,
            text,
            is_ended: is_torn || (is_ended && facts.ends_line),
            is_malformed: is_torn || facts.is_malformed,
        };
        let is_wanted = facts.is_wanted;
        if facts.is_malformed && !is_wanted && self.filter.leave_out(self.piece.text.len()) {
            facts.is_wanted = self.filter.is_selected(
                Mark {
                    file: self.file,
                    at,
                },
                facts.stream,
            );
        }
        if !is_ended && !is_torn {
            self.open_line = Some(facts);
        }
        is_wanted
    }

    /// Parses the beginning of a line; also returns its length.
    fn facts_of(&mut self, bytes: Range<usize>, at: u64, is_ended: bool) -> (LineFacts, usize) {
        let line = self.window.bytes(bytes);
        let mark = Mark {
            file: self.file,
            at,
        };
        let Some(head) = EntryHead::parse(line) else {
            let is_wanted = self.filter.is_reached && self.filter.is_selected(mark, Stream::Stdout);
            let facts = LineFacts {
                time: None,
                stream: Stream::Stdout,
                ends_line: true,
                is_malformed: true,
                is_wanted,
            };
            return (facts, 0);
        };
        let time = head.at();
        self.last_time = Some(time);
        let is_repeated =
            self.follows && is_ended && self.replay.note(at, line, head.len, head.stream);
        let is_wanted = self.filter.accepts(mark, head.stream, time) && !is_repeated;
        let facts = LineFacts {
            time: is_wanted.then(|| head.time.to_owned()),
            stream: head.stream,
            ends_line: head.tag == Tag::Full,
            is_malformed: false,
            is_wanted,
        };
        (facts, head.len)
    }

    /// Reads more of the present file; `false` at its end.
    fn fill(&mut self) -> io::Result<bool> {
        let Some(text) = &mut self.text else {
            return Ok(false);
        };
        let len = self.window.fill(text, self.limit)?;
        if self.follows
            && let Some(size) = text.plain_len()?
        {
            // A file that is shorter than what was read of it was truncated in place.
            let truncated_to = (size < self.window.position()).then_some(size);
            if let Some(from) = self.replay.rewritten_from(text)?.or(truncated_to) {
                self.window.move_to(from);
                self.open_line = None;
                self.filter.restart(Mark {
                    file: self.file,
                    at: from,
                });
                return Ok(true);
            }
        }
        Ok(len > 0)
    }

    // === the files of a log ===

    fn has_next(&self) -> bool {
        !self.rotated.is_empty() || self.newest.is_some()
    }

    /// Finds where reading begins.
    fn seek(&mut self, tail: Option<u64>, search_max: u64) {
        let newest = self.rotated.len();
        let mut search = StartSearch {
            dir: &self.dir,
            name: &self.name,
            rotated: self.rotated.make_contiguous(),
            newest: self.newest.as_mut(),
            interest: &self.interest,
            left: search_max,
            omitted: &mut self.omitted,
        };
        let tail = tail.map(|wanted| {
            self.filter.starts = search.last_lines(wanted, self.filter.selected);
            self.filter.first()
        });
        if let Some(since) = self.filter.since {
            let start = search.since(since, tail);
            self.filter.starts = self.filter.starts.map(|tail| tail.max(start));
        }
        let Mark { file, at } = self.filter.first();
        self.file = file.min(newest);
        self.rotated.drain(..self.file);
        self.begin = at;
    }

    /// Opens the file that is read next; `false` if there is none yet.
    fn open_next(&mut self) -> Result<bool, ReadError> {
        let (text, limit) = loop {
            if let Some(successor) = self.successor.take() {
                break (successor, u64::MAX);
            }
            if let Some(log) = self.rotated.pop_front() {
                match rotation::open(&self.dir, &log, &self.interest) {
                    Ok(Some(text)) => break (text, u64::MAX),
                    Ok(None) => {}
                    Err(error) => self.omitted.push(error),
                }
                self.file += 1;
                self.begin = 0;
            } else if let Some((text, len)) = self.newest.take() {
                // Without `follow`, the end is where it was when the reader was opened.
                break (text, if self.follows { u64::MAX } else { len });
            } else if self.follows
                && let Some(opened) = self.dir.file(&self.name)?
            {
                break (LogText::new(opened, false, &self.interest), u64::MAX);
            } else {
                return Ok(false);
            }
        };
        let begin = std::mem::take(&mut self.begin);
        self.text = Some(text);
        self.limit = limit;
        self.window.move_to(begin);
        self.replay.begin_file(begin);
        Ok(true)
    }

    fn close(&mut self) {
        self.text = None;
        self.open_line = None;
        self.file += 1;
        // Only the first file is not read from its beginning.
        self.begin = 0;
    }

    /// Leaves out the rest of a file that cannot be read on, if others follow.
    fn omit_rest(&mut self, source: io::Error) -> Result<(), ReadError> {
        let error = ReadError::File {
            action: "read",
            path: self.dir.path_of(&self.name),
            source,
        };
        if !self.has_next() {
            return Err(error);
        }
        self.omitted.push(error);
        self.window.forget();
        Ok(())
    }

    /// The file that was written after the present one, if that was rotated.
    fn find_successor(&self) -> Result<Option<LogText>, ReadError> {
        let Some(reading) = self.text.as_ref().map(|text| text.id) else {
            return Ok(None);
        };
        let Some(newest) = self.dir.id_of(&self.name)? else {
            return Ok(None);
        };
        if newest == reading {
            return Ok(None);
        }
        let rotated = rotation::rotated(&self.dir, &self.name)?;
        let is_ours =
            |log: &RotatedLog| matches!(self.dir.id_of(&log.name), Ok(Some(id)) if id == reading);
        let first = match rotated.iter().rposition(is_ours) {
            Some(ours) => ours + 1,
            // It was removed, or compressed: the successor is known by its time.
            None => {
                let is_later = |log: &RotatedLog| {
                    let text = rotation::open(&self.dir, log, &self.interest)
                        .ok()
                        .flatten();
                    let first =
                        text.and_then(|mut text| start::first_time(&mut text).ok().flatten());
                    first
                        .zip(self.last_time)
                        .is_some_and(|(first, last)| first > last)
                };
                rotated.iter().position(is_later).unwrap_or(rotated.len())
            }
        };
        for log in rotated.get(first..).unwrap_or_default() {
            if let Some(text) = rotation::open(&self.dir, log, &self.interest)? {
                return Ok(Some(text));
            }
        }
        Ok(self
            .dir
            .file(&self.name)?
            .map(|opened| LogText::new(opened, false, &self.interest)))
    }
}

// === impl PieceRange ===

impl PieceRange {
    const fn empty() -> Self {
        Self {
            time: None,
            stream: Stream::Stdout,
            text: 0..0,
            is_ended: true,
            is_malformed: false,
        }
    }
}

// === impl EntryFilter ===

impl EntryFilter {
    fn is_selected(&self, mark: Mark, stream: Stream) -> bool {
        let stream = stream.index();
        self.selected[stream] && mark >= self.starts[stream]
    }

    fn accepts(&mut self, mark: Mark, stream: Stream, time: Duration) -> bool {
        let is_new = self.since.is_none_or(|since| time >= since);
        self.is_reached |= is_new;
        self.malformed = 0;
        is_new && self.is_selected(mark, stream)
    }

    /// Counts malformed text that is left out, and returns whether it is from now on passed on: a file that consists
    /// of it must not be searched without end.
    const fn leave_out(&mut self, len: usize) -> bool {
        self.malformed += len as u64 + 1;
        let is_too_much = !self.is_reached && self.malformed > TIME_SEARCH;
        self.is_reached |= is_too_much;
        is_too_much
    }

    /// Reads a file from a position on that is before the start: it has other content now.
    fn restart(&mut self, mark: Mark) {
        if mark < self.first() {
            self.starts = [mark; 2];
        }
    }

    /// Start of the reading.
    fn first(&self) -> Mark {
        let [stdout, stderr] = self.starts;
        match self.selected {
            [true, false] => stdout,
            [false, true] => stderr,
            [true, true] | [false, false] => stdout.min(stderr),
        }
    }
}
