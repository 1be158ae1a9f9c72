//! Parses the beginning of a line in the CRI log format.

use std::time::Duration;

use crate::format::{Stream, Tag};

/// The longest beginning of a line that is looked at for time, stream and tag, in bytes.
pub(super) const HEAD_MAX: usize = 128;

/// The longest time, in bytes: nine decimals and an offset from UTC.
const TIME_MAX: usize = 35;

/// The longest list of tags, in bytes.
const TAGS_MAX: usize = 64;

/// Time, stream and tag of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryHead<'a> {
    /// As in the file.
    pub(super) time: &'a str,
    pub(super) stream: Stream,
    pub(super) tag: Tag,
    /// Length of the head, after which the text begins.
    pub(super) len: usize,
}

// === impl EntryHead ===

impl<'a> EntryHead<'a> {
    /// Parses the beginning of a line; `None` if it is no line of this format.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        let line = &line[..line.len().min(HEAD_MAX)];
        let (time, rest) = split_word(line, TIME_MAX)?;
        let time = std::str::from_utf8(time)
            .ok()
            .filter(|time| to_unix(time).is_some())?;
        let (stream, rest) = split_word(rest, 6)?;
        let stream = Stream::ALL
            .into_iter()
            .find(|known| known.as_str().as_bytes() == stream)?;
        let (tags, rest) = split_word(rest, TAGS_MAX)?;
        // Further tags may follow in later versions of the format.
        let tag = match tags.split(|byte| *byte == b':').next() {
            Some(b"F") => Tag::Full,
            Some(b"P") => Tag::Partial,
            Some(_) | None => return None,
        };
        Some(Self {
            time,
            stream,
            tag,
            len: line.len() - rest.len(),
        })
    }

    /// The time since 1970.
    pub(super) fn at(&self) -> Duration {
        to_unix(self.time).unwrap_or_default()
    }
}

/// The word before the first blank, and what follows the blank.
fn split_word(text: &[u8], max: usize) -> Option<(&[u8], &[u8])> {
    let end = memchr::memchr(b' ', &text[..text.len().min(max + 1)])?;
    Some((&text[..end], &text[end + 1..]))
}

/// The time since 1970 that RFC 3339 text says; `None` if it is malformed or before 1970.
pub(super) fn to_unix(time: &str) -> Option<Duration> {
    let bytes = time.as_bytes();
    // Other parsers accept more: only the form of RFC 3339 is that of a log.
    if bytes.len() > TIME_MAX || bytes.get(10) != Some(&b'T') || !bytes[0].is_ascii_digit() {
        return None;
    }
    let time: jiff::Timestamp = time.parse().ok()?;
    Duration::try_from(time.as_duration()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: &str = "2016-10-06T00:17:09.669794202Z";

    #[test]
    fn time_stream_and_tag_are_parsed() {
        for (line, time, stream, tag, text) in [
            (
                "2016-10-06T00:17:09.669794202Z stdout F some  text",
                TIME,
                Stream::Stdout,
                Tag::Full,
                "some  text",
            ),
            (
                "2016-10-06T00:17:09.669794202Z stderr P ",
                TIME,
                Stream::Stderr,
                Tag::Partial,
                "",
            ),
            (
                "2016-10-06T00:17:09Z stdout F:x:y a",
                "2016-10-06T00:17:09Z",
                Stream::Stdout,
                Tag::Full,
                "a",
            ),
            (
                "2016-10-06T02:17:09.6+02:00 stdout P b",
                "2016-10-06T02:17:09.6+02:00",
                Stream::Stdout,
                Tag::Partial,
                "b",
            ),
        ] {
            let head = EntryHead::parse(line.as_bytes()).unwrap();
            assert_eq!(
                (head.time, head.stream, head.tag, &line[head.len..]),
                (time, stream, tag, text)
            );
        }
    }

    #[test]
    fn offset_from_utc_is_part_of_the_time() {
        assert_eq!(
            to_unix("1970-01-01T02:00:01.5+02:00"),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(to_unix("1969-12-31T23:59:59Z"), None);
    }

    #[test]
    fn other_lines_are_refused() {
        let long = format!("{TIME} stdout {} text", "F:".repeat(40));
        for line in [
            "",
            "some text",
            "2016-10-06T00:17:09.669794202Z",
            "2016-10-06T00:17:09.669794202Z stdout F",
            "2016-10-06T00:17:09.669794202Z stdout X text",
            "2016-10-06T00:17:09.669794202Z stdin F text",
            "2016-10-06T00:17:09.669794202Z stdout  text",
            "2016-13-06T00:17:09.669794202Z stdout F text",
            "2016-10-06T00:17:09 stdout F text",
            " 2016-10-06T00:17:09Z stdout F text",
            long.as_str(),
        ] {
            assert_eq!(EntryHead::parse(line.as_bytes()), None, "{line}");
        }
    }
}
