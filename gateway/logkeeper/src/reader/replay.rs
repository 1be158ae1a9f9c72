//! Recognises entries that were passed on already and are written again.
//!
//! A logkeeper that was killed between a write to the log and the store of its position record truncates the log at
//! its recovery, and writes the same output again: the entries of each stream have the same text as before and come
//! in the same order, but have other times, and the two streams may be mixed in another way. A reader that has
//! passed them on must not pass them on again.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;

use super::entry::HEAD_MAX;
use super::text::LogText;
use crate::format::{MAX_LINE_LIMIT, Stream};

/// Amount of text that a recovery may truncate, in bytes: a batch, and a line at each of its ends.
const TRUNCATED_MAX: u64 = 128 * 1024 + 2 * (MAX_LINE_LIMIT as u64 + HEAD_MAX as u64);

/// The last entries of the file that is read.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// Position at which reading of the file began.
    begin: u64,
    entries: VecDeque<ReadEntry>,
    /// By stream, the texts that are expected to be written again, in their order.
    expected: [VecDeque<u64>; 2],
}

/// An entry that was read.
#[derive(Debug)]
struct ReadEntry {
    at: u64,
    /// The position after its line end.
    end: u64,
    /// The length of time, stream and tag, and a checksum of them.
    head: (usize, u64),
    stream: Stream,
    /// A checksum of its text and of whether its line ends.
    text: u64,
}

// === impl Replay ===

impl Replay {
    /// Notes an entry: where its line begins, and its bytes, of which the first `head` are time, stream and tag.
    /// Returns whether it was passed on before.
    pub(super) fn note(&mut self, at: u64, line: &[u8], head: usize, stream: Stream) -> bool {
        let end = at + line.len() as u64 + 1;
        // The tag is before the blank that precedes the text.
        let text = checksum(&[&line[head..], &line[head.saturating_sub(2)..head]]);
        let entry = ReadEntry {
            at,
            end,
            head: (head, checksum(&[&line[..head]])),
            stream,
            text,
        };
        self.entries.push_back(entry);
        while self
            .entries
            .front()
            .is_some_and(|first| end - first.at > TRUNCATED_MAX)
        {
            self.entries.pop_front();
        }
        let expected = &mut self.expected[stream.index()];
        match expected.front() {
            None => false,
            Some(next) if *next == text => {
                expected.pop_front();
                true
            }
            // This is something else: the file was truncated by somebody else.
            Some(_) => {
                expected.clear();
                false
            }
        }
    }

    /// Forgets the entries of a file, as the next one is read from a position on.
    pub(super) fn begin_file(&mut self, begin: u64) {
        self.begin = begin;
        self.entries.clear();
    }

    /// The position at which to continue if the entries that were read last are not in the file any more:
    /// from then on, they are expected again. `None` if the last one is still there.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn rewritten_from(&mut self, text: &mut LogText) -> io::Result<Option<u64>> {
        match self.entries.back() {
            None => return Ok(None),
            Some(last) if last.is_in(text)? => return Ok(None),
            Some(_) => {}
        }
        // Of the entries, the first ones are unchanged.
        let mut unchanged = 0..self.entries.len();
        while !unchanged.is_empty() {
            let middle = unchanged.start + unchanged.len() / 2;
            if self.entries[middle].is_in(text)? {
                unchanged.start = middle + 1;
            } else {
                unchanged.end = middle;
            }
        }
        let from = match unchanged.start.checked_sub(1) {
            Some(last) => self.entries[last].end,
            None if self.entries[0].at == self.begin
                && text.plain_len()?.is_some_and(|len| len >= self.begin) =>
            {
                self.begin
            }
            // More was truncated than by a recovery: the file has new content from its beginning.
            None => {
                self.begin_file(0);
                self.expected.iter_mut().for_each(VecDeque::clear);
                return Ok(Some(0));
            }
        };
        for entry in self.entries.drain(unchanged.start..).rev() {
            self.expected[entry.stream.index()].push_front(entry.text);
        }
        Ok(Some(from))
    }
}

// === impl ReadEntry ===

impl ReadEntry {
    /// Returns whether the file still has the entry in its place.
    fn is_in(&self, text: &mut LogText) -> io::Result<bool> {
        let mut head = [0; HEAD_MAX];
        let head = &mut head[..self.head.0.min(HEAD_MAX)];
        let len = text.read_fully_at(head, self.at)?;
        Ok(len == head.len() && checksum(&[head]) == self.head.1)
    }
}

fn checksum(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}
