//! Search for the start of reading: the last lines of a log, or those since a time.

use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use super::entry::EntryHead;
use super::scan;
use super::text::{BLOCK, LogText};
use crate::format::{Stream, Tag};

/// Distance before the last lines in which the beginning of a line of several entries is sought, in bytes.
const LINE_SEARCH: u64 = 4 << 20;

/// Length of text that is searched for a valid entry with a time, in bytes.
pub(super) const TIME_SEARCH: u64 = 1 << 20;

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
    /// Start of each stream's first line, as far as known.
    starts: [Mark; 2],
    /// True if any entry of the stream was seen, and true if its start is certain.
    seen: [bool; 2],
    settled: [bool; 2],
    /// Amount of text that was searched since all lines were found.
    beyond: u64,
    last: Mark,
}

/// End of the search of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Searched {
    /// The start of the lines is known.
    Over,
    /// They may begin in an older file.
    GoOn,
    /// The file has more text than may be decompressed; nothing is known of it.
    TooLong,
}

/// The lines of a file as a walk forward finds them. A compressed file can be read forward only.
#[derive(Debug, Clone, Copy, Default)]
struct ForwardLines {
    /// Number of lines at the beginning that are passed over.
    passed_over: u64,
    /// By stream, the place of an entry with which its line ends, whatever its tag says.
    ends_at: [Option<u64>; 2],
    /// Number of lines that have ended, of both streams and with those that are passed over.
    ended: u64,
    /// End of the first line that is not passed over, and position of the last entry.
    first_end: Option<u64>,
    last: u64,
    streams: [StreamLines; 2],
}

/// Those of one stream.
#[derive(Debug, Clone, Copy, Default)]
struct StreamLines {
    /// Number of lines that have ended, without those that are passed over, and start of the first of these.
    ended: u64,
    first_line: Option<u64>,
    /// A line that has not ended: where it begins, and its last entry.
    unfinished: Option<(u64, u64)>,
}

/// Properties of a line for the search: its stream, and whether a line of output ends with it.
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
        Self {
            wanted,
            found: 0,
            selected,
            starts: [end; 2],
            seen: [false; 2],
            settled,
            beyond: 0,
            last: end,
        }
    }

    /// Start of each stream.
    pub(super) const fn starts(&self) -> [Mark; 2] {
        self.starts
    }

    /// Searches one file, after those that were written later. Of a compressed one, about `left` bytes are decompressed at
    /// most, and once more as many if the lines begin in it.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn search(
        &mut self,
        file: usize,
        text: &mut LogText,
        left: u64,
    ) -> io::Result<Searched> {
        if self.is_over() {
            return Ok(Searched::Over);
        }
        let Some(len) = text.plain_len()? else {
            return self.search_compressed(file, text, left);
        };
        self.last = Mark { file, at: len };
        let found = scan::backward(text, len, |at, head| {
            self.visit(Mark { file, at }, LineKind::of(head))
        })?;
        Ok(if found.is_break() {
            Searched::Over
        } else {
            Searched::GoOn
        })
    }

    /// Goes through a compressed file forward, to count its lines, and once more to find where the wanted ones begin,
    /// unless all of its lines are wanted, or none.
    fn search_compressed(
        &mut self,
        file: usize,
        text: &mut LogText,
        left: u64,
    ) -> io::Result<Searched> {
        let mut all = ForwardLines::default();
        self.walk(text, &mut all, left)?;
        if text.expanded() > left {
            return Ok(Searched::TooLong);
        }
        // What is unfinished continues in a newer file, unless its stream has nothing there.
        all.end_unfinished(self.seen.map(|seen| !seen));
        let missing = self.wanted - self.found;
        let passed_over = all.ended.saturating_sub(missing);
        let counted = if missing == 0 {
            ForwardLines::default()
        } else if passed_over == 0 {
            all
        } else {
            let mut counted = ForwardLines {
                passed_over,
                ends_at: all.ends_at,
                ..ForwardLines::default()
            };
            self.walk(text, &mut counted, u64::MAX)?;
            counted
        };
        for (stream, (all, counted)) in all.streams.iter().zip(&counted.streams).enumerate() {
            let rest = all
                .unfinished
                .map(|(begin, _)| begin)
                .filter(|_| !self.settled[stream]);
            if let Some(at) = counted.first_line.or(rest) {
                self.starts[stream] = Mark { file, at };
            }
            self.settled[stream] |= counted.ended < all.ended;
            self.seen[stream] |= all.ended > 0 || all.unfinished.is_some();
        }
        self.found += all.ended.min(missing);
        if self.found == self.wanted {
            self.beyond += counted.first_end.unwrap_or(all.last);
        }
        Ok(if self.is_over() {
            Searched::Over
        } else {
            Searched::GoOn
        })
    }

    /// Goes through a text, until about `left` bytes of it were read.
    fn walk(&self, text: &mut LogText, lines: &mut ForwardLines, left: u64) -> io::Result<()> {
        let walked = scan::forward(
            text,
            0,
            u64::MAX,
            scan::UNBROKEN_MAX.min(left),
            |at, head| {
                let kind = LineKind::of(head);
                if self.selected[kind.stream.index()] {
                    lines.visit(at, kind);
                }
                if at > left {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            },
        );
        walked.map(|_: ControlFlow<()>| ())
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
        if self.is_over() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn is_over(&self) -> bool {
        // A stream that was not seen has none of the lines.
        let is_certain = self
            .settled
            .iter()
            .zip(&self.seen)
            .all(|(settled, seen)| *settled || !seen);
        self.found == self.wanted && (is_certain || self.beyond > LINE_SEARCH)
    }
}

// === impl ForwardLines ===

impl ForwardLines {
    fn visit(&mut self, at: u64, LineKind { stream, is_full }: LineKind) {
        let stream = stream.index();
        let lines = &mut self.streams[stream];
        let begin = lines.unfinished.map_or(at, |(begin, _)| begin);
        lines.unfinished = Some((begin, at));
        self.last = at;
        if is_full || self.ends_at[stream] == Some(at) {
            self.end_line(stream, begin, at);
        }
    }

    fn end_line(&mut self, stream: usize, begin: u64, at: u64) {
        let lines = &mut self.streams[stream];
        lines.unfinished = None;
        if self.ended >= self.passed_over {
            lines.ended += 1;
            lines.first_line.get_or_insert(begin);
            self.first_end = Some(self.first_end.map_or(at, |first| first.min(at)));
        }
        self.ended += 1;
    }

    /// Ends the unfinished lines of these streams with their last entries.
    fn end_unfinished(&mut self, streams: [bool; 2]) {
        for stream in (0..streams.len()).filter(|stream| streams[*stream]) {
            if let Some((begin, at)) = self.streams[stream].unfinished {
                self.ends_at[stream] = Some(at);
                self.end_line(stream, begin, at);
            }
        }
    }
}

// === impl LineKind ===

impl LineKind {
    fn of(head: &[u8]) -> Self {
        match EntryHead::parse(head) {
            Some(EntryHead { stream, tag, .. }) => Self {
                stream,
                is_full: tag == Tag::Full,
            },
            None => Self {
                stream: Stream::Stdout,
                is_full: true,
            },
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
    let Some(len) = text.plain_len()? else {
        return Ok(0);
    };
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
fn entry_after(
    text: &mut LogText,
    position: u64,
    is_amid: bool,
) -> io::Result<Option<(u64, Duration)>> {
    let found = scan::forward(text, position, u64::MAX, TIME_SEARCH, |at, head| {
        if at - position > TIME_SEARCH {
            return ControlFlow::Break(None);
        }
        match EntryHead::parse(head) {
            Some(entry) if !(is_amid && at == position) => {
                ControlFlow::Break(Some((at, entry.at())))
            }
            Some(_) | None => ControlFlow::Continue(()),
        }
    })?;
    Ok(match found {
        ControlFlow::Break(found) => found,
        ControlFlow::Continue(()) => None,
    })
}
