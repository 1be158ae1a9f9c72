//! Parses the terminal sizes that clients send: a sequence of JSON objects, split into pieces arbitrarily.

use std::num::NonZeroU16;

use bytes::{Buf, BytesMut};
use serde_json::{Deserializer, Value};

use crate::session::Size;

/// The most bytes of one object. Real ones have less than 40.
pub(crate) const LIMIT: usize = 1024;

/// Parses sizes incrementally.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    buffer: BytesMut,
}

impl Sizes {
    /// Adds bytes; returns the last size that they complete. Invalid sizes and other data are skipped.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Option<Size> {
        let mut last = None;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(LIMIT));
            bytes = later;
            self.buffer.extend_from_slice(now);
            last = self.parse().or(last);
            if self.buffer.len() > LIMIT {
                self.buffer.clear();
            }
        }
        last
    }

    /// Number of buffered bytes.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn kept(&self) -> usize {
        self.buffer.len()
    }

    /// Removes complete objects from the buffer; returns the last valid size.
    fn parse(&mut self) -> Option<Size> {
        let mut last = None;
        while !self.buffer.is_empty() {
            let mut values = Deserializer::from_slice(&self.buffer).into_iter::<Value>();
            let consumed = match values.next() {
                Some(Ok(value)) => {
                    last = size(&value).or(last);
                    values.byte_offset()
                }
                Some(Err(error)) if error.is_eof() => break,
                // The next object begins after the end of the invalid one, if that has an end.
                Some(Err(_)) => {
                    let end = self.buffer.iter().position(|byte| *byte == b'}');
                    end.map_or(self.buffer.len(), |end| end + 1)
                }
                None => self.buffer.len(),
            };
            self.buffer.advance(consumed);
        }
        last
    }
}

fn size(value: &Value) -> Option<Size> {
    let side = |names: [&str; 2]| {
        let value = names.iter().find_map(|name| value.get(name))?.as_u64()?;
        u16::try_from(value).ok().and_then(NonZeroU16::new)
    };
    Some(Size {
        width: side(["Width", "width"])?,
        height: side(["Height", "height"])?,
    })
}

#[cfg(test)]
mod tests {
    use super::{LIMIT, Sizes};

    #[track_caller]
    fn check(text: &str, expected: Option<(u16, u16)>) {
        let found = Sizes::default().feed(text.as_bytes());
        assert_eq!(
            found.map(|size| (size.width.get(), size.height.get())),
            expected
        );
    }

    #[test]
    fn last_resize_wins() {
        check(r#"{"Width":80,"Height":24}"#, Some((80, 24)));
        check(
            "{\"Width\":80,\"Height\":24}\n{\"Width\":100,\"Height\":50}\n",
            Some((100, 50)),
        );
        check(r#"{"width":1,"height":65535}"#, Some((1, 65535)));
        check(
            &r#"{"Width":80,"Height":24}"#.repeat(10_000),
            Some((80, 24)),
        );
    }

    #[test]
    fn invalid_terminal_sizes_are_skipped() {
        for absurd in [
            "0",
            "-1",
            "65536",
            "1e99",
            "1e999",
            "99999999999999999999999",
            "1.5",
            "\"80\"",
            "null",
            "[]",
        ] {
            let absurd = format!(r#"{{"Width":{absurd},"Height":24}}"#);
            check(&absurd, None);
            check(
                &format!(r#"{{"Width":80,"Height":25}}{absurd}"#),
                Some((80, 25)),
            );
            check(
                &format!(r#"{absurd}{{"Width":80,"Height":25}}"#),
                Some((80, 25)),
            );
        }
        check("[1,2] true {} ", None);
    }

    #[test]
    fn split_resize_message_is_assembled() {
        let mut sizes = Sizes::default();
        let mut seen = Vec::new();
        for byte in r#"{"Width":80,"Height":24}{"Width":81,"Height":25}"#.as_bytes() {
            seen.extend(sizes.feed(&[*byte]).map(|size| size.width.get()));
        }
        assert_eq!(seen, [80, 81]);
    }

    #[test]
    fn malformed_resize_is_skipped_and_endless_one_discarded() {
        let size = r#"{"Width":80,"Height":24}"#;
        for no_size in ["resize me}", "}", "{]}", "\u{1}}"] {
            check(no_size, None);
            check(&format!("{no_size}{size}"), Some((80, 24)));
        }
        let mut sizes = Sizes::default();
        for endless in [
            "[".repeat(100_000),
            format!("{{\"Width\":\"{}", "8".repeat(100_000)),
        ] {
            assert_eq!(sizes.feed(endless.as_bytes()), None);
            assert!(sizes.buffer.len() <= LIMIT);
            assert_eq!(sizes.feed("}".as_bytes()), None);
            sizes.buffer.clear();
        }
    }
}
