//! Where reading begins: the last lines of a log, or those since a time.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use super::entry::EntryHead;
use super::scan;
use super::text::{BLOCK, LogText};
use crate::format::{Stream, Tag};

/// How far before the last lines the beginning of one that has several entries is searched, in bytes.
const LINE_SEARCH: u64 = 4 << 20;

/// How far a valid entry is searched for its time, in bytes.
pub(super) const TIME_SEARCH: u64 = 1 << 20;

/// How many lines of a compressed file are kept in memory, to go through them backward.
const LINES_MAX: usize = 256 << 10;

/// A place in a log: the number of the file, counted from the oldest, and the position in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    pub(super) file: usize,
    pub(super) at: u64,
}

/// A search for the last lines of output, from the end backward.
///
/// Lines of both streams are counted together. A line may have several entries, between which are those of the
/// other stream; so each stream has a place of its own where its first line begins.
#[derive(Debug)]
pub(super) struct TailSearch {
    wanted: u64,
    found: u64,
    selected: [bool; 2],
    /// Where the first line of each stream begins, as far as known.
    starts: [Mark; 2],
    /// Whether any entry of the stream was seen, and whether its start is certain.
    seen: [bool; 2],
    settled: [bool; 2],
    /// How much text was searched since all lines were found.
    beyond: u64,
    last: Mark,
}

/// What a line is for the search: its stream, and whether a line of output ends with it.
#[derive(Debug, Clone, Copy)]
struct LineKind {
    stream: Stream,
    is_full: bool,
}

// === impl TailSearch ===

impl TailSearch {
    /// A search from the end of a log.
    pub(super) fn new(wanted: u64, selected: [bool; 2], end: Mark) -> Self {
        let settled = selected.map(|selected| !selected);
        Self { wanted, found: 0, selected, starts: [end; 2], seen: [false; 2], settled, beyond: 0, last: end }
    }

    /// Where each stream begins.
    pub(super) const fn starts(&self) -> [Mark; 2] {
        self.starts
    }

    /// Searches one file, after those that were written later; breaks if the search is over.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn search(&mut self, file: usize, text: &mut LogText) -> io::Result<ControlFlow<()>> {
        if self.is_over() {
            return Ok(ControlFlow::Break(()));
        }
        match text.plain_len()? {
            Some(len) => {
                self.last = Mark { file, at: len };
                scan::backward(text, len, |at, head| self.visit(Mark { file, at }, LineKind::of(head)))
            }
            None => self.search_compressed(file, text),
        }
    }

    /// Goes through a compressed file forward, and through the lines found so backward, as many as fit in memory at
    /// a time.
    fn search_compressed(&mut self, file: usize, text: &mut LogText) -> io::Result<ControlFlow<()>> {
        let mut end = u64::MAX;
        loop {
            let mut lines = VecDeque::new();
            let all = scan::forward(text, 0, end, scan::UNBROKEN_MAX, |at, head| {
                if lines.len() == LINES_MAX {
                    lines.pop_front();
                }
                lines.push_back((at, LineKind::of(head)));
                ControlFlow::<()>::Continue(())
            })?;
            debug_assert!(all.is_continue());
            for (at, kind) in lines.iter().rev() {
                if self.visit(Mark { file, at: *at }, *kind).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            match lines.front() {
                Some((first, _)) if *first > 0 => end = *first,
                Some(_) | None => return Ok(ControlFlow::Continue(())),
            }
        }
    }

    fn visit(&mut self, at: Mark, LineKind { stream, is_full }: LineKind) -> ControlFlow<()> {
        let stream = stream.index();
        if self.found == self.wanted && self.last.file == at.file {
            self.beyond += self.last.at.saturating_sub(at.at);
        }
        self.last = at;
        if self.selected[stream] {
            // The last line of a stream may be unfinished.
            let ends_line = is_full || !self.seen[stream];
            self.seen[stream] = true;
            if !ends_line && !self.settled[stream] {
                self.starts[stream] = at;
            } else if ends_line && self.found < self.wanted {
                self.found += 1;
                self.starts[stream] = at;
            } else if ends_line {
                self.settled[stream] = true;
            }
        }
        if self.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn is_over(&self) -> bool {
        // A stream that was not seen has none of the lines.
        let is_certain = self.settled.iter().zip(&self.seen).all(|(settled, seen)| *settled || !seen);
        self.found == self.wanted && (is_certain || self.beyond > LINE_SEARCH)
    }
}

impl LineKind {
    fn of(head: &[u8]) -> Self {
        match EntryHead::parse(head) {
            Some(EntryHead { stream, tag, .. }) => Self { stream, is_full: tag == Tag::Full },
            None => Self { stream: Stream::Stdout, is_full: true },
        }
    }
}

/// The time of the first entry of a file, if there is one near its beginning.
///
/// # Errors
/// The file's.
pub(super) fn first_time(text: &mut LogText) -> io::Result<Option<Duration>> {
    Ok(entry_after(text, 0, false)?.map(|(_, time)| time))
}

/// A position before the first entry that is not older than `since`, and close to it. The entries of a file are
/// ordered by time, unless the clock was set back meanwhile.
///
/// # Errors
/// The file's.
pub(super) fn since(text: &mut LogText, since: Duration) -> io::Result<u64> {
    let Some(len) = text.plain_len()? else { return Ok(0) };
    // Entries before `low` are older.
    let mut low = 0;
    let mut high = len;
    while high - low > BLOCK as u64 {
        let middle = low + (high - low) / 2;
        match entry_after(text, middle, true)? {
            Some((at, time)) if at < high && time < since => low = at,
            Some(_) | None => high = middle,
        }
    }
    Ok(low)
}

/// The first entry after a position, and its time. If the position may be amid a line, the rest of that is skipped.
fn entry_after(text: &mut LogText, position: u64, is_amid: bool) -> io::Result<Option<(u64, Duration)>> {
    let found = scan::forward(text, position, u64::MAX, TIME_SEARCH, |at, head| {
        if at - position > TIME_SEARCH {
            return ControlFlow::Break(None);
        }
        match EntryHead::parse(head) {
            Some(entry) if !(is_amid && at == position) => ControlFlow::Break(Some((at, entry.at()))),
            Some(_) | None => ControlFlow::Continue(()),
        }
    })?;
    Ok(match found {
        ControlFlow::Break(found) => found,
        ControlFlow::Continue(()) => None,
    })
}
