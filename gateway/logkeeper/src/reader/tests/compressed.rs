//! Searches in compressed files read a bounded amount of text, however many lines and files there are.

use std::ffi::OsStr;

use super::super::dir::LogDir;
use super::super::seek::StartSearch;
use super::super::start::Mark;
use super::super::text::BLOCK;
use super::super::{cri, rotation};
use super::*;

/// The unfinished entries of a line, as a container makes very many of them.
fn parts(count: usize) -> Vec<u8> {
    b"2026-11-26T00:17:09.669794202Z stdout P x\n".repeat(count)
}

/// Whole lines, each with its number.
fn lines(numbers: std::ops::Range<u32>) -> Vec<u8> {
    let line =
        |number| format!("2026-11-26T00:17:09.669794202Z stdout F line {number}\n").into_bytes();
    numbers.flat_map(line).collect()
}

/// A log of compressed files with these texts, the oldest one first, and an empty newest file.
fn log_of(texts: &[Vec<u8>]) -> TestLog {
    let log = TestLog::new();
    for (number, text) in texts.iter().enumerate() {
        let time = format!("20260101-{number:06}");
        fs::write(log.rotated(&time), text).unwrap();
        log.compress(&time);
    }
    log
}

/// Searches for the last lines, or for a time; where they begin, how many bytes were decompressed, and what was left out.
fn search(
    log: &TestLog,
    max: u64,
    find: impl FnOnce(&mut StartSearch<'_>) -> Mark,
) -> (Mark, u64, Vec<ReadError>) {
    let dir = LogDir::open(log.dir.path(), Path::new("main")).unwrap();
    let name = OsStr::new("0.log");
    let rotated = rotation::rotated(&dir, name).unwrap();
    let interest = log.waiter.interest();
    let mut omitted = Vec::new();
    let mut search = StartSearch {
        dir: &dir,
        name,
        rotated: &rotated,
        newest: None,
        interest: &interest,
        left: max,
        omitted: &mut omitted,
    };
    let mark = find(&mut search);
    let expanded = max.saturating_sub(search.left);
    (mark, expanded, omitted)
}

fn last_lines(log: &TestLog, max: u64, wanted: u64) -> (Mark, u64, Vec<ReadError>) {
    search(log, max, |search| search.last_lines(wanted, [true; 2])[0])
}

#[test]
fn each_compressed_file_is_gone_through_once_and_the_one_with_the_beginning_twice() {
    let count = 300_000;
    let log = log_of(&[parts(count), parts(count), parts(count)]);
    let len = parts(count).len() as u64;
    let (mark, expanded, omitted) = last_lines(&log, u64::MAX, 2);
    assert_eq!((mark, omitted.len()), (Mark { file: 0, at: 0 }, 0));
    assert_eq!(expanded, 3 * len, "one line that goes through all files");

    let log = log_of(&[lines(0..300_000), lines(300_000..600_000)]);
    let len = [lines(0..300_000), lines(300_000..600_000)].map(|text| text.len() as u64);
    for (wanted, passes) in [
        (2, [0, 2]),
        (299_999, [0, 2]),
        (300_000, [1, 1]),
        (300_001, [2, 1]),
        (600_001, [1, 1]),
    ] {
        let (_, expanded, _) = last_lines(&log, u64::MAX, wanted);
        let expected = len[0] * passes[0] + len[1] * passes[1];
        assert!(
            expanded <= expected,
            "{expanded} bytes for {wanted} lines of files of {len:?}"
        );
    }
}

#[test]
fn search_ends_when_it_has_decompressed_its_budget_and_gives_what_it_has_found() {
    let texts: Vec<_> = (0..20)
        .map(|file| lines(file * 1000..(file + 1) * 1000))
        .collect();
    let log = log_of(&texts);
    let len = texts[19].len() as u64;
    let max = 5 * len + len / 2;
    let (mark, expanded, omitted) = last_lines(&log, max, 10_000);
    assert_eq!(mark, Mark { file: 15, at: 0 });
    assert!(expanded <= max + BLOCK as u64, "{expanded} bytes of {max}");
    assert!(
        matches!(omitted.as_slice(), [ReadError::SearchTooLong(path)] if path.ends_with("0.log.20260101-000014.gz"))
    );
    // The reader passes on the lines that it found, and reports that there are more.
    let mut reader = bounded(&log, &tail(10_000), max);
    assert_eq!(drain(&mut reader), numbers(15_000..20_000));
    assert_eq!(reader.take_omitted().len(), 1);
}

/// Files that were searched for a number of lines are not searched for a time again.
#[test]
fn time_takes_nothing_from_the_last_lines_when_their_search_has_used_the_budget() {
    let texts: Vec<_> = (0..20)
        .map(|file| lines(file * 1000..(file + 1) * 1000))
        .collect();
    let log = log_of(&texts);
    let len = texts[19].len() as u64;
    // All entries have this time.
    let since = UNIX_EPOCH + Duration::from_secs(1_795_652_229);
    for (wanted, max, first) in [(3500, 4 * len, 16_500), (10_000, 5 * len + len / 2, 15_000)] {
        let query = LogQuery {
            since: Some(since),
            ..tail(wanted)
        };
        let mut reader = bounded(&log, &query, max);
        assert_eq!(drain(&mut reader), numbers(first..20_000), "{wanted}");
        let omitted = reader.take_omitted();
        assert_eq!(
            omitted.len(),
            usize::from(first == 15_000),
            "{wanted}: {omitted:?}"
        );
        let later = LogQuery {
            since: Some(since + Duration::from_secs(1)),
            ..query
        };
        assert_eq!(
            drain(&mut bounded(&log, &later, max)),
            numbers(0..0),
            "{wanted}"
        );
    }
    let (mark, expanded, omitted) = search(&log, len, |search| {
        search.since(Duration::from_secs(1), Some(Mark { file: 18, at: 7 }))
    });
    assert_eq!((mark, omitted.len()), (Mark { file: 18, at: 7 }, 0));
    assert!(
        expanded <= 2 * BLOCK as u64,
        "{expanded} bytes of the files before are looked at"
    );
}

/// A reader with another budget.
fn bounded(log: &TestLog, query: &LogQuery, max: u64) -> LogReader {
    let dir = LogDir::open(log.dir.path(), Path::new("main")).unwrap();
    let name = OsStr::new("0.log");
    let files = cri::LogFiles {
        rotated: rotation::rotated(&dir, name).unwrap(),
        newest: dir.file(name).unwrap(),
        dir,
        name: name.to_owned(),
    };
    LogReader(Format::Cri(Box::new(CriReader::of_files(
        files,
        query,
        log.waiter.interest(),
        max,
    ))))
}

#[test]
fn text_without_line_ends_counts_too() {
    let log = log_of(&[vec![0; 64 << 20], vec![0; 64 << 20]]);
    for max in [0, 1 << 20, 100 << 20] {
        let (_, expanded, omitted) = last_lines(&log, max, 2);
        assert!(
            expanded <= max + 2 * BLOCK as u64,
            "{expanded} bytes of {max}"
        );
        assert_eq!(omitted.len(), 1, "{max}");
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let (_, expanded, _) = search(&log, max, |search| search.since(since, None));
        assert!(expanded <= max + (2 << 20), "{expanded} bytes of {max}");
    }
}

#[test]
fn reader_for_which_nobody_waits_decompresses_nothing_more() {
    let mut log = log_of(&[lines(0..100_000), lines(100_000..200_000)]);
    let mut reader = log.open(&LogQuery::default());
    assert!(reader.next_piece().unwrap().is_some());
    log.waiter = ReadWaiter::default();
    let mut pieces = 0;
    while let Ok(piece) = reader.next_piece() {
        pieces += 1;
        assert!(
            piece.is_some() && pieces < 10_000,
            "only what is in memory is passed on"
        );
    }
    let interest = ReadWaiter::default().interest();
    let mut gone = LogReader::open(&log.location(), &tail(2), &interest).unwrap();
    assert!(gone.next_piece().is_err());
}
