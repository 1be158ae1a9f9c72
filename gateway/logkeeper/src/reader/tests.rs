//! Logs are written by the writer's own code and read back, also while they are rotated and truncated.

mod compressed;
mod following;
mod hostile;
mod plain;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tempfile::TempDir;

use super::check::{self, Lines};
use super::*;
use crate::clock::Clock;
use crate::format::{Header, Tag, next_line};
use crate::sink::{Batch, Sink};

const MAX_LINE: usize = 16;

/// A log in a directory of its own, with the writer's sink.
struct TestLog {
    dir: TempDir,
    sink: Sink,
    clock: Clock,
    /// The time of the next entry.
    now: Duration,
    waiter: ReadWaiter,
}

impl TestLog {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sink = Sink::create(Some(&dir.path().join("main/0.log"))).unwrap();
        Self {
            dir,
            sink,
            clock: Clock::new(),
            now: Duration::from_secs(1_700_000_000),
            waiter: ReadWaiter::default(),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("main/0.log")
    }

    fn location(&self) -> LogLocation {
        LogLocation::Cri {
            root: self.dir.path().to_owned(),
            path: "main/0.log".into(),
        }
    }

    /// Writes entries as one batch.
    fn write(&mut self, entries: &[(Stream, Tag, &[u8])]) {
        let mut batch = Batch::new();
        let stamp = *self.clock.format(self.now);
        self.sink.begin(&mut batch, &stamp);
        for (stream, tag, text) in entries {
            let stamp = *self.clock.format(self.now);
            batch.push(&mut Header::new(&stamp, *stream), *tag, text);
            self.now += Duration::from_millis(1);
        }
        self.sink.commit(&batch);
    }

    /// Writes whole lines to standard output.
    fn write_lines(&mut self, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            self.write(&[(Stream::Stdout, Tag::Full, line.as_bytes())]);
        }
    }

    /// Renames the log as a kubelet does, and has it reopened.
    fn rotate(&mut self, time: &str) {
        self.rename(time);
        self.sink.reopen().unwrap();
    }

    fn rename(&self, time: &str) {
        fs::rename(self.path(), self.rotated(time)).unwrap();
    }

    fn rotated(&self, time: &str) -> PathBuf {
        self.dir.path().join(format!("main/0.log.{time}"))
    }

    /// Compresses a rotated file as a kubelet does.
    fn compress(&self, time: &str) {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder
            .write_all(&fs::read(self.rotated(time)).unwrap())
            .unwrap();
        fs::write(
            self.rotated(&format!("{time}.gz")),
            encoder.finish().unwrap(),
        )
        .unwrap();
        fs::remove_file(self.rotated(time)).unwrap();
    }

    fn open(&self, query: &LogQuery) -> LogReader {
        LogReader::open(&self.location(), query, &self.waiter.interest()).unwrap()
    }

    fn read(&self, query: &LogQuery) -> Vec<String> {
        drain(&mut self.open(query))
    }
}

/// The lines of standard output that a reader has now.
fn drain(reader: &mut LogReader) -> Vec<String> {
    let mut lines = Lines::default();
    while let Some(piece) = reader.next_piece().unwrap() {
        lines.push(&piece);
    }
    text_of(&lines, Stream::Stdout)
}

fn text_of(lines: &Lines, stream: Stream) -> Vec<String> {
    lines.0[stream.index()]
        .iter()
        .map(|(line, _)| String::from_utf8_lossy(line).into_owned())
        .collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| format!("line {number}")).collect()
}

fn tail(lines: u64) -> LogQuery {
    LogQuery {
        tail: Some(lines),
        ..LogQuery::default()
    }
}

fn follow() -> LogQuery {
    LogQuery {
        follow: true,
        ..LogQuery::default()
    }
}

#[test]
fn entry_has_time_stream_and_text() {
    let mut log = TestLog::new();
    log.write(&[
        (Stream::Stdout, Tag::Full, b"said"),
        (Stream::Stderr, Tag::Partial, b"unfinished"),
    ]);
    let mut reader = log.open(&LogQuery::default());
    let first = reader.next_piece().unwrap().unwrap();
    assert_eq!(first.time, Some("2023-11-14T22:13:20.000000000Z"));
    assert_eq!(
        (first.stream, first.text, first.is_ended),
        (Stream::Stdout, &b"said"[..], true)
    );
    let second = reader.next_piece().unwrap().unwrap();
    assert_eq!(second.time, Some("2023-11-14T22:13:20.001000000Z"));
    assert_eq!(
        (second.stream, second.text, second.is_ended),
        (Stream::Stderr, &b"unfinished"[..], false)
    );
    assert_eq!(reader.next_piece().unwrap(), None);
}

#[test]
fn rotated_files_are_read_in_order_compressed_or_not() {
    let mut log = TestLog::new();
    for (number, time) in ["20260101-000000", "20260101-000010", "20260101-000020"]
        .into_iter()
        .enumerate()
    {
        let first = u32::try_from(number).unwrap() * 1000;
        log.write_lines(numbers(first..first + 1000));
        log.rotate(time);
    }
    log.write_lines(numbers(3000..4000));
    log.compress("20260101-000000");
    log.compress("20260101-000010");
    // Not a rotated file.
    fs::write(log.rotated("1"), "other").unwrap();
    assert_eq!(log.read(&LogQuery::default()), numbers(0..4000));
    for lines in [0, 1, 999, 1000, 1001, 2000, 2500, 3000, 3999, 4000, 5000] {
        let first = 4000 - u32::try_from(lines).unwrap().min(4000);
        assert_eq!(log.read(&tail(lines)), numbers(first..4000), "{lines}");
        assert_eq!(
            drain(&mut log.open(&LogQuery {
                follow: true,
                ..tail(lines)
            })),
            numbers(first..4000)
        );
    }
}

#[test]
fn last_lines_of_a_log_that_is_renamed_and_not_opened_anew_yet_are_in_its_renamed_file() {
    let mut log = TestLog::new();
    log.write_lines(numbers(0..10));
    log.rename("20260101-000000");
    assert_eq!(log.read(&tail(3)), numbers(7..10));
    log.compress("20260101-000000");
    assert_eq!(log.read(&tail(3)), numbers(7..10));
}

#[test]
fn entries_since_a_time_are_found_in_any_file() {
    let mut log = TestLog::new();
    let begin = log.now;
    log.write_lines(numbers(0..3000));
    log.rotate("20260101-000000");
    log.write_lines(numbers(3000..6000));
    log.rotate("20260101-000010");
    log.write_lines(numbers(6000..9000));
    log.compress("20260101-000000");
    for number in [0, 1, 100, 2999, 3000, 3001, 4567, 5999, 6000, 8999, 9000] {
        let since = UNIX_EPOCH + begin + Duration::from_millis(u64::from(number));
        let query = LogQuery {
            since: Some(since),
            ..LogQuery::default()
        };
        assert_eq!(log.read(&query), numbers(number..9000), "{number}");
        let both = LogQuery {
            tail: Some(4000),
            ..query
        };
        assert_eq!(log.read(&both), numbers(number.max(5000)..9000), "{number}");
    }
    let past = LogQuery {
        since: Some(SystemTime::now() + Duration::from_secs(60)),
        ..LogQuery::default()
    };
    assert_eq!(log.read(&past), numbers(0..0));
}

#[test]
fn damaged_compressed_file_is_left_out_and_told() {
    let mut log = TestLog::new();
    log.write_lines(numbers(0..100));
    log.rotate("20260101-000000");
    log.write_lines(numbers(100..110));
    log.compress("20260101-000000");
    fs::write(log.rotated("20260101-000000.gz"), b"\x1f\x8b\x08garbage").unwrap();
    for query in [LogQuery::default(), tail(50)] {
        let mut reader = log.open(&query);
        assert_eq!(drain(&mut reader), numbers(100..110));
        let omitted = reader.take_omitted();
        assert!(
            omitted
                .iter()
                .all(|error| error.to_string().contains("cannot read")),
            "{omitted:?}"
        );
        assert_eq!(omitted.len(), 1);
    }
}

#[test]
fn line_that_is_being_written_is_held_back_until_the_end() {
    let log = TestLog::new();
    let whole = "2026-11-26T00:17:09.669794202Z stdout F whole\n2026-11-26T00:17:09.669794203Z stdout F torn";
    fs::write(log.path(), whole).unwrap();
    assert_eq!(log.read(&LogQuery::default()), ["whole"]);
    let mut reader = log.open(&LogQuery::default());
    reader.end();
    assert!(!reader.next_piece().unwrap().unwrap().is_malformed);
    let torn = reader.next_piece().unwrap().unwrap();
    assert!(torn.is_malformed && torn.text == b"torn");
}

/// Some entries of both streams.
fn entries() -> impl Strategy<Value = Vec<(bool, bool, Vec<u8>)>> {
    let text = proptest::collection::vec(
        any::<u8>().prop_filter("no line end", |byte| *byte != b'\n'),
        0..8,
    );
    proptest::collection::vec((any::<bool>(), any::<bool>(), text), 0..60)
}

proptest! {
    #[test]
    fn what_the_writer_frames_is_read_back(outputs in proptest::collection::vec(
        (any::<bool>(), proptest::collection::vec(prop_oneof![3 => any::<u8>(), 1 => Just(b'\n')], 0..60)), 0..20,
    )) {
        let mut log = TestLog::new();
        let mut printed = [Vec::new(), Vec::new()];
        for (is_stderr, output) in &outputs {
            let stream = if *is_stderr { Stream::Stderr } else { Stream::Stdout };
            // The writer frames whole lines.
            let mut output = output.clone();
            output.push(b'\n');
            printed[stream.index()].extend_from_slice(&output);
            let mut rest = &output[..];
            while let Some(line) = next_line(rest, MAX_LINE) {
                log.write(&[(stream, line.tag, line.content)]);
                rest = &rest[line.consumed..];
            }
            prop_assert!(rest.is_empty());
        }
        let mut lines = Lines::default();
        let mut reader = log.open(&LogQuery::default());
        while let Some(piece) = reader.next_piece().unwrap() {
            prop_assert!(!piece.is_malformed);
            lines.push(&piece);
        }
        for stream in Stream::ALL {
            let read: Vec<Vec<u8>> = lines.0[stream.index()].iter().map(|(line, _)| line.clone()).collect();
            let printed = printed[stream.index()].split_inclusive(|byte| *byte == b'\n').map(|line| {
                let line = line.strip_suffix(b"\n").unwrap();
                line.strip_suffix(b"\r").unwrap_or(line).to_vec()
            });
            prop_assert_eq!(read, printed.collect::<Vec<_>>());
        }
    }

    #[test]
    fn last_lines_are_those_that_end_last(
        entries in entries(), wanted in 0_u64..30, cuts in proptest::collection::btree_set(0_usize..60, 0..3),
    ) {
        let mut log = TestLog::new();
        // Lines in the order of their ends, and those that have none.
        let mut ended: Vec<(Stream, Vec<u8>)> = Vec::new();
        let mut open: [Option<(usize, Vec<u8>)>; 2] = [None, None];
        for (place, (is_stderr, is_full, text)) in entries.iter().enumerate() {
            if cuts.contains(&place) {
                log.rotate(&format!("20260101-0000{place:02}"));
            }
            let stream = if *is_stderr { Stream::Stderr } else { Stream::Stdout };
            log.write(&[(stream, if *is_full { Tag::Full } else { Tag::Partial }, text)]);
            let line = open[stream.index()].get_or_insert((place, Vec::new()));
            line.0 = place;
            line.1.extend_from_slice(text);
            if *is_full {
                ended.extend(open[stream.index()].take().map(|(_, line)| (stream, line)));
            }
        }
        // An unfinished line counts as ended by its last entry: it is put among the others by that.
        let full_after = |place: usize| entries[place..].iter().filter(|(_, is_full, _)| *is_full).count();
        let mut rest: Vec<_> = Stream::ALL.into_iter().filter_map(|s| Some((s, open[s.index()].take()?))).collect();
        rest.sort_by_key(|(_, (place, _))| *place);
        let total = ended.len();
        for (number, (stream, (place, line))) in rest.into_iter().enumerate() {
            ended.insert(total - full_after(place) + number, (stream, line));
        }
        let first = ended.len().saturating_sub(usize::try_from(wanted).unwrap());
        for cut in cuts.range(..entries.len()) {
            log.compress(&format!("20260101-0000{cut:02}"));
        }
        let mut lines = Lines::default();
        let mut reader = log.open(&tail(wanted));
        while let Some(piece) = reader.next_piece().unwrap() {
            lines.push(&piece);
        }
        for stream in Stream::ALL {
            let expected: Vec<_> =
                ended[first..].iter().filter(|(of, _)| *of == stream).map(|(_, line)| line.clone()).collect();
            let read: Vec<_> = lines.0[stream.index()].iter().map(|(line, _)| line.clone()).collect();
            prop_assert_eq!(read, expected);
        }
    }

    #[test]
    fn log_file_of_any_content_keeps_its_invariants(content in proptest::collection::vec(any::<u8>(), 0..400)) {
        check::log_file(&content);
    }
}
