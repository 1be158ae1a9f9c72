//! The part of a text that was read and not passed on yet.

use std::io;
use std::ops::Range;

use super::text::{BLOCK, LogText};

/// A part of a text in memory.
#[derive(Debug)]
pub(super) struct Window {
    bytes: Vec<u8>,
    /// The part of `bytes` that is not used yet.
    unused: Range<usize>,
    /// The position of the unused part in the text.
    at: u64,
}

/// A line, or the part of a line that the window has.
#[derive(Debug, Clone)]
pub(super) struct LinePart {
    /// Its bytes, without the line end.
    pub(super) bytes: Range<usize>,
    /// True if the line ends with it.
    pub(super) is_ended: bool,
    /// Its position in the text.
    pub(super) at: u64,
}

// === impl Window ===

impl Window {
    /// An empty window at a position.
    pub(super) const fn at(position: u64) -> Self {
        Self {
            bytes: Vec::new(),
            unused: 0..0,
            at: position,
        }
    }

    /// The position of what is not used yet.
    pub(super) const fn position(&self) -> u64 {
        self.at
    }

    /// Bytes of a part that was taken, until the window is filled again.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Number of bytes that are not used yet.
    pub(super) const fn len(&self) -> usize {
        self.unused.end - self.unused.start
    }

    /// Continues at another position of the text, or of another text.
    pub(super) fn move_to(&mut self, position: u64) {
        self.unused = 0..0;
        self.at = position;
    }

    /// Forgets what is not used yet; it will be read again.
    pub(super) const fn forget(&mut self) {
        self.unused.end = self.unused.start;
    }

    /// Uses the next line, if the window has its end, or all that the window has, if that is at least `longest`
    /// bytes.
    pub(super) fn take_line(&mut self, longest: usize) -> Option<LinePart> {
        let Range { start, end } = self.unused;
        let part = match memchr::memchr(b'\n', &self.bytes[start..end]) {
            Some(len) => LinePart {
                bytes: start..start + len,
                is_ended: true,
                at: self.at,
            },
            None if end - start >= longest.max(1) => LinePart {
                bytes: start..end,
                is_ended: false,
                at: self.at,
            },
            None => return None,
        };
        let used = part.bytes.len() + usize::from(part.is_ended);
        self.unused.start += used;
        self.at += used as u64;
        Some(part)
    }

    /// Reads more of the text, but nothing at or beyond `limit`; returns how much.
    ///
    /// # Errors
    /// The text's.
    pub(super) fn fill(&mut self, text: &mut LogText, limit: u64) -> io::Result<usize> {
        self.bytes.copy_within(self.unused.clone(), 0);
        self.unused = 0..self.len();
        let end = self.unused.end;
        let position = self.at + end as u64;
        let wanted =
            usize::try_from(limit.saturating_sub(position)).map_or(BLOCK, |rest| rest.min(BLOCK));
        if self.bytes.len() < end + wanted {
            self.bytes.resize(end + wanted, 0);
        }
        let len = text.read_at(&mut self.bytes[end..end + wanted], position)?;
        self.unused.end += len;
        Ok(len)
    }
}
