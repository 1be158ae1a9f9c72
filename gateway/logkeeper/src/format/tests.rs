//! Framing is checked against an independent, line-at-a-time model.

use proptest::prelude::*;

use super::*;

fn frame(input: &[u8], max_line: usize) -> (Vec<(Tag, Vec<u8>)>, usize) {
    let mut lines = Vec::new();
    let mut used = 0;
    while let Some(line) = next_line(&input[used..], max_line) {
        lines.push((line.tag, line.content.to_vec()));
        used += line.consumed;
    }
    (lines, used)
}

/// Splits the input into whole lines first and cuts them afterwards, as a reader with an unlimited buffer
/// would.
fn model(input: &[u8], max_line: usize) -> Vec<(Tag, Vec<u8>)> {
    let mut lines = Vec::new();
    for raw in input
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|raw| raw.ends_with(b"\n"))
    {
        let raw = &raw[..raw.len() - 1];
        let content = raw.strip_suffix(b"\r").unwrap_or(raw);
        let mut chunks: Vec<_> = content
            .chunks(max_line)
            .map(|c| (Tag::Partial, c.to_vec()))
            .collect();
        if chunks.is_empty() {
            chunks.push((Tag::Full, Vec::new()));
        }
        chunks.last_mut().unwrap().0 = Tag::Full;
        lines.extend(chunks);
    }
    lines
}

#[track_caller]
fn check(input: &[u8], max_line: usize, expected: &[(Tag, &[u8])], held: usize) {
    let (lines, used) = frame(input, max_line);
    let expected: Vec<_> = expected
        .iter()
        .map(|(tag, content)| (*tag, content.to_vec()))
        .collect();
    assert_eq!(lines, expected);
    assert_eq!(input.len() - used, held, "bytes held back");
}

#[test]
fn a_log_line_has_time_stream_tag_and_content() {
    let mut out = Vec::new();
    let mut header = Header::new(b"2016-10-06T00:17:09.669794202Z", Stream::Stdout);
    header.push_line(&mut out, Tag::Full, b"some text");
    assert_eq!(out, b"2016-10-06T00:17:09.669794202Z stdout F some text\n");
    assert_eq!(out.len(), LINE_OVERHEAD + b"some text".len());
    out.clear();
    let mut header = Header::new(b"2016-10-06T00:17:09.669794202Z", Stream::Stderr);
    header.push_line(&mut out, Tag::Partial, b"");
    assert_eq!(out, b"2016-10-06T00:17:09.669794202Z stderr P \n");
}

#[test]
fn empty_lines_are_kept() {
    check(
        b"\n\na\n",
        4,
        &[(Tag::Full, b""), (Tag::Full, b""), (Tag::Full, b"a")],
        0,
    );
}

#[test]
fn unfinished_line_is_held_back() {
    check(b"a\nbcd", 4, &[(Tag::Full, b"a")], 3);
}

#[test]
fn line_of_exactly_the_limit_is_full() {
    check(b"abcd\n", 4, &[(Tag::Full, b"abcd")], 0);
    check(b"abcd\r\n", 4, &[(Tag::Full, b"abcd")], 0);
    check(b"abcd", 4, &[], 4);
    check(b"abcd\r", 4, &[], 5);
}

#[test]
fn longer_line_is_split_into_partial_chunks_and_a_full_rest() {
    check(b"abcde", 4, &[(Tag::Partial, b"abcd")], 1);
    check(
        b"abcdefghi\n",
        4,
        &[
            (Tag::Partial, b"abcd"),
            (Tag::Partial, b"efgh"),
            (Tag::Full, b"i"),
        ],
        0,
    );
    check(
        b"abcd\r\r\n",
        4,
        &[(Tag::Partial, b"abcd"), (Tag::Full, b"\r")],
        0,
    );
}

#[test]
fn only_the_carriage_return_before_the_newline_is_dropped() {
    check(b"a\rb\r\r\n", 9, &[(Tag::Full, b"a\rb\r")], 0);
}

#[test]
fn nul_and_invalid_utf8_pass_verbatim() {
    check(b"\0\xff\xfe\n", 9, &[(Tag::Full, b"\0\xff\xfe")], 0);
}

fn output() -> impl Strategy<Value = Vec<u8>> {
    // Newlines and carriage returns are made frequent, because framing errors occur there.
    let byte = prop_oneof![2 => Just(b'\n'), 2 => Just(b'\r'), 5 => Just(b'x'), 2 => any::<u8>()];
    proptest::collection::vec(byte, 0..200)
}

proptest! {
    #[test]
    fn framing_agrees_with_the_model(input in output(), max_line in 1_usize..12) {
        let (lines, used) = frame(&input, max_line);
        let expected = model(&input, max_line);
        // Of an unfinished line, only whole partial chunks may have been returned already.
        prop_assert!(lines.len() >= expected.len());
        prop_assert_eq!(&lines[..expected.len()], &expected[..]);
        prop_assert!(lines[expected.len()..].iter().all(|(tag, c)| *tag == Tag::Partial && c.len() == max_line));
        prop_assert!(input.len() - used <= max_line + 1);
    }

    #[test]
    fn framing_is_independent_of_chunking(
        input in output(), max_line in 1_usize..12, cuts in proptest::collection::vec(1_usize..30, 1..60),
    ) {
        let mut held = Vec::new();
let mut lines = Vec::new();
let mut rest = &input[..];
        for cut in cuts.iter().cycle() {
            let (chunk, after) = rest.split_at((*cut).min(rest.len()));
            held.extend_from_slice(chunk);
            let (more, used) = frame(&held, max_line);
            lines.extend(more);
            held.drain(..used);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        let (whole, used) = frame(&input, max_line);
        prop_assert_eq!(lines, whole);
        prop_assert_eq!(&held[..], &input[used..]);
    }

    #[test]
    fn joined_content_is_the_output_without_line_end_carriage_returns(
        mut input in output(), max_line in 1_usize..12,
    ) {
        input.push(b'\n');
        let (lines, used) = frame(&input, max_line);
        prop_assert_eq!(used, input.len());
        let mut joined = Vec::new();
        for (tag, content) in lines {
            joined.extend(content);
            if tag == Tag::Full {
                joined.push(b'\n');
            }
        }
        let mut expected = Vec::new();
        for raw in input.split_inclusive(|byte| *byte == b'\n') {
            let raw = &raw[..raw.len() - 1];
            expected.extend(raw.strip_suffix(b"\r").unwrap_or(raw));
            expected.push(b'\n');
        }
        prop_assert_eq!(joined, expected);
    }
}

#[test]
fn header_tick_advances_one_nanosecond_within_a_second() {
    let tick = |stamp: &Stamp| {
        let mut header = Header::new(stamp, Stream::Stdout);
        let within = header.tick();
        let mut out = Vec::new();
        header.push_line(&mut out, Tag::Full, b"");
        (within, String::from_utf8(out[20..29].to_vec()).unwrap())
    };
    assert_eq!(
        tick(b"2016-10-06T00:17:09.669794209Z"),
        (true, "669794210".into())
    );
    assert_eq!(
        tick(b"2016-10-06T00:17:09.099999999Z"),
        (true, "100000000".into())
    );
    assert!(!tick(b"2016-10-06T00:17:09.999999999Z").0);
}
