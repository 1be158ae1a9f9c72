//! Segments that are full, old, torn, hostile or of a later version.

use std::fs::FileTimes;
use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn line(detail: &str) -> String {
    record::encode(&EventView {
        event: "x".to_owned(),
        detail: detail.to_owned(),
        ..EventView::default()
    })
}

fn written(dir: &Path, details: &[&str]) {
    let mut writer = SegmentWriter::new(dir.to_owned());
    for detail in details {
        writer.write(&line(detail)).unwrap();
    }
}

/// All events, page by page, and the number of records that cannot be read.
fn read(dir: &Path) -> (Vec<String>, u64) {
    let mut details = Vec::new();
    let mut unreadable = 0;
    let mut from = Place::default();
    loop {
        let scan = scan(dir, from, &EventFilter::default()).unwrap();
        assert!(scan.events.len() <= PAGE);
        unreadable += scan.unreadable;
        details.extend(scan.events.into_iter().map(|event| event.detail));
        match scan.next {
            Some(next) => {
                assert_ne!(next, from, "no page is the same again");
                from = next;
            }
            None => return (details, unreadable),
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn records_are_read_in_order_by_pages_and_only_root_can_read_the_file() {
    let dir = dir();
    let history = dir.path().join("history");
    let details: Vec<String> = (0..PAGE * 2 + 1).map(|number| number.to_string()).collect();
    let borrowed: Vec<&str> = details.iter().map(String::as_str).collect();
    written(&history, &borrowed);
    assert_eq!(read(&history), (details, 0));
    assert_eq!(names(&history), ["events-1-0000000001.jsonl"]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&history), 0o700);
    assert_eq!(mode(&path_of(&history, 1)), 0o600);
}

#[test]
fn nothing_is_read_where_nothing_is() {
    let dir = dir();
    assert_eq!(read(&dir.path().join("none")), (Vec::new(), 0));
    assert!(tail(&dir.path().join("none"), 1000).unwrap().is_empty());
}

#[test]
fn record_after_a_torn_one_is_on_a_line_of_its_own() {
    let dir = dir();
    written(dir.path(), &["one"]);
    let path = path_of(dir.path(), 1);
    let torn = fs::read_to_string(&path).unwrap() + r#"{"at":"2026"#;
    fs::write(&path, &torn).unwrap();
    // It may be one that is being written.
    assert_eq!(read(dir.path()), (vec!["one".to_owned()], 0));
    written(dir.path(), &["two"]);
    let expected = vec!["one".to_owned(), "two".to_owned()];
    assert_eq!(read(dir.path()), (expected, 1));
    let tail = tail(dir.path(), 1 << 20).unwrap();
    assert_eq!(tail.len(), 2);
}

#[test]
fn torn_record_is_left_until_the_next_one_finds_room() {
    let dir = dir();
    let path = path_of(dir.path(), 1);
    let torn = br#"{"at":"2026"#;
    fs::write(&path, torn).unwrap();
    let resumed = OpenSegment::resume(&path, SystemTime::now()).unwrap();
    assert!(resumed.is_some_and(|segment| segment.is_torn));
    // Where nothing can be written, there is still a segment to try again with.
    assert_eq!(fs::read(&path).unwrap(), torn);
}

#[test]
fn full_segment_is_followed_by_another_and_the_size_of_all_is_bounded() {
    let dir = dir();
    for number in 1..=40 {
        let full = File::create(path_of(dir.path(), number)).unwrap();
        full.set_len(SEGMENT_BYTES).unwrap();
    }
    written(dir.path(), &["new"]);
    let names = names(dir.path());
    let kept = usize::try_from(BYTES_MAX / SEGMENT_BYTES).unwrap();
    assert_eq!(names.len(), kept, "{names:?}");
    assert_eq!(names.last().unwrap(), "events-1-0000000041.jsonl");
    assert_eq!(read(dir.path()).0, ["new"]);
}

#[test]
fn thousands_of_segments_are_cut_down_to_the_newest() {
    let dir = dir();
    for number in 1..=3000 {
        fs::write(path_of(dir.path(), number), line("x")).unwrap();
    }
    assert_eq!(read(dir.path()).0.len(), SEGMENTS_MAX);
    let writer = SegmentWriter::new(dir.path().to_owned());
    writer.prune(SystemTime::now()).unwrap();
    let names = names(dir.path());
    assert_eq!(names.len(), SEGMENTS_MAX);
    assert_eq!(names.last().unwrap(), "events-1-0000003000.jsonl");
}

#[test]
fn old_segments_go_one_at_a_time_and_the_newest_stays() {
    let dir = dir();
    let now = SystemTime::now();
    for number in 1..=4 {
        fs::write(path_of(dir.path(), number), line("x")).unwrap();
        let file = File::options()
            .write(true)
            .open(path_of(dir.path(), number))
            .unwrap();
        let old = now - KEPT - Duration::from_secs(60);
        file.set_times(FileTimes::new().set_modified(old)).unwrap();
    }
    let writer = SegmentWriter::new(dir.path().to_owned());
    for left in [3, 2, 1, 1] {
        writer.prune(now).unwrap();
        let names = names(dir.path());
        assert_eq!(names.len(), left, "{names:?}");
        assert_eq!(names.last().unwrap(), "events-1-0000000004.jsonl");
    }
}

#[test]
fn segment_of_yesterday_or_without_a_name_is_not_continued() {
    let dir = dir();
    let mut writer = SegmentWriter::new(dir.path().to_owned());
    writer.write(&line("one")).unwrap();
    fs::remove_file(path_of(dir.path(), 1)).unwrap();
    writer.write(&line("two")).unwrap();
    assert_eq!(read(dir.path()).0, ["two"]);
    let yesterday = SystemTime::now() - SEGMENT_AGE;
    writer.open.as_mut().unwrap().begun = yesterday;
    assert!(!writer.open.as_ref().unwrap().has_room(SystemTime::now()));
    // A clock that was set back.
    assert!(
        writer
            .open
            .as_ref()
            .unwrap()
            .has_room(yesterday - SEGMENT_AGE)
    );
}

#[test]
fn files_of_a_later_version_and_others_are_left_alone() {
    let dir = dir();
    let others = [
        "events-2-0000000009.jsonl",
        "events-1-9.jsonl",
        "events-1-00000000xx.jsonl",
        "events-1-0000000007.jsonl.gz",
        "notes",
    ];
    for name in others {
        fs::write(dir.path().join(name), "of somebody else\n").unwrap();
    }
    written(dir.path(), &["ours"]);
    let writer = SegmentWriter::new(dir.path().to_owned());
    writer.prune(SystemTime::now()).unwrap();
    assert_eq!(read(dir.path()), (vec!["ours".to_owned()], 0));
    for name in others {
        let text = fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(text, "of somebody else\n", "{name}");
    }
}

#[test]
fn link_or_directory_in_place_of_a_segment_is_neither_read_nor_written() {
    let dir = dir();
    let elsewhere = dir.path().join("elsewhere");
    fs::write(&elsewhere, line("secret")).unwrap();
    let history = dir.path().join("history");
    written(&history, &["first"]);
    symlink(&elsewhere, path_of(&history, 2)).unwrap();
    fs::create_dir(path_of(&history, 3)).unwrap();
    written(&history, &["ours"]);
    let expected = vec!["first".to_owned(), "ours".to_owned()];
    assert_eq!(read(&history), (expected, 2));
    assert_eq!(tail(&history, 1 << 20).unwrap().len(), 2);
    symlink(&elsewhere, path_of(&history, 5)).unwrap();
    written(&history, &["next"]);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), line("secret"));
    assert_eq!(read(&history).0.last().unwrap(), "next");
}

#[test]
fn garbage_and_huge_lengths_are_skipped_within_bounds() {
    let dir = dir();
    let mut bytes = vec![0xff; 3 * CHUNK + 17];
    bytes.extend_from_slice(b"\n");
    bytes.extend_from_slice(line("between").as_bytes());
    bytes.extend(std::iter::repeat_n(b"{\n", 5000).flatten());
    bytes.extend_from_slice(line("after").as_bytes());
    bytes.extend_from_slice(b"{\"at\":\"");
    fs::write(path_of(dir.path(), 1), &bytes).unwrap();
    // A file without content that seems huge.
    let sparse = File::create(path_of(dir.path(), 2)).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let scan = scan(dir.path(), Place::default(), &EventFilter::default()).unwrap();
    let next = scan.next.unwrap();
    assert_eq!(next.segment, 2, "a page looks at a bounded part of it");
    let details: Vec<_> = scan
        .events
        .iter()
        .map(|event| event.detail.as_str())
        .collect();
    assert_eq!(details, ["between", "after"]);
    assert!(scan.unreadable > 5000, "{}", scan.unreadable);
    // It is larger than all may be together, and the next record begins another one.
    written(dir.path(), &["next"]);
    assert_eq!(names(dir.path()), ["events-1-0000000003.jsonl"]);
    assert_eq!(read(dir.path()), (vec!["next".to_owned()], 0));
}

#[test]
fn tail_has_the_last_whole_records_of_several_segments() {
    let dir = dir();
    fs::write(path_of(dir.path(), 1), line("one") + &line("two")).unwrap();
    fs::write(path_of(dir.path(), 2), line("three")).unwrap();
    let length = u64::try_from(line("three").len()).unwrap();
    let details = |most: u64| -> Vec<String> {
        let tail = tail(dir.path(), most).unwrap();
        tail.into_iter().map(|event| event.detail).collect()
    };
    assert_eq!(details(0), [""; 0]);
    assert_eq!(details(length), ["three"]);
    assert_eq!(details(length + 5), ["three"]);
    assert_eq!(details(length * 2 + 5), ["two", "three"]);
    assert_eq!(details(1 << 20), ["one", "two", "three"]);
}

#[test]
fn place_in_a_segment_that_was_removed_continues_with_the_next() {
    let dir = dir();
    fs::write(path_of(dir.path(), 7), line("later")).unwrap();
    let from = Place {
        segment: 3,
        offset: 4096,
    };
    let scan = scan(dir.path(), from, &EventFilter::default()).unwrap();
    assert_eq!(scan.events.len(), 1);
    assert_eq!(scan.next, None);
}
