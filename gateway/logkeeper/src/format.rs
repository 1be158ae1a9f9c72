//! The CRI log format as pure functions: container output in, log lines out.
//!
//! A log line is `2016-10-06T00:17:09.669794202Z stdout F text\n`: time, stream, tag, content. Framing has no
//! state: the lines depend on the bytes alone and never on how they were split into reads, so a restarted
//! logkeeper can continue at any byte.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::clock::{FRACTION, STAMP_LEN, Stamp};

/// The default limit of a line's content, in bytes (CRI runtimes agree on 16 KiB).
pub const DEFAULT_MAX_LINE: u32 = 16 * 1024;

/// The largest `max_line` that is accepted, in bytes.
pub const MAX_LINE_LIMIT: u32 = 256 * 1024;

/// Size of a log line beside its content, in bytes: time, stream, tag, three spaces and the newline.
pub const LINE_OVERHEAD: usize = STAMP_LEN + 1 + STREAM_NAME_LEN + 1 + 1 + 1 + 1;

/// The length of a [`Header`].
const HEADER_LEN: usize = LINE_OVERHEAD - 1;

/// The position of the tag in a header.
const TAG: usize = HEADER_LEN - 2;

/// `stdout` and `stderr` have the same length, so every line's content starts at the same column.
const STREAM_NAME_LEN: usize = 6;

/// One of the two output streams of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Completeness of a log line: a whole line of output, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// `F`: the content ended with a newline.
    Full,
    /// `P`: more of the same line follows, or the output ended without a newline.
    Partial,
}

/// The part of a line before its content: time, stream and tag, each followed by a space.
///
/// It is built once for a batch and modified in place from line to line, since building it costs more than
/// the rest of a line.
#[derive(Debug, Clone)]
pub(crate) struct Header([u8; HEADER_LEN]);

/// One line cut off the front of a container's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// The bytes to log, verbatim.
    pub content: &'a [u8],
    /// `Full` if the line of output ends here.
    pub tag: Tag,
    /// Number of bytes of the input that this line used up, line end included.
    pub consumed: usize,
}

// === impl Stream ===

impl Stream {
    /// Both streams, in the order of [`Stream::index`].
    pub const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// The name in a log line and in file names.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// The stream's index in an array with one item per stream.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Stdout => 0,
            Self::Stderr => 1,
        }
    }
}

// === impl Header ===

impl Header {
    /// A header with this time and stream.
    pub(crate) fn new(stamp: &Stamp, stream: Stream) -> Self {
        let mut header = [b' '; HEADER_LEN];
        header[STAMP_LEN + 1..][..STREAM_NAME_LEN].copy_from_slice(stream.as_str().as_bytes());
        let mut header = Self(header);
        header.set_stamp(stamp);
        header
    }

    /// Changes the time.
    pub(crate) fn set_stamp(&mut self, stamp: &Stamp) {
        self.0[..STAMP_LEN].copy_from_slice(stamp);
    }

    /// Advances the time by a nanosecond; returns `false` if that is in the next second, for which
    /// [`Header::set_stamp`] must be called.
    pub(crate) fn tick(&mut self) -> bool {
        for digit in self.0[FRACTION].iter_mut().rev() {
            if *digit != b'9' {
                *digit += 1;
                return true;
            }
            *digit = b'0';
        }
        false
    }

    /// Appends one log line to `out`.
    pub(crate) fn push_line(&mut self, out: &mut Vec<u8>, tag: Tag, content: &[u8]) {
        self.0[TAG] = match tag {
            Tag::Full => b'F',
            Tag::Partial => b'P',
        };
        out.reserve(LINE_OVERHEAD + content.len());
        out.extend_from_slice(&self.0);
        out.extend_from_slice(content);
        out.push(b'\n');
    }
}

/// Cuts the next line off the front of `input`, or returns `None` while more bytes are needed to determine
/// it.
///
/// A line whose content is longer than `max_line` bytes is split into partial chunks of exactly `max_line`
/// bytes and a full rest. A carriage return directly before the newline is dropped, and does not count
/// towards the length. At most `max_line + 1` bytes are ever held back.
#[must_use]
pub fn next_line(input: &[u8], max_line: usize) -> Option<Line<'_>> {
    // Content of `max_line` bytes may be followed by "\r\n"; no further bytes are needed to decide between F
    // and P.
    let window = &input[..input.len().min(max_line + 2)];
    let too_long = match memchr::memchr(b'\n', window) {
        Some(end) => {
            let content = window[..end].strip_suffix(b"\r").unwrap_or(&window[..end]);
            if content.len() <= max_line {
                return Some(Line {
                    content,
                    tag: Tag::Full,
                    consumed: end + 1,
                });
            }
            true
        }
        None => {
            window.len() == max_line + 2
                || (window.len() == max_line + 1 && window[max_line] != b'\r')
        }
    };
    too_long.then(|| Line {
        content: &window[..max_line],
        tag: Tag::Partial,
        consumed: max_line,
    })
}
