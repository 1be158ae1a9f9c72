//! A follower loses and repeats no line.

use super::*;

#[test]
fn follower_reads_what_is_written_later() {
    let mut log = TestLog::new();
    log.write_lines(numbers(0..3));
    let mut reader = log.open(&follow());
    assert_eq!(drain(&mut reader), numbers(0..3));
    assert_eq!(drain(&mut reader), numbers(0..0));
    log.write_lines(numbers(3..5));
    assert_eq!(drain(&mut reader), numbers(3..5));
}

#[test]
fn log_that_is_not_there_yet_can_be_followed() {
    let mut log = TestLog::new();
    fs::remove_file(log.path()).unwrap();
    assert!(matches!(
        LogReader::open(
            &log.location(),
            &LogQuery::default(),
            &log.waiter.interest()
        ),
        Err(ReadError::Absent(_))
    ));
    let mut reader = log.open(&follow());
    assert_eq!(drain(&mut reader), numbers(0..0));
    log.sink.reopen().unwrap();
    log.write_lines(numbers(0..2));
    assert_eq!(drain(&mut reader), numbers(0..2));
}

#[test]
fn follower_reads_on_after_any_number_of_rotations() {
    let mut log = TestLog::new();
    log.write_lines(numbers(0..3));
    let mut reader = log.open(&follow());
    assert_eq!(drain(&mut reader), numbers(0..3));
    log.rename("20260101-000000");
    // Until it is reopened, the renamed file is written.
    log.write_lines(numbers(3..5));
    assert_eq!(drain(&mut reader), numbers(3..5));
    log.write_lines(numbers(5..6));
    log.sink.reopen().unwrap();
    log.write_lines(numbers(6..8));
    assert_eq!(drain(&mut reader), numbers(5..8));
    for (time, first) in [
        ("20260101-000010", 8),
        ("20260101-000020", 10),
        ("20260101-000030", 12),
    ] {
        log.write_lines(numbers(first..first + 2));
        log.rotate(time);
    }
    log.write_lines(numbers(14..15));
    log.compress("20260101-000010");
    log.compress("20260101-000020");
    assert_eq!(drain(&mut reader), numbers(8..15));
    // A log that is removed without another in its place has no more lines.
    fs::remove_file(log.path()).unwrap();
    assert_eq!(drain(&mut reader), numbers(0..0));
}

/// Truncates a file as the recovery of a killed logkeeper does.
fn truncate(path: &Path, len: u64) {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(len)
        .unwrap();
}

#[test]
fn lines_that_a_recovered_logkeeper_writes_anew_are_not_repeated() {
    // From the beginning of the log, and from its last line on.
    for (before, query) in [
        (0, follow()),
        (5, follow()),
        (
            5,
            LogQuery {
                follow: true,
                ..tail(0)
            },
        ),
    ] {
        let mut log = TestLog::new();
        log.write_lines(numbers(0..before));
        let mut reader = log.open(&query);
        let mut read = drain(&mut reader);
        let recorded = fs::metadata(log.path()).unwrap().len();
        let batch = |log: &mut TestLog| {
            log.write_lines(["tick".to_owned(), "tick".to_owned()]);
            log.write_lines(numbers(before..before + 20));
        };
        batch(&mut log);
        read.extend(drain(&mut reader));
        for round in 0..3 {
            truncate(&log.path(), recorded);
            if round == 1 {
                // The follower sees the truncated file.
                read.extend(drain(&mut reader));
            }
            if round == 2 {
                // The log was renamed before the logkeeper was killed.
                log.rename("20260101-000000");
                log.sink.reopen().unwrap();
            }
            batch(&mut log);
            read.extend(drain(&mut reader));
        }
        log.write_lines(["tick".to_owned()]);
        read.extend(drain(&mut reader));
        let first = if query.tail.is_some() { before } else { 0 };
        let mut expected = numbers(first..before);
        expected.extend(["tick".to_owned(), "tick".to_owned()]);
        expected.extend(numbers(before..before + 20));
        expected.push("tick".to_owned());
        assert_eq!(read, expected, "{before} lines before, {query:?}");
    }
}

#[test]
fn streams_may_be_mixed_in_another_way_when_they_are_written_anew() {
    let mut log = TestLog::new();
    log.write_lines(numbers(0..2));
    let mut reader = log.open(&follow());
    let mut lines = Lines::default();
    let mut read = |reader: &mut LogReader| {
        while let Some(piece) = reader.next_piece().unwrap() {
            assert!(!piece.is_malformed);
            lines.push(&piece);
        }
        Stream::ALL.map(|stream| text_of(&lines, stream))
    };
    let recorded = fs::metadata(log.path()).unwrap().len();
    let [out, err] = [Stream::Stdout, Stream::Stderr];
    log.write(&[
        (out, Tag::Full, b"a"),
        (err, Tag::Full, b"long text"),
        (out, Tag::Partial, b"b"),
    ]);
    read(&mut reader);
    truncate(&log.path(), recorded);
    log.write(&[
        (err, Tag::Full, b"long text"),
        (out, Tag::Full, b"a"),
        (out, Tag::Partial, b"b"),
    ]);
    log.write(&[(out, Tag::Full, b"c")]);
    let [stdout, stderr] = read(&mut reader);
    assert_eq!(
        (stdout, stderr),
        (
            vec!["line 0".into(), "line 1".into(), "a".into(), "bc".into()],
            vec!["long text".into()]
        )
    );
}

#[test]
fn log_that_somebody_empties_is_read_from_its_beginning() {
    let mut log = TestLog::new();
    log.write_lines(numbers(0..1000));
    let mut reader = log.open(&LogQuery {
        follow: true,
        ..tail(3)
    });
    assert_eq!(drain(&mut reader), numbers(997..1000));
    truncate(&log.path(), 0);
    assert_eq!(drain(&mut reader), numbers(0..0));
    log.write_lines(numbers(1000..1003));
    assert_eq!(drain(&mut reader), numbers(1000..1003));
    // It has as many lines again before the follower looks.
    truncate(&log.path(), 0);
    log.write_lines(numbers(2000..2010));
    assert_eq!(drain(&mut reader), numbers(2000..2010));
}

#[test]
fn torn_line_that_is_cut_off_is_never_seen() {
    let mut log = TestLog::new();
    log.write_lines(numbers(0..1));
    let mut reader = log.open(&follow());
    assert_eq!(drain(&mut reader), numbers(0..1));
    let whole = fs::metadata(log.path()).unwrap().len();
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(log.path())
        .unwrap();
    file.write_all(b"2026-11-26T00:17:09.669794202Z stdout F tor")
        .unwrap();
    assert_eq!(drain(&mut reader), numbers(0..0));
    truncate(&log.path(), whole);
    log.write_lines(numbers(1..2));
    assert_eq!(drain(&mut reader), numbers(1..2));
}
